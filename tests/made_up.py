"""Results of a benchmark that never ran, for tests of reports."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import to_builtins

from dear.bench.results import FORMAT, STUDY, Cell, CellResult, ComponentScores, Seconds, Variant, comparable
from dear.core.files import to_json
from dear.trials.outcome import Outcome

ODD = "R&D <i>50%</i>_off"


def outcome(part: str, answers: float | np.ndarray, inference: str = "plain", images: int = 100) -> Outcome:
    """`answers`: which images are answered rightly [images], or how many of them (%): then the first ones."""
    right = answers if isinstance(answers, np.ndarray) else np.arange(images) < round(images * answers / 100)
    accuracy = 100 * float(right.mean()) if isinstance(answers, np.ndarray) else float(answers)
    return Outcome(
        part=part, inference=inference, images=len(right), accuracy=accuracy, ece=5.0,
        interval=(accuracy - 2, accuracy + 2), per_class={ODD: accuracy, "b": 50.0},
        confused=[(ODD, "b", 7), ("b", ODD, 3)], right=np.packbits(right).tobytes().hex(),
    )  # fmt: skip


def finished(cell: Cell, outcomes: Sequence[Outcome], **facts: Any) -> CellResult:
    facts = {"fusion": None, "components": [], "finished": "2026-11-15T23:00:00Z"} | facts
    return CellResult(
        cell=cell, outcomes=list(outcomes), trained_parameters=1234, seconds=Seconds(10.0, 1.0), peak_memory_mb=900.0,
        versions={"dear": "0.1.0", "git": "abc"}, machine={"cores": 2, "gpu": None}, **facts,
    )  # fmt: skip


def result(
    protocol: str, dataset: str, method: str, seed: int, answers: Mapping[str, float | np.ndarray], *, shots: int = 16,
    targets: Sequence[str] = (), variant: Variant | None = None, settings: Mapping[str, Any] | None = None,
    split: str = "test", **facts: Any,
) -> CellResult:  # fmt: skip
    """Dear answers by fusion and, with one point less, by its class feature alone; others in one way."""
    cell = Cell(
        protocol, dataset, method, seed, shots, {"model": "dear-mini"} | dict(settings or {}), tuple(targets), split,
        variant,
    )  # fmt: skip
    if method != "dear":
        return finished(cell, [outcome(name, value) for name, value in answers.items()], **facts)
    kinds = {"fusion": 0, "decoupled": 1}
    outcomes = [outcome(name, value - less, kind) for name, value in answers.items() for kind, less in kinds.items()]
    components = [
        ComponentScores(name, {"cls": value - 1, "color": value / 2}, seed / 10) for name, value in answers.items()
    ]
    return finished(cell, outcomes, fusion={"cls": 0.9, "color": 0.1}, components=components, **facts)


def grid() -> list[CellResult]:
    results = [
        result("base-to-novel", dataset, method, seed, {"base": base + seed, "novel": novel - seed})
        for dataset in ("world:signs", "data/eurosat")
        for method, base, novel in (("dear", 80, 70), ("zero-shot", 60, 65))
        for seed in (1, 2)
    ]
    results += [result("base-to-novel", "world:signs", "linear-probe", seed, {"base": 75.0}) for seed in (1, 2)]
    results += [
        result("few-shot", "world:signs", method, 1, {"all": 50.0 + shots}, shots=shots)
        for method in ("dear", "tip-adapter")
        for shots in (1, 16)
    ]
    names = ["world:signs", "world:signs:sketch", "world:signs:night"]
    results.append(
        result("domain", names[0], "dear", 1, dict(zip(names, (70, 60, 50), strict=True)), targets=names[1:])
    )
    variant = Variant("masks", "all mixed", "DeAR")
    return results + [
        result("base-to-novel", "world:signs", "dear", seed, {"base": 70, "novel": 70 - seed}, variant=variant)
        for seed in (1, 2)
    ]


def json_of(result: CellResult) -> dict[str, Any]:
    """The JSON value of a stored result."""
    return json.loads(to_json({"format": FORMAT, **to_builtins(result)}))


def parsed(*results: CellResult) -> list[CellResult]:
    """Results as tables take them."""
    return comparable(results)


def write(folder: Path, results: Sequence[CellResult]) -> Path:
    """A study of these results."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [to_json(json_of(result)) + "\n" for result in results]
    (folder / STUDY).write_text("".join(lines), encoding="utf-8")
    return folder
