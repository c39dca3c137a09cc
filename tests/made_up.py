"""Results of a benchmark that never ran, for tests of reports."""

import json
from pathlib import Path
from typing import Any

from dear.bench.results import Result, comparable, parse_result

ODD = "R&D <i>50%</i>_off"


def evaluation(name: str, accuracy: float, inference: str = "plain") -> dict[str, Any]:
    return {
        "name": name, "inference": inference, "images": 100, "accuracy": accuracy, "ece": 5.0,
        "interval": [accuracy - 2, accuracy + 2], "per_class": {ODD: accuracy, "b": 50.0},
        "confused": [[0, 1, 7], [1, 0, 3]],
    }  # fmt: skip


def result(
    protocol: str, dataset: str, method: str, seed: int, accuracies: dict[str, float], *, shots: int = 16,
    targets: list[str] | None = None, variant: dict[str, Any] | None = None, settings: dict[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    kinds = ("fusion", "decoupled") if method == "dear" else ("plain",)
    return {
        "format": 1,
        "cell": {
            "protocol": protocol, "dataset": dataset, "targets": targets or [], "method": method, "seed": seed,
            "shots": shots, "split": "test", "variant": variant, "settings": {"model": "dear-mini"} | (settings or {}),
        },
        "evaluations": [
            evaluation(name, value - (kind == "decoupled"), kind)
            for name, value in accuracies.items()
            for kind in kinds
        ],
        "fusion": {"cls": 0.9, "color": 0.1} if method == "dear" else None,
        "components": [
            {"name": name, "alone": {"cls": value - 1, "color": value / 2}, "cosine": seed / 10}
            for name, value in accuracies.items()
        ] if method == "dear" else [],
        "trained_parameters": 1234, "seconds": {"fit": 10.0, "evaluate": 1.0}, "peak_memory_mb": 900.0,
        "versions": {"dear": "0.1.0", "git": "abc"}, "machine": {"cores": 2, "gpu": None},
        "finished": "2026-11-15T23:00:00Z",
    }  # fmt: skip


def grid() -> list[dict[str, Any]]:
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
    variant = {"ablation": "masks", "value": "all mixed", "default_value": "DeAR"}
    return results + [
        result("base-to-novel", "world:signs", "dear", seed, {"base": 70, "novel": 70 - seed}, variant=variant)
        for seed in (1, 2)
    ]


def parsed(*values: Any) -> list[Result]:
    """Results from their JSON values, as tables take them."""
    return comparable(parse_result(value, "x") for value in values)


def write(folder: Path, results: list[dict[str, Any]]) -> Path:
    (folder / "cells").mkdir(parents=True)
    for number, value in enumerate(results):
        (folder / "cells" / f"{number:03}.json").write_text(json.dumps(value), encoding="utf-8")
    return folder
