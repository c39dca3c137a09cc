"""The fourth view: learning curves, fusion weights and results of the runs and benchmarks beside this run."""

import json
from pathlib import Path
from typing import Any

from dear.bench.protocols import BASE_TO_NOVEL
from dear.bench.results import read_results
from dear.bench.summary import HM, series
from dear.bench.tables import main_results, on_split
from dear.core.errors import DearError
from dear.core.files import read_json
from dear.model.adapter import CONFIG
from dear.server.api import short_name
from dear.training.loop import METRICS

_SETTINGS = ("model", "data", "classes", "shots", "seed", "lr")
_CURVES = ("loss", "accuracy", "validation")


def read_runs(run: Path) -> dict[str, Any]:
    """All runs and benchmarks in the folder that holds `run`, by name. What is damaged is named, not shown."""
    beside = sorted(folder for folder in run.resolve().parent.iterdir() if folder.is_dir())
    runs, benches, problems = [], [], []
    for folder in beside:
        try:
            if (folder / "config.json").is_file() and (folder / METRICS).is_file():
                runs.append(_sendable(read_run(folder)))
            elif (folder / "cells").is_dir():
                benches += _sendable(read_bench(folder))
        except DearError as error:
            problems.append(str(error))
        except Exception as error:  # whatever is wrong in one folder, the others are shown
            problems.append(f"The folder {folder.name} is damaged ({type(error).__name__}): it is not shown.")
    return {"current": run.resolve().name, "runs": runs, "benches": benches, "problems": problems}


def read_run(folder: Path) -> dict[str, Any]:
    """Settings, the numbers of every finished epoch, and the test accuracies where there are some."""
    config = read_json(folder / "config.json")
    try:
        lines = (folder / METRICS).read_text(encoding="utf-8").splitlines()
        epochs = [_epoch(json.loads(line)) for line in lines if line.strip()]
        if len({len(epoch["fusion"]) for epoch in epochs}) > 1:
            raise ValueError("its number of fusion weights changes")
        settings = {name: config.get(name) for name in _SETTINGS}
        test = read_json(folder / "test.json") if (folder / "test.json").is_file() else {}
        results = {str(name): float(value) for name, value in test.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DearError(f"The run {folder.name} is damaged ({error}): train it again.") from None
    settings["model"] = short_name(str(settings["model"]))
    return {
        "name": folder.name,
        "settings": {**settings, "data": short_name(str(settings["data"]))},
        "planned": config.get("epochs"),
        "epochs": epochs,
        "components": _components(folder, len(epochs[-1]["fusion"]) if epochs else 0),
        "results": results,
    }


def read_bench(folder: Path) -> list[dict[str, Any]]:
    """One table of base, novel and HM for each split of the base-to-novel cells of a benchmark."""
    tables = []
    for split, results in main_results(read_results([folder]), BASE_TO_NOVEL).items():
        rows = [
            [s.dataset, s.label, *(str(stat) if (stat := s.stat(name)) else None for name in ("base", "novel", HM))]
            for s in series(results)
        ]
        tables.append({"title": on_split(f"{folder.name}: base to novel", split), "rows": rows})
    return tables


def _sendable(value: Any) -> Any:
    """As it is; ValueError for numbers that no browser can read."""
    json.dumps(value, allow_nan=False)
    return value


def _epoch(record: dict[str, Any]) -> dict[str, Any]:
    numbers: dict[str, Any] = {name: float(record[name]) for name in _CURVES if name in record}
    return {"epoch": int(record["epoch"]), **numbers, "fusion": [float(weight) for weight in record.get("fusion", [])]}


def _components(folder: Path, count: int) -> list[str]:
    """Names of the fusion weights: an unfinished run has no adapter yet that would tell them."""
    try:
        names = ["cls", *read_json(folder / CONFIG)["facts"]["roles"]["core"]]
    except (DearError, KeyError, TypeError):
        names = []
    return names if len(names) == count else ["cls", *(f"token {i}" for i in range(1, count))][:count]
