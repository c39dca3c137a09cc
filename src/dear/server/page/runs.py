"""The fourth view: learning curves, fusion weights and results of the runs and benchmarks beside this run."""

import json
from pathlib import Path
from typing import Any

from dear.bench.chapters import on_split
from dear.bench.results import BASE_TO_NOVEL, read_results
from dear.bench.series import HM, series
from dear.bench.tables import main_results
from dear.core.errors import DearError
from dear.core.names import CLS
from dear.server.api import short_name
from dear.training.adapter import component_names, read_config
from dear.training.run_folder import RunFolder

_SETTINGS = ("model", "data", "classes", "shots", "seed", "lr")
_CURVES = ("loss", "accuracy", "validation")


def read_runs(run: Path) -> dict[str, Any]:
    """All runs and benchmarks in the folder that holds `run`, by name. Damaged ones are named as problems."""
    beside = sorted(folder for folder in run.resolve().parent.iterdir() if folder.is_dir())
    runs, benches, problems = [], [], []
    for folder in beside:
        try:
            if RunFolder(folder).has_history:
                runs.append(_sendable(read_run(folder)))
            elif (folder / "cells").is_dir():
                benches += _sendable(read_bench(folder))
        except DearError as error:
            problems.append(str(error))
        except Exception as error:  # the other folders are shown all the same
            problems.append(f"The folder {folder.name} is damaged ({type(error).__name__}) and not shown.")
    return {"current": run.resolve().name, "runs": runs, "benches": benches, "problems": problems}


def read_run(folder: Path) -> dict[str, Any]:
    """Settings, the numbers of every finished epoch, and the test accuracies if there are any."""
    run = RunFolder(folder)
    settings, history = run.settings(), run.history()
    shown = {name: settings.get(name) for name in _SETTINGS}
    shown |= {name: short_name(str(shown[name])) for name in ("model", "data")}
    return {
        "name": folder.name,
        "settings": shown,
        "planned": settings.get("epochs"),
        "epochs": [_epoch(record) for record in history],
        "components": _components(run, len(history[-1].get("fusion", ())) if history else 0),
        "results": run.test(),
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
    """The value; ValueError for numbers that no browser can parse."""
    json.dumps(value, allow_nan=False)
    return value


def _epoch(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in ("epoch", *_CURVES) if name in record} | {"fusion": record.get("fusion", [])}


def _components(run: RunFolder, count: int) -> list[str]:
    """Names of `count` fusion weights; an unfinished or damaged run has no adapter that would tell them."""
    try:
        names = [*component_names(read_config(run.path))] if count else []
    except DearError:
        names = []
    return names if len(names) == count else [CLS, *(f"token {i}" for i in range(1, count))][:count]
