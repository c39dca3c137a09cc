"""A grid of cells: planned from names, run in order or on a cluster; finished cells are kept, killed ones continue."""

import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dear.bench.planning import constant_key
from dear.bench.results import FEW_SHOT, FEW_SHOTS, PROTOCOLS, Cell, CellResult, result_path, results_in, write_result
from dear.bench.run_cell import Workbench, run_cell, shared_workbench
from dear.clip import MINI
from dear.clip.text_table import TextTable
from dear.core.errors import DearError
from dear.core.lock import only_writer
from dear.core.metrics import harmonic_mean
from dear.core.names import AUTO, DECOUPLED
from dear.core.progress import Progress
from dear.core.runtime import pick_device, pick_precision, precision_name
from dear.data import loading
from dear.data.resolve import is_world
from dear.methods.registry import METHODS, find_method, recipe_of, with_overrides
from dear.parallel.cluster import Cluster
from dear.training.config import RunConfig, TrainConfig
from dear.trials.outcome import BASE, NOVEL, TEST

MAX_WORLD_EPOCHS = 10  # on Attribute World, which is for trying out: as many as DeAR's recipe has
WORK = "work"

# Fields of the cell itself, and settings that change how fast and where it runs, but not the result.
_NOT_SETTINGS = {
    "method", "data", "data_root", "seed", "shots", "classes", "workers", "device", "report_to", "validate",
    "compile", "deterministic",
    "few_shot", "fast_decode",  # never
}  # fmt: skip
# Settings that came after the first results: no part of a cell while unset, so that earlier cells are still found.
_LATER = {"steps_per_shot", "text_features"}


def cell_settings(
    method: str, protocol: str, overrides: Mapping[str, Any], shots: int | None = None, constants_of: str | None = None
) -> dict[str, Any]:
    """The settings that decide the result of a method: its published ones for the protocol, then the user's.

    A method that is not trained depends only on the backbone's settings and its own. `constants_of`: see `recipe_of`.
    """
    settings = with_overrides(recipe_of(method, protocol, shots, constants_of), overrides)
    used = {**RunConfig.pick(settings).to_json(), **find_method(method).Config.pick(settings).to_json()}
    if METHODS[method].trained:
        used |= TrainConfig.pick(settings).to_json()
    training = TrainConfig.pick(settings)
    if training.precision == "auto":  # what it means here; it stays where it means fp32, so that cells keep their names
        taken = precision_name(pick_precision("auto", pick_device(training.device)))
        used |= {} if taken == "fp32" else {"precision": taken}
    elif training.precision != "fp32":
        used["precision"] = training.precision
    if used["text_features"]:
        used["text_features_sha256"] = _table_hash(used["text_features"])
    unset = {name for name in _LATER if used.get(name) is None}
    return {name: value for name, value in used.items() if name not in _NOT_SETTINGS | unset}


@cache
def _table_hash(file: str) -> str:
    return TextTable.read(file).sha256[:16]


def shorter_on_world(
    method: str, protocol: str, dataset: str, overrides: Mapping[str, Any], shots: int
) -> dict[str, Any]:
    """Settings that cut a long recipe on Attribute World, so that all methods run in minutes; none elsewhere."""
    lengths = {"epochs", "images_seen", "steps_per_shot"}
    if not is_world(dataset) or overrides.keys() & lengths or not METHODS[method].trained:
        return {}
    recipe = recipe_of(method, protocol, shots)
    longer = "steps_per_shot" in recipe or TrainConfig.pick(recipe).epochs > MAX_WORLD_EPOCHS
    return {"epochs": MAX_WORLD_EPOCHS} if longer else {}


def plan(
    protocol: str,
    datasets: Sequence[str],
    methods: Sequence[str],
    seeds: Sequence[int],
    overrides: Mapping[str, Any],
    shots: Sequence[int] = (),
    targets: Sequence[str] = (),
    split: str = TEST,
    published_constants: bool = False,
) -> list[Cell]:
    """All cells of a grid, cheap methods first.

    `overrides`: the user's settings, of training and of any method. `published_constants`: also use the settings that
    the authors of a method chose for a dataset.
    """
    if protocol not in PROTOCOLS:
        raise DearError(f"There is no protocol {protocol!r}: choose from {', '.join(PROTOCOLS)}.")
    if overrides.get("few_shot"):
        raise DearError("--few-shot is one list of one dataset: use it with `dear train`.")
    has_targets = PROTOCOLS[protocol].has_targets
    if has_targets and not targets:
        raise DearError(f"{protocol} needs datasets to test on: give them after --targets.")
    if targets and not has_targets:
        raise DearError(f"--targets belongs to cross-dataset and domain, not to {protocol}.")
    if has_targets and split != TEST:
        raise DearError(f"{protocol} is measured on test images: leave --split out.")
    if overrides.get("model", AUTO) == AUTO and all(map(is_world, datasets)):
        overrides = {**overrides, "model": MINI}  # for others the command chooses, and says which
    shots = shots or (FEW_SHOTS if protocol == FEW_SHOT else (TrainConfig.pick(overrides).shots,))

    def settings(method: str, dataset: str, count: int) -> dict[str, Any]:
        changes = {**shorter_on_world(method, protocol, dataset, overrides, count), **overrides}
        return cell_settings(method, protocol, changes, count, dataset if published_constants else None)

    return [
        Cell(protocol, dataset, method, seed, count, settings(method, dataset, count), tuple(targets), split, None)
        for seed in seeds
        for dataset in datasets
        for method in sorted(methods, key=lambda name: METHODS[name].trained)
        for count in shots
    ]


def run_cells(
    cells: Sequence[Cell], out: Path, bench: Workbench, other_settings: bool = False, cluster: Cluster | None = None
) -> list[CellResult]:
    """The results of all cells, in order; cells that `out` already holds are read, not run.

    With a cluster, many run at once; the results equal those of one after the other on as many threads.
    """
    with only_writer(out):
        stored = results_in(out)
        if not other_settings:
            _refuse_other_settings(cells, [result.cell for result in stored], out)
        return _run_missing(cells, {result.cell.name: result for result in stored}, out, bench, cluster)


def _run_missing(
    cells: Sequence[Cell], stored: Mapping[str, CellResult], out: Path, bench: Workbench, cluster: Cluster | None
) -> list[CellResult]:
    by_name = {cell.name: cell for cell in cells}
    results = {name: stored[name] for name in by_name if name in stored}
    if results:
        print(f"{len(results)} of {len(by_name)} cells are done already")
    with Progress("cells", len(by_name), "cell", len(results), leave=True) as bar:
        missing = [cell for name, cell in by_name.items() if name not in results]
        first: dict[str, str] = {}  # of cells that cannot differ: the one that is run
        for cell in [*(result.cell for result in results.values()), *missing]:
            if (key := constant_key(cell)) is not None:
                first.setdefault(key, cell.name)
        copies = [cell for cell in missing if first.get(constant_key(cell) or "", cell.name) != cell.name]
        to_run = [cell for cell in missing if cell not in copies]
        with closing(_run_each(to_run, out, bench, cluster, bar)) as finished:  # an interrupt ends tasks at once
            for cell, result in finished:
                results[cell.name] = result
                bar.update()
                bar.write(f"{cell}: {_in_short(result)}")
        for cell in copies:
            results[cell.name] = replace(results[first[constant_key(cell) or ""]], cell=cell)
            write_result(out, results[cell.name])
            bar.update()
    return [results[name] for name in by_name]


def _run_each(
    cells: Sequence[Cell], out: Path, bench: Workbench, cluster: Cluster | None, bar: Progress
) -> Generator[tuple[Cell, CellResult], None, None]:
    """Cells and their results, which are on disk by then."""
    if cluster is None:
        bench.cells = cells
        for cell in cells:
            bar.note(str(cell))
            yield cell, _run_and_write(cell, out, bench)
    elif cells:
        with closing(cluster.as_completed(partial(_run_in_worker, out, bench, cluster.cpus), cells)) as completed:
            for cell, (result, warnings) in completed:
                for line in warnings:
                    bench.warn(line)
                if not result_path(out, cell).exists():  # the worker does not share this folder
                    write_result(out, result)
                yield cell, result


def _run_and_write(cell: Cell, out: Path, bench: Workbench) -> CellResult:
    """Runs a cell and writes its result in the same process: one that is killed loses no finished cell."""
    work = out / WORK / cell.name
    result = run_cell(cell, bench, work)
    write_result(out, result)
    shutil.rmtree(work, ignore_errors=True)
    return result


def _run_in_worker(out: Path, bench: Workbench, cpus: int, cell: Cell, device: str) -> tuple[CellResult, Sequence[str]]:
    """The result and warnings of a cell, in a worker of a cluster. All its CPUs but one decode images."""
    loading.WORKERS = min(loading.WORKERS, cpus - 1)
    bench = shared_workbench(
        bench.cache, bench.data_root, device, min(cpus - 1 if bench.workers is None else bench.workers, cpus - 1)
    )
    return _run_and_write(cell, out, bench), bench.warnings


def _refuse_other_settings(cells: Sequence[Cell], stored: Sequence[Cell], out: Path) -> None:
    """Refuses to mix settings in one table, unless the user asks for it."""

    def place(cell: Cell) -> tuple[Any, ...]:
        row = cell.variant and (cell.variant.ablation, cell.variant.value)
        return cell.protocol, cell.dataset, cell.method, cell.seed, cell.shots, cell.split, cell.targets, row

    settings_at = {place(cell): cell.settings for cell in stored}
    for cell in cells:
        new, old = cell.settings, settings_at.get(place(cell), cell.settings)
        if changed := sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name)):
            raise DearError(
                f"{out} holds {cell} with other settings ({', '.join(changed)}): choose another --out, or add "
                "--other-settings to keep both."
            )


def _in_short(result: CellResult) -> str:
    accuracies = {outcome.part: outcome.accuracy for outcome in result.outcomes if outcome.inference != DECOUPLED}
    parts = [f"{Path(name).name} {accuracy:.1f}" for name, accuracy in accuracies.items()]
    if list(accuracies) == [BASE, NOVEL]:
        parts.append(f"HM {harmonic_mean(accuracies[BASE], accuracies[NOVEL]):.1f}")
    return f"{', '.join(parts)}  ({result.seconds.fit + result.seconds.evaluate:.0f} s)"
