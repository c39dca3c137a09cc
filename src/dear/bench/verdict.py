"""Our numbers beside the paper's: a verdict for each, within its noise or not.

The paper prints means over three seeds without their spread. We take its spread to be ours: the 95% interval of the
difference of two such means is t * s * sqrt(1/n + 1/3), with s and n of our seeds, and t of n - 1 degrees of freedom.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dear.bench.paper import paper_name, printed
from dear.bench.protocols import BASE, BASE_TO_NOVEL, CROSS_DATASET, DOMAIN, NOVEL
from dear.bench.reproduce import FULL, METHODS_OF_PAPER
from dear.bench.results import Result
from dear.bench.summary import HM, TARGETS, Series, Stat, average, series
from dear.core.table import Table
from dear.core.words import counted
from dear.data.known import KNOWN

_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # 97.5% of Student's t, 1 to 9 degrees
_SEEDS_OF_PAPER = 3
_ROUNDING = 0.05  # of a printed number
_ABLATION_NAMES = {
    "DeAR": ("mask_strategy", "dear"), "all mixed": ("mask_strategy", "all_mixed"),
    "all generalization": ("mask_strategy", "all_generalization"), "CE": ("loss", "ce"),
    "CE + reg": ("loss", "ce+reg"), "CE + reg + fusion": ("loss", "ce+reg+fusion"),
}  # fmt: skip


class Compared(NamedTuple):
    """One number of the paper and ours; `why_not`: why the two cannot be compared, if so."""

    dataset: str
    method: str
    number: str
    paper: float
    ours: Stat
    why_not: str = ""

    @property
    def noise(self) -> float | None:
        """Half of the 95% interval of the difference; None for one seed."""
        n, std = self.ours.seeds, self.ours.std
        if std is None:
            return None
        return _T[min(n - 2, len(_T) - 1)] * std * math.sqrt(1 / n + 1 / _SEEDS_OF_PAPER) + _ROUNDING

    @property
    def verdict(self) -> str:
        difference = self.ours.mean - self.paper
        if self.why_not:
            return f"not comparable: {self.why_not}"
        if self.noise is None:
            return "one seed: noise unknown"
        if abs(difference) <= self.noise:
            return "within noise"
        return "higher" if difference > 0 else "lower"


def verdict_table(compared: Sequence[Compared]) -> Table:
    table = Table(["dataset", "method", "number", "paper", "ours", "difference", "noise", "verdict"])
    for one in compared:
        difference = None if one.why_not else Stat(one.ours.mean - one.paper, digits=1)
        noise = None if one.why_not or one.noise is None else Stat(one.noise, digits=1)
        table.add(one.dataset, one.method, one.number, Stat(one.paper, digits=2), one.ours, difference, noise,
                  one.verdict)  # fmt: skip
    return table


def summary_line(compared: Sequence[Compared]) -> str:
    """ "of 39 numbers: 30 within noise, 9 lower"."""
    kinds = [one.verdict.partition(":")[0] for one in compared]
    counts = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
    return f"of {len(kinds)} numbers: " + ", ".join(f"{count} {kind}" for kind, count in counts.items())


def compare_with_paper(results: Sequence[Result]) -> list[Compared]:
    """Every number that the paper prints for these results, in its order of methods; averages last."""
    order = list(METHODS_OF_PAPER.values())
    results = sorted(results, key=lambda r: order.index(r.cell.method) if r.cell.method in order else len(order))
    if any(result.cell.variant for result in results):
        return list(_ablations(results))
    of = {name: [r for r in results if r.cell.protocol == name] for name in (BASE_TO_NOVEL, CROSS_DATASET, DOMAIN)}
    return [
        *_base_to_novel(of[BASE_TO_NOVEL]),
        *_transfer(of[CROSS_DATASET], CROSS_DATASET),
        *_transfer(of[DOMAIN], DOMAIN),
    ]


def _base_to_novel(results: Sequence[Result]) -> Iterable[Compared]:
    tables, names = printed()["base_to_novel"], {ours: theirs for theirs, ours in METHODS_OF_PAPER.items()}
    by_method: dict[str, list[Series]] = {}
    for one in series(results):
        method = names.get(one.results[0].cell.method)
        if method is None:
            continue
        by_method.setdefault(method, []).append(one)
        dataset = paper_name(one.dataset)
        for part in (BASE, NOVEL, HM) if dataset else ():
            if (stat := one.stat(part)) is not None:
                yield Compared(str(dataset), method, part, tables[method][dataset][part.lower()], stat,
                               _why_not(one.results))  # fmt: skip
    for method, all_series in by_method.items():
        datasets = [one.dataset for one in all_series]
        eleven = tables[method].keys() - {"Average"} <= {paper_name(name) for name in datasets}
        why = next(filter(None, (_why_not(one.results) for one in all_series)), "")
        for part in (BASE, NOVEL, HM):
            if (stat := average(all_series, datasets, part)) is not None:
                yield Compared("Average", method, part, tables[method]["Average"][part.lower()], stat,
                               why or ("" if eleven else f"{len(datasets)} of 11 datasets"))  # fmt: skip


def _transfer(results: Sequence[Result], protocol: str) -> Iterable[Compared]:
    tables = printed()["cross_dataset" if protocol == CROSS_DATASET else "domain_generalization"]
    for one in series(results):
        cell = one.results[0].cell
        method = next((theirs for theirs, ours in METHODS_OF_PAPER.items() if ours == cell.method), None)
        if method is None or method not in tables:
            continue
        places = {one.dataset: "source_imagenet" if paper_name(one.dataset) == "ImageNet" else None}
        places |= {target: paper_name(target) for target in cell.targets} | {TARGETS: "average"}
        complete = len(cell.targets) == len(tables[method]) - 2
        for name, place in places.items():
            stat = one.stat(name)
            if place is not None and stat is not None:
                whole = "" if complete or name != TARGETS else f"{len(cell.targets)} targets"
                yield Compared(place, method, "accuracy", tables[method][place], stat,
                               _why_not(one.results) or whole)  # fmt: skip


def _ablations(results: Sequence[Result]) -> Iterable[Compared]:
    from dear.bench.ablation_results import ablation_results

    for ablation in ablation_results([result for result in results if result.cell.protocol == BASE_TO_NOVEL]):
        for value, all_series in ablation.rows.items():
            place = _ABLATION_NAMES.get(value)
            if place is None or ablation.name not in ("masks", "loss"):
                continue
            datasets = [one.dataset for one in all_series]
            why = next(filter(None, (_why_not(one.results) for one in all_series)), "")
            why = why or ("" if len(datasets) == 11 else f"{len(datasets)} of 11 datasets")
            for part, number in zip((BASE, NOVEL, HM), printed()["ablations"][place[0]][place[1]], strict=True):
                if (stat := average(all_series, datasets, part)) is not None:
                    yield Compared("Average", value, part, number, stat, why)


def _why_not(results: Sequence[Result]) -> str:
    """Another backbone, or other images than the published ones."""
    cell = results[0].cell
    if (cell.settings["model"], cell.settings["pretrained"]) != (FULL["model"], FULL["pretrained"]):
        return f"backbone {cell.settings['model']}"
    if cell.settings.get("text_features"):
        return "a table of texts instead of the text tower"
    if cell.shots != 16:
        return counted(cell.shots, "shot")
    entry = next((k for k in KNOWN if paper_name(cell.dataset) == paper_name(k.name)), None)
    own = {e.name: e.images for e in results[0].evaluations if e.name in (BASE, NOVEL, cell.dataset)}
    if entry is None or sum(own.values()) != entry.image_counts[2]:
        return "not the published test images"
    return ""
