"""Benchmark cells and their results: what decides a cell, what it measured, and where that is stored.

`dear bench` writes one file per finished cell, so that a kill loses none. A study that is kept is one file with a line
per cell: `cat DIR/cells/*.json > DIR/cells.jsonl`. Both are read in the same way.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, convert, to_builtins
from msgspec.structs import replace

from dear.core.errors import DearError
from dear.core.files import is_temporary, parse_json, read_text, to_json, write_text
from dear.core.schema import Count, Finite, Name, Percent, damaged
from dear.core.words import counted
from dear.trials.outcome import ALL, BASE, HELD_OUT, NOVEL, TEST, Outcome

FORMAT = 2
CELLS, STUDY = "cells", "cells.jsonl"
CELL_SPLITS = (TEST, HELD_OUT)
BASE_TO_NOVEL, FEW_SHOT, CROSS_DATASET, DOMAIN = "base-to-novel", "few-shot", "cross-dataset", "domain"
FEW_SHOTS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Protocol:
    """One of the paper's. `parts`: names of what is measured; empty where those are the source and the targets."""

    title: str
    summary: str
    parts: tuple[str, ...] = ()

    @property
    def has_targets(self) -> bool:
        return not self.parts


PROTOCOLS = {
    BASE_TO_NOVEL: Protocol(
        "Base to novel", "train on the first half of the classes, test on each half", (BASE, NOVEL)
    ),
    FEW_SHOT: Protocol(
        "Few-shot", f"train on {', '.join(map(str, FEW_SHOTS[:-1]))} and {FEW_SHOTS[-1]} images per class, all classes",
        (ALL,),
    ),
    CROSS_DATASET: Protocol("Cross-dataset", "train on one dataset, test on others with other classes"),
    DOMAIN: Protocol(
        "Domain generalization", "train on one dataset, test on others that show the same classes in another style"
    ),
}  # fmt: skip

if TYPE_CHECKING:
    ProtocolName = str
else:
    ProtocolName = Literal[tuple(PROTOCOLS)]  # in a file, no other name is accepted


class Variant(Struct, frozen=True, omit_defaults=True):
    """One row of an ablation: the value it tries, and the name of the row in which nothing is changed."""

    ablation: str
    value: str
    default_value: str = "default"
    default: bool = False


class Cell(Struct, frozen=True):
    """One training and its evaluations, by everything that decides the outcome.

    `split`: "test", or "held-out": the training and validation images that were not drawn to train on, so that settings
    can be chosen without a look at the test images. Validation images of the draw are among them: a method that chooses
    on these (Tip-Adapter, LP++) looks a little better there.
    `variant` names the row of an ablation, and decides nothing.
    """

    protocol: ProtocolName
    dataset: Name
    method: Name
    seed: Count
    shots: Count
    settings: dict[str, Any]
    targets: tuple[Name, ...]
    split: Name
    variant: Variant | None

    @property
    def name(self) -> str:
        """A readable file name, with a hash of everything that decides the result."""
        settings = dict(self.settings)
        if "text_features_sha256" in settings:
            del settings["text_features"]  # where the file is does not matter
        identity = to_builtins(self) | {"settings": settings}
        del identity["variant"]
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:10]
        parts = (self.protocol, Path(self.dataset).name, self.method, f"{self.shots}-shots", f"seed-{self.seed}")
        return re.sub(r"[^A-Za-z0-9._-]+", "-", "_".join(parts)) + f"_{digest}"

    def __str__(self) -> str:
        variant = f" ({self.variant.ablation}: {self.variant.value})" if self.variant else ""
        return f"{self.method}{variant} on {Path(self.dataset).name}, {counted(self.shots, 'shot')}, seed {self.seed}"


class ComponentScores(Struct, frozen=True):
    """The components of a method on one part: the accuracy (%) of each alone, and the mean cosine similarity of two of
    them, CLS aside (None: there are no two)."""

    part: Name
    alone: dict[str, Percent]
    cosine: Finite | None


class Seconds(Struct, frozen=True):
    fit: Finite
    evaluate: Finite


class CellResult(Struct, frozen=True, kw_only=True):
    """A finished cell: an outcome for each part and way of inference."""

    cell: Cell
    outcomes: list[Outcome]
    fusion: dict[str, Finite] | None
    components: list[ComponentScores]
    trained_parameters: Count
    seconds: Seconds
    peak_memory_mb: Finite | None
    versions: dict[str, Any]
    machine: dict[str, Any]
    finished: str


def stored_cells(folder: Path) -> Iterator[tuple[str, str]]:
    """The place and JSON of each finished cell of a folder; files that a killed run left unfinished are skipped."""
    study = folder / STUDY
    if study.exists():
        lines = read_text(study).rstrip("\n").split("\n")
        yield from ((f"{study}, line {number}", line) for number, line in enumerate(lines, 1))
    for path in sorted((folder / CELLS).glob("*.json")):
        if not is_temporary(path):
            yield str(path), read_text(path)


def parse_result(text: str, where: str) -> CellResult:
    """A result from its JSON, which is stored at `where`."""
    with damaged(where, "delete it and run its cell again"):
        value = parse_json(text)
        if isinstance(value, dict) and value.get("format") != FORMAT:
            raise DearError(f"{where} is not a result of this version of dear (format {FORMAT}): run its cell again.")
        return convert(value, CellResult, strict=True)


def write_result(folder: Path, result: CellResult) -> None:
    write_text(result_path(folder, result.cell), to_json({"format": FORMAT, **to_builtins(result)}) + "\n")


def result_path(folder: Path, cell: Cell) -> Path:
    return folder / CELLS / f"{cell.name}.json"


def results_in(folder: Path) -> list[CellResult]:
    """The results of a folder, as they were stored."""
    return [parse_result(text, where) for where, text in stored_cells(folder)]


def read_results(folders: Iterable[Path]) -> list[CellResult]:
    """The results of all folders, ready to be compared."""
    results: list[CellResult] = []
    for folder in folders:
        of_folder = results_in(folder)
        if not of_folder:
            raise DearError(f"{folder} has no results: run `dear bench --out {folder}` first.")
        results += of_folder
    return comparable(results)


def comparable(results: Iterable[CellResult]) -> list[CellResult]:
    """Results as tables show them, datasets by short names. Of a cell that occurs twice, the latest result counts."""
    latest: dict[str, CellResult] = {}
    for result in results:
        key = json.dumps(to_builtins(result.cell), sort_keys=True)
        if key not in latest or latest[key].finished <= result.finished:
            latest[key] = result
    datasets = {name for result in latest.values() for name in (result.cell.dataset, *result.cell.targets)}
    names = {name: _short_name(name) for name in datasets}
    if len(set(names.values())) < len(names):
        names = {name: name for name in names}
    return [_with_datasets(result, names) for result in latest.values()]


def show_value(value: object) -> str:
    """A setting's value as a person writes it: bare text, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _short_name(dataset: str) -> str:
    """The last part of a path; for a split file, the folder that holds it."""
    path = Path(dataset)
    return path.parent.name if path.suffix in (".json", ".jsonl", ".csv") and path.parent.name else path.name


def _with_datasets(result: CellResult, names: Mapping[str, str]) -> CellResult:
    """The result with other names for datasets."""
    targets = tuple(names[target] for target in result.cell.targets)
    cell = replace(result.cell, dataset=names[result.cell.dataset], targets=targets)
    outcomes = [replace(outcome, part=names.get(outcome.part, outcome.part)) for outcome in result.outcomes]
    return replace(result, cell=cell, outcomes=outcomes)
