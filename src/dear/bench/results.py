"""A benchmark cell, its result, and the JSON file that holds them: written by `dear bench`, read by `dear report`."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, convert, to_builtins
from msgspec.structs import replace

from dear.bench.protocols import ProtocolName
from dear.core.errors import DearError
from dear.core.files import is_temporary, read_json, to_json, write_text
from dear.core.schema import Count, Finite, Name, Percent, damaged
from dear.core.words import counted

FORMAT = 1
CELLS = "cells"


class Variant(Struct, frozen=True, omit_defaults=True):
    """One row of an ablation: the value it tries, and the name of the row in which nothing is changed."""

    ablation: str
    value: Any
    default_value: Any = "default"
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
        settings = with_current_names(self.settings)
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


class Evaluation(Struct, frozen=True, omit_defaults=True):
    """All metrics (in %) on one set of images and classes, by one way of inference."""

    name: Name
    inference: str
    images: Count
    accuracy: Percent
    interval: tuple[Finite, Finite] | None
    ece: Finite | None
    per_class: dict[str, Percent]
    confused: list[tuple[str | Count, str | Count, Count]]  # true class, predicted class, images
    right: str | None = None  # one bit per image, in hexadecimal: was it answered rightly? Older files have none


class ComponentScores(Struct, frozen=True):
    """The components of a method on one set of images: the accuracy (%) of each alone, and the mean cosine similarity
    of two of them, CLS aside (None: there are no two)."""

    name: Name
    alone: dict[str, Percent]
    cosine: Finite | None


class Seconds(Struct, frozen=True):
    fit: Finite
    evaluate: Finite


class Result(Struct, frozen=True, kw_only=True):
    """A finished cell."""

    cell: Cell
    evaluations: list[Evaluation]
    fusion: dict[str, Finite] | None
    components: list[ComponentScores] = []  # older files have none
    trained_parameters: Count | None
    seconds: Seconds
    peak_memory_mb: Finite | None
    versions: dict[str, Any]
    machine: dict[str, Any]
    finished: str


def result_files(folder: Path) -> list[Path]:
    """Files of all finished cells, without those that a killed run left unfinished."""
    return sorted(path for path in (folder / CELLS).glob("*.json") if not is_temporary(path))


def read_result(path: Path) -> Result:
    return parse_result(read_json(path), str(path))


def parse_result(value: Any, where: str) -> Result:
    """A result from its JSON value, which comes from `where`."""
    if isinstance(value, dict) and value.get("format") != FORMAT:
        raise DearError(f"{where} is not a result of this version of dear (format {FORMAT}): run its cell again.")
    with damaged(where, "delete it and run its cell again"):
        return convert(value, Result, strict=True)


def write_result(folder: Path, result: Result) -> Path:
    path = result_path(folder, result.cell)
    write_text(path, to_json({"format": FORMAT, **to_builtins(result)}) + "\n")
    return path


def result_path(folder: Path, cell: Cell) -> Path:
    return folder / CELLS / f"{cell.name}.json"


def read_results(folders: Iterable[Path]) -> list[Result]:
    """The results of all folders, ready to be compared."""
    files: list[Path] = []
    for folder in folders:
        in_folder = result_files(folder)
        if not in_folder:
            raise DearError(f"{folder} has no results in {folder / CELLS}: run `dear bench --out {folder}` first.")
        files += in_folder
    return comparable(map(read_result, files))


def comparable(results: Iterable[Result]) -> list[Result]:
    """Results as tables show them: settings under their current names, classes by name, datasets by short names.

    Of a cell that occurs more than once, the result that finished last counts.
    """
    latest: dict[str, Result] = {}
    for result in map(_normalised, results):
        key = json.dumps(to_builtins(result.cell), sort_keys=True)
        if key not in latest or latest[key].finished <= result.finished:
            latest[key] = result
    datasets = {name for result in latest.values() for name in (result.cell.dataset, *result.cell.targets)}
    names = {name: _short_name(name) for name in datasets}
    if len(set(names.values())) < len(names):
        names = {name: name for name in names}
    return [_renamed(result, names) for result in latest.values()]


def with_current_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a cell, with those of older versions under the names that they have now.

    `views`, `clean_view` and `fixed_views` became `augment`: "fresh", "fixed:N" or "none".
    """
    older = {"views": 1, "clean_view": False, "fixed_views": 0}
    if "augment" in settings or not older.keys() & settings.keys():
        return dict(settings)
    views, clean_view, fixed_views = (settings.get(name, default) for name, default in older.items())
    current = {name: value for name, value in settings.items() if name not in older}
    if views > 1:
        current["views"] = views  # TAC's, which is its own setting now
    if clean_view and not views:
        return current | {"augment": "none"}
    return current | {"augment": f"fixed:{fixed_views}" if fixed_views else "fresh"}


def show_value(value: object) -> str:
    """A setting's value as a person writes it: bare text, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _normalised(result: Result) -> Result:
    cell, variant = result.cell, result.cell.variant
    if variant:
        value, default_value = show_value(variant.value), show_value(variant.default_value)
        variant = replace(variant, value=value, default_value=default_value)
    cell = replace(cell, settings=with_current_names(cell.settings), variant=variant)
    evaluations = [replace(e, confused=_with_class_names(e)) for e in result.evaluations]
    return replace(result, cell=cell, evaluations=evaluations)


def _with_class_names(evaluation: Evaluation) -> list[tuple[str | int, str | int, int]]:
    """Confusions by class name. Older files number the classes by their place in `per_class`, which leaves out classes
    without images: then the classes with errors are not the same in both, and numbers are shown as they are.
    """
    names = list(evaluation.per_class)
    wrong = {i for i, name in enumerate(names) if evaluation.per_class[name] < 100}
    fits = {true for true, _, _ in evaluation.confused} == wrong

    def name(label: str | int) -> str:
        return names[label] if isinstance(label, int) and fits and label < len(names) else str(label)

    return [(name(true), name(predicted), count) for true, predicted, count in evaluation.confused]


def _short_name(dataset: str) -> str:
    """The last part of a path; for a split file, the folder that holds it."""
    path = Path(dataset)
    return path.parent.name if path.suffix in (".json", ".jsonl", ".csv") and path.parent.name else path.name


def _renamed(result: Result, names: Mapping[str, str]) -> Result:
    """With other names for datasets."""
    targets = tuple(names[target] for target in result.cell.targets)
    cell = replace(result.cell, dataset=names[result.cell.dataset], targets=targets)
    evaluations = [replace(e, name=names.get(e.name, e.name)) for e in result.evaluations]
    return replace(result, cell=cell, evaluations=evaluations)
