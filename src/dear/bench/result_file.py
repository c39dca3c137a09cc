"""The result of one benchmark cell as a JSON file: where results lie, and what each must hold."""

from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from dear.core.errors import DearError
from dear.core.files import is_temporary, read_json
from dear.core.schema import Count, Finite, Percent, check_shape

FORMAT = 1
CELLS = "cells"


class _Variant(TypedDict):
    ablation: str
    value: Any


class _Cell(TypedDict):
    protocol: Literal["base-to-novel", "few-shot", "cross-dataset", "domain"]
    dataset: str
    targets: list[str]
    method: str
    seed: Count
    shots: Count
    split: str
    variant: _Variant | None
    settings: dict[str, Any]


class _Evaluation(TypedDict):
    name: str
    inference: str
    images: Count
    accuracy: Percent
    interval: tuple[Finite, Finite] | None
    ece: Finite | None
    per_class: dict[str, Percent]
    confused: list[tuple[str | int, str | int, Count]]  # true, predicted, how often


class _Apart(TypedDict):
    name: str
    alone: dict[str, Percent]
    cosine: Finite | None


class _Seconds(TypedDict):
    fit: Finite
    evaluate: Finite


class _Result(TypedDict):
    cell: _Cell
    evaluations: list[_Evaluation]
    fusion: dict[str, Finite] | None
    components: NotRequired[list[_Apart]]
    trained_parameters: Count | None
    seconds: _Seconds
    peak_memory_mb: Finite | None
    versions: dict[str, Any]
    machine: dict[str, Any]
    finished: str


def result_files(folder: Path) -> list[Path]:
    """Of all finished cells; what was being written when its run was killed is none."""
    return sorted(path for path in (folder / CELLS).glob("*.json") if not is_temporary(path))


def read_result(path: Path) -> dict[str, Any]:
    value = read_json(path)
    check_result(value, str(path))
    return value


def check_result(value: Any, where: str) -> None:
    if isinstance(value, dict) and value.get("format") != FORMAT:
        raise DearError(f"{where} is not a result of this version of dear (format {FORMAT}): run its cell again.")
    check_shape(value, _Result, where, "delete it and run its cell again")
