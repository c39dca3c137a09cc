"""The numbers printed in the paper: as tables for the datasets of a report, and compared with ours.

The paper prints means over three seeds without their spread, which is taken to be ours.
"""

import json
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from dear.bench.ablations import ablation_results
from dear.bench.results import BASE_TO_NOVEL, CROSS_DATASET, DOMAIN, CellResult
from dear.bench.series import HM, TARGETS, Series, Stat, average, by_label, datasets_of, series
from dear.core.metrics import harmonic_mean
from dear.core.table import Table
from dear.core.words import counted
from dear.data.known import KNOWN
from dear.trials.outcome import BASE, NOVEL
from dear.trials.paired import UNDECIDED, Comparison, compare_with_printed

BACKBONE = {"model": "ViT-B-16", "pretrained": "openai"}
METHODS_OF_PAPER = {
    "CLIP": "zero-shot", "CoOp": "coop", "ATPromptCoOp": "atprompt", "ProGrad": "prograd", "MaPLe": "maple",
    "PromptSRC": "promptsrc", "ProVP": "provp", "TCP": "tcp", "PromptKD": "promptkd", "MMRL": "mmrl", "TAC": "tac",
    "SkipT": "skipt", "DeAR": "dear",
}  # fmt: skip
_PAPER_NAMES = {ours: theirs for theirs, ours in METHODS_OF_PAPER.items()}
_SCORES = (BASE, NOVEL, HM)
_SHOTS = 16
_RESULTS = Path(__file__).parent / "assets" / "paper_results.json"
_TRANSFER = {CROSS_DATASET: "cross_dataset", DOMAIN: "domain_generalization"}
_OTHER_NAMES = {"ImageNetV2": "V2", "ImageNet-Sketch": "Sketch", "ImageNet-A": "A", "ImageNet-R": "R"}
_ABLATION_NAMES = {
    "DeAR": ("mask_strategy", "dear"), "all mixed": ("mask_strategy", "all_mixed"),
    "all generalization": ("mask_strategy", "all_generalization"), "CE": ("loss", "ce"),
    "CE + reg": ("loss", "ce+reg"), "CE + reg + fusion": ("loss", "ce+reg+fusion"),
}  # fmt: skip


@cache
def printed() -> dict[str, Any]:
    """All numbers, by table, method and dataset."""
    return json.loads(_RESULTS.read_text(encoding="utf-8"))


def paper_name(dataset: str) -> str | None:
    """The paper's name of a dataset, if the last part of its path is that name or the name of CoOp's folder.

    Shorter names don't count: a folder called "pets" may hold anybody's pets.
    """
    last = _letters(Path(dataset).name)
    entry = next((k for k in KNOWN if last in (_letters(k.name), _letters(k.folder))), None)
    return None if entry is None else _OTHER_NAMES.get(entry.name, entry.name)


def base_to_novel_table(datasets: Iterable[str]) -> Table | None:
    """Every method's numbers on the given datasets, as far as the paper has them, and their average.

    HM is computed from the printed base and novel: the printed HM is not always theirs.
    """
    methods = printed()["base_to_novel"]
    names = _paper_names(datasets, methods["DeAR"])
    table = Table(["dataset", "method", *_SCORES])

    def add(dataset: str, method: str, base: float, novel: float) -> None:
        table.add(dataset, method, *(Stat(value, digits=2) for value in (base, novel, harmonic_mean(base, novel))))

    for name in names:
        for method, numbers in methods.items():
            add(name, method, numbers[name][BASE], numbers[name][NOVEL])
    if len(names) > 1:
        for method, numbers in methods.items():
            add("Average", method, *(fmean(numbers[name][part] for name in names) for part in (BASE, NOVEL)))
    return table if names else None


def transfer_table(protocol: str, source: str, targets: Iterable[str]) -> Table | None:
    """Every method's numbers from ImageNet to the given targets, as far as the paper has them."""
    methods = printed()[_TRANSFER[protocol]]
    names = _paper_names(targets, methods["DeAR"])
    if paper_name(source) != "ImageNet" or not names:
        return None
    table = Table(["method", "ImageNet (source)", *names, "average of these"])
    for method, numbers in methods.items():
        values = [numbers[name] for name in names]
        table.add(method, *(Stat(value, digits=2) for value in (numbers["source_imagenet"], *values, fmean(values))))
    return table


class Compared(NamedTuple):
    """One number of the paper and ours; `why_not`: why the two cannot be compared, if so."""

    dataset: str
    method: str
    number: str
    paper: float
    ours: Stat
    why_not: str = ""

    @property
    def comparison(self) -> Comparison | None:
        """Our mean minus the paper's; None for one seed, whose noise is unknown, and if they cannot be compared."""
        if self.why_not:
            return None
        return compare_with_printed(self.ours.mean, self.ours.std, self.ours.seeds, self.paper)

    @property
    def verdict(self) -> str:
        if self.why_not:
            return f"not comparable: {self.why_not}"
        return self.comparison.verdict if self.comparison else f"{UNDECIDED}: one seed"


def verdict_table(compared: Sequence[Compared]) -> Table:
    table = Table(["dataset", "method", "number", "paper", "ours", "difference", "verdict"])
    for one in compared:
        paper = Stat(one.paper, digits=2)
        table.add(one.dataset, one.method, one.number, paper, one.ours, one.comparison, one.verdict)
    return table


def summary_line(compared: Sequence[Compared]) -> str:
    """ "of 39 numbers: 30 level, 9 behind"."""
    kinds = [one.verdict.partition(":")[0] for one in compared]
    counts = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
    return f"of {len(kinds)} numbers: " + ", ".join(f"{count} {kind}" for kind, count in counts.items())


def compare_with_paper(results: Sequence[CellResult]) -> list[Compared]:
    """Every number that the paper prints for these results, in its order of methods; averages last."""
    order = list(_PAPER_NAMES)
    results = sorted(results, key=lambda r: order.index(r.cell.method) if r.cell.method in order else len(order))
    base_to_novel = [result for result in results if result.cell.protocol == BASE_TO_NOVEL]
    if any(result.cell.variant for result in results):
        return list(_compare_ablations(base_to_novel))
    transfer = [(p, [result for result in results if result.cell.protocol == p]) for p in _TRANSFER]
    return [
        *_compare_base_to_novel(base_to_novel),
        *(one for p, group in transfer for one in _compare_transfer(group, p)),
    ]


def _compare_base_to_novel(results: Sequence[CellResult]) -> Iterator[Compared]:
    tables = printed()["base_to_novel"]
    known = [one for one in series(results) if one.results[0].cell.method in _PAPER_NAMES]
    for one in known:
        method, dataset = _PAPER_NAMES[one.results[0].cell.method], paper_name(one.dataset)
        for part in _SCORES if dataset in tables[method] else ():
            if (stat := one.stat(part)) is not None:
                number = tables[method][dataset][part.lower()]
                yield Compared(str(dataset), method, part, number, stat, _why_not([one]))
    for own in by_label(known).values():
        method = _PAPER_NAMES[own[0].results[0].cell.method]
        yield from _averages(own, method, [tables[method]["Average"][part.lower()] for part in _SCORES])


def _compare_ablations(results: Sequence[CellResult]) -> Iterator[Compared]:
    for ablation in ablation_results(results):
        for value, own in ablation.rows.items() if ablation.name in ("masks", "loss") else ():
            if value in _ABLATION_NAMES:
                table, row = _ABLATION_NAMES[value]
                yield from _averages(own, value, printed()["ablations"][table][row])


def _averages(own: Sequence[Series], method: str, numbers: Sequence[float]) -> Iterator[Compared]:
    """Base, novel and HM of a method, averaged over its datasets, beside those printed for all eleven."""
    datasets = datasets_of(own)
    eleven = printed()["base_to_novel"]["DeAR"].keys() - {"Average"}
    whole = "" if {paper_name(name) for name in datasets} == eleven else f"{len(datasets)} of {len(eleven)} datasets"
    for part, number in zip(_SCORES, numbers, strict=True):
        if (stat := average(own, datasets, part)) is not None:
            yield Compared("Average", method, part, number, stat, _why_not(own) or whole)


def _compare_transfer(results: Sequence[CellResult], protocol: str) -> Iterator[Compared]:
    tables = printed()[_TRANSFER[protocol]]
    for one in series(results):
        cell = one.results[0].cell
        method = _PAPER_NAMES.get(cell.method)
        if method not in tables:
            continue
        places = {one.dataset: "source_imagenet" if paper_name(one.dataset) == "ImageNet" else None}
        places |= {target: paper_name(target) for target in cell.targets} | {TARGETS: "average"}
        complete = len(cell.targets) == len(tables[method]) - 2
        for name, place in places.items():
            stat = one.stat(name)
            if place is not None and stat is not None:
                whole = "" if complete or name != TARGETS else f"{len(cell.targets)} targets"
                yield Compared(place, str(method), "accuracy", tables[method][place], stat, _why_not([one]) or whole)


def _why_not(own: Sequence[Series]) -> str:
    """The first reason why series are not the paper's: another backbone, or other images than the published ones."""
    return next(filter(None, (_why_not_result(one.results[0]) for one in own)), "")


def _why_not_result(result: CellResult) -> str:
    cell = result.cell
    if any(cell.settings[name] != value for name, value in BACKBONE.items()):
        return f"backbone {cell.settings['model']}"
    if cell.settings.get("text_features"):
        return "a table of texts instead of the text tower"
    if cell.shots != _SHOTS:
        return counted(cell.shots, "shot")
    entry = next((k for k in KNOWN if paper_name(cell.dataset) == paper_name(k.name)), None)
    own = {outcome.part: outcome.images for outcome in result.outcomes if outcome.part in (BASE, NOVEL, cell.dataset)}
    if entry is None or sum(own.values()) != entry.image_counts[2]:
        return "not the published test images"
    return ""


def _paper_names(datasets: Iterable[str], printed: Container[str]) -> list[str]:
    return list(dict.fromkeys(name for d in datasets if (name := paper_name(d)) and name in printed))


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
