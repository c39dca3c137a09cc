"""The results of finished benchmark cells, read from the JSON files that `dear bench` and `dear ablate` leave."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dear.bench.result_file import CELLS, check_result, result_files
from dear.core.errors import DearError
from dear.core.files import read_json
from dear.core.schema import damaged

BASE_TO_NOVEL, FEW_SHOT, CROSS_DATASET, DOMAIN = "base-to-novel", "few-shot", "cross-dataset", "domain"
PROTOCOLS = (BASE_TO_NOVEL, FEW_SHOT, CROSS_DATASET, DOMAIN)


@dataclass(frozen=True)
class Evaluation:
    """One set of images and classes, answered in one way."""

    name: str
    inference: str
    images: int
    accuracy: float
    interval: tuple[float, float] | None
    ece: float | None
    per_class: dict[str, float]
    confused: list[tuple[str, str, int]]  # true, predicted, how often


@dataclass(frozen=True)
class Apart:
    """The components one by one on one set of images: accuracy of each alone, and mean cosine of two of them."""

    name: str
    alone: dict[str, float]
    cosine: float | None


@dataclass(frozen=True)
class Variant:
    """What an ablation changed. `default_value` is the name of the row that nothing was changed for."""

    ablation: str
    value: str
    default: bool
    default_value: str = "default"


@dataclass(frozen=True)
class Cell:
    """One training (or none, for zero-shot) and its evaluations."""

    protocol: str
    dataset: str
    targets: tuple[str, ...]
    method: str
    seed: int
    shots: int
    split: str
    variant: Variant | None
    settings: dict[str, Any]
    evaluations: list[Evaluation]
    fusion: dict[str, float] | None
    components: list[Apart]
    trained_parameters: int | None
    fit_seconds: float
    evaluate_seconds: float
    peak_memory_mb: float | None
    versions: dict[str, Any]
    machine: dict[str, Any]
    finished: str


def read_cells(folders: Iterable[Path]) -> list[Cell]:
    """All cells of all folders. A cell that is there more than once counts once: the one that finished last."""
    files: list[Path] = []
    for folder in folders:
        found = result_files(folder)
        if not found:
            raise DearError(f"{folder} has no results in {folder / CELLS}: run `dear bench --out {folder}` first.")
        files += found
    return to_cells((str(file), read_json(file)) for file in files)


def to_cells(results: Iterable[tuple[str, Any]]) -> list[Cell]:
    """From (where it comes from, JSON value) of each result. Datasets are named as briefly as tells them apart."""
    cells: dict[str, Cell] = {}
    for where, value in results:
        cell = _cell(where, value)
        key = json.dumps(value["cell"], sort_keys=True)
        if key not in cells or cells[key].finished <= cell.finished:
            cells[key] = cell
    long = {name for cell in cells.values() for name in (cell.dataset, *cell.targets)}
    names = {name: _short(name) for name in long}
    if len(set(names.values())) < len(names):
        names = {name: name for name in names}
    return [_renamed(cell, names) for cell in cells.values()]


def _short(dataset: str) -> str:
    """The last part of a path; of a split file, the folder it is for."""
    path = Path(dataset)
    return path.parent.name if path.suffix in (".json", ".jsonl", ".csv") and path.parent.name else path.name


def _renamed(cell: Cell, names: dict[str, str]) -> Cell:
    evaluations = [replace(e, name=names.get(e.name, e.name)) for e in cell.evaluations]
    targets = tuple(names[target] for target in cell.targets)
    return replace(cell, dataset=names[cell.dataset], targets=targets, evaluations=evaluations)


def show_value(value: object) -> str:
    """A setting's value as a person writes it: text bare, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _cell(where: str, value: Any) -> Cell:
    check_result(value, where)
    with damaged(where, "delete it and run its cell again"):
        of, seconds = value["cell"], value["seconds"]
        variant = of["variant"]
        return Cell(
            protocol=of["protocol"],
            dataset=str(of["dataset"]),
            targets=tuple(map(str, of["targets"])),
            method=str(of["method"]),
            seed=int(of["seed"]),
            shots=int(of["shots"]),
            split=str(of["split"]),
            variant=variant and _variant(variant),
            settings=dict(of["settings"]),
            evaluations=[_evaluation(found) for found in value["evaluations"]],
            fusion=value["fusion"] and {str(name): float(weight) for name, weight in value["fusion"].items()},
            components=[Apart(of["name"], of["alone"], of["cosine"]) for of in value.get("components", ())],
            trained_parameters=value["trained_parameters"],
            fit_seconds=float(seconds["fit"]),
            evaluate_seconds=float(seconds["evaluate"]),
            peak_memory_mb=value["peak_memory_mb"],
            versions=dict(value["versions"]),
            machine=dict(value["machine"]),
            finished=str(value["finished"]),
        )


def _variant(found: dict[str, Any]) -> Variant:
    named = found.get("default_value", Variant.default_value)
    default = bool(found.get("default", False))
    return Variant(str(found["ablation"]), show_value(found["value"]), default, show_value(named))


def _evaluation(found: dict[str, Any]) -> Evaluation:
    interval = found["interval"]
    return Evaluation(
        name=str(found["name"]),
        inference=str(found["inference"]),
        images=int(found["images"]),
        accuracy=float(found["accuracy"]),
        interval=interval and (float(interval[0]), float(interval[1])),
        ece=None if found["ece"] is None else float(found["ece"]),
        per_class={str(name): float(share) for name, share in found["per_class"].items()},
        confused=_named(found["confused"], found["per_class"]),
    )


def _named(confused: list[list[Any]], per_class: dict[str, float]) -> list[tuple[str, str, int]]:
    """Classes may be given by their number, which is their place in `per_class` unless a class without images is
    left out there: then the classes with errors would not be the same in both, and numbers are shown as they are.
    """
    names = list(per_class)
    wrong = {i for i, name in enumerate(names) if per_class[name] < 100}
    fits = {true for true, _, _ in confused} == wrong

    def name(of: Any) -> str:
        return names[of] if isinstance(of, int) and fits and of < len(names) else str(of)

    return [(name(true), name(said), int(count)) for true, said, count in confused]
