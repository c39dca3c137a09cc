"""Running a grid of cells: what is done is skipped, what was interrupted goes on, and nothing finished is lost."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dear.bench.cell import PROTOCOLS, Cell, run_cell
from dear.bench.result_file import CELLS, read_result, result_files
from dear.bench.workbench import Workbench, shared_workbench
from dear.core.errors import DearError
from dear.core.files import to_json, write_text
from dear.core.lock import only_writer
from dear.core.metrics import harmonic_mean
from dear.core.progress import Progress
from dear.data import loading
from dear.data.resolve import is_world
from dear.methods.registry import METHODS, find_method, recipe_of, with_overrides
from dear.parallel.cluster import Cluster
from dear.training.config import RunConfig, TrainConfig

FEW_SHOTS = (1, 2, 4, 8, 16)
MOST_PASSES = 10  # over Attribute World, which is for trying out: as many as DeAR's recipe has
WORK = "work"

# What a cell says itself, or what changes how fast and where it runs but not what comes out.
_NOT_SETTINGS = {
    "method", "data", "data_root", "seed", "shots", "classes", "workers", "device", "tensorboard", "validate",
    "exact",  # always
}  # fmt: skip


def cell_settings(
    method: str, protocol: str, given: Mapping[str, Any], shots: int | None = None, constants_of: str | None = None
) -> dict[str, Any]:
    """The settings that decide the result of a method: its published ones for the protocol, and what was given.

    A method that is not trained depends on the backbone's and its own only. `constants_of`: see `recipe_of`.
    """
    settings = with_overrides(recipe_of(method, protocol, shots, constants_of), given)
    found = {**RunConfig.pick(settings).to_json(), **find_method(method).Config.pick(settings).to_json()}
    if METHODS[method].trained:
        found |= TrainConfig.pick(settings).to_json()
    return {name: value for name, value in found.items() if name not in _NOT_SETTINGS}


def shortened(method: str, protocol: str, dataset: str, given: Mapping[str, Any], shots: int) -> dict[str, Any]:
    """What a recipe is cut to on Attribute World, so that all methods can be tried in minutes; nothing elsewhere."""
    if not is_world(dataset) or given.keys() & {"epochs", "images_seen"} or not METHODS[method].trained:
        return {}
    recipe = recipe_of(method, protocol, shots)
    longer = "images_seen" in recipe or TrainConfig.pick(recipe).epochs > MOST_PASSES
    return {"epochs": MOST_PASSES} if longer else {}


def plan(
    protocol: str,
    datasets: Sequence[str],
    methods: Sequence[str],
    seeds: Sequence[int],
    given: Mapping[str, Any],
    shots: Sequence[int] = (),
    targets: Sequence[str] = (),
    split: str = "test",
    published_constants: bool = False,
) -> list[Cell]:
    """All cells of a grid, cheap methods first. Of several datasets, cross-dataset trains on the first.

    `given`: settings that the user asked for, of training and of any method; `published_constants`: and those that the
    authors of a method chose for a dataset.
    """
    if protocol not in PROTOCOLS:
        raise DearError(f"There is no protocol {protocol!r}: choose from {', '.join(PROTOCOLS)}.")
    transfer = protocol in ("cross-dataset", "domain")
    if transfer and not targets:
        raise DearError(f"{protocol} needs datasets to test on: give them after --targets.")
    if targets and not transfer:
        raise DearError(f"--targets belongs to cross-dataset and domain, not to {protocol}.")
    if transfer and split != "test":
        raise DearError(f"{protocol} is measured on test images: leave --split out.")
    shots = shots or (FEW_SHOTS if protocol == "few-shot" else (TrainConfig.pick(given).shots,))

    def settings(method: str, dataset: str, count: int) -> dict[str, Any]:
        asked = {**shortened(method, protocol, dataset, given, count), **given}
        return cell_settings(method, protocol, asked, count, dataset if published_constants else None)

    return [
        Cell(protocol, dataset, method, seed, count, settings(method, dataset, count), tuple(targets), split)
        for seed in seeds
        for dataset in datasets
        for method in sorted(methods, key=lambda name: METHODS[name].trained)
        for count in shots
    ]


def run_cells(
    cells: Sequence[Cell], out: Path, bench: Workbench, other_settings: bool = False, cluster: Cluster | None = None
) -> list[dict[str, Any]]:
    """The results of all cells, in order; those that `out` holds already are read, not run.

    With a cluster, many run at once; the results are those of one after the other on as many threads.
    """
    with only_writer(out):
        if not other_settings:
            _refuse_other_settings(cells, out)
        return _run_missing(cells, out, bench, cluster)


def _run_missing(cells: Sequence[Cell], out: Path, bench: Workbench, cluster: Cluster | None) -> list[dict[str, Any]]:
    by_name = {cell.name: cell for cell in cells}
    paths = {name: _result_file(out, cell) for name, cell in by_name.items()}
    results = {name: read_result(path) for name, path in paths.items() if path.exists()}
    if results:
        print(f"{len(results)} of {len(by_name)} cells are done already")
    with Progress("cells", len(by_name), "cell", len(results), leave=True) as bar:
        missing = [cell for name, cell in by_name.items() if name not in results]
        for cell, result in _results(missing, out, bench, cluster, bar):
            results[cell.name] = result
            bar.update()
            bar.write(f"{cell}: {_in_short(result)}")
    return [results[name] for name in by_name]


def _results(
    cells: Sequence[Cell], out: Path, bench: Workbench, cluster: Cluster | None, bar: Progress
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Cells and their results, which are on disk by then."""
    if cluster is None:
        for cell in cells:
            bar.note(str(cell))
            yield cell, _finish(cell, out, bench)
    elif cells:
        for cell, (result, warnings) in cluster.finished(partial(_finish_there, out, bench, cluster.cpus), cells):
            for line in warnings:
                bench.warn(line)
            if not (path := _result_file(out, cell)).exists():  # the worker has this folder for itself
                write_text(path, to_json(result) + "\n")
            yield cell, result


def _finish(cell: Cell, out: Path, bench: Workbench) -> dict[str, Any]:
    """Runs a cell, and writes its result where it was made: a killed process loses nothing that was finished."""
    work = out / WORK / cell.name
    result = run_cell(cell, bench, work)
    write_text(_result_file(out, cell), to_json(result) + "\n")
    shutil.rmtree(work, ignore_errors=True)
    return result


def _finish_there(
    out: Path, bench: Workbench, cpus: int, cell: Cell, device: str
) -> tuple[dict[str, Any], Sequence[str]]:
    """In a worker of a cluster: also what it would have warned of. Images are decoded by the CPUs beside the first."""
    loading.WORKERS = min(loading.WORKERS, cpus - 1)
    bench = shared_workbench(bench.states, bench.data_root, device, min(bench.workers, cpus - 1))
    return _finish(cell, out, bench), bench.warned


def _result_file(out: Path, cell: Cell) -> Path:
    return out / CELLS / f"{cell.name}.json"


def _refuse_other_settings(cells: Sequence[Cell], out: Path) -> None:
    """A table that mixes settings must be asked for."""

    def place(cell: Mapping[str, Any]) -> tuple[Any, ...]:
        variant = cell["variant"] and (cell["variant"]["ablation"], cell["variant"]["value"])
        keys = ("protocol", "dataset", "method", "seed", "shots", "split")
        return (*(cell[key] for key in keys), tuple(cell["targets"]), variant)

    there = {}
    for path in result_files(out):
        stored = read_result(path)["cell"]
        there[place(stored)] = stored["settings"]
    for cell in cells:
        settings = there.get(place(cell.to_json()), cell.settings)
        if changed := sorted(
            k for k in settings.keys() | cell.settings.keys() if settings.get(k) != cell.settings.get(k)
        ):
            raise DearError(
                f"{out} holds {cell} with other settings ({', '.join(changed)}): choose another --out, or add "
                "--other-settings to keep both."
            )


def _in_short(result: Mapping[str, Any]) -> str:
    found = result["evaluations"]
    chosen = [e for e in found if e["inference"] != "decoupled"]
    said = [f"{Path(e['name']).name} {e['accuracy']:.1f}" for e in chosen]
    if [e["name"] for e in chosen] == ["base", "novel"]:
        said.append(f"HM {harmonic_mean(chosen[0]['accuracy'], chosen[1]['accuracy']):.1f}")
    return f"{', '.join(said)}  ({sum(result['seconds'].values()):.0f} s)"
