"""dear bench: a grid of methods, datasets and seeds under one of the paper's protocols."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dear.bench.grid import MAX_WORLD_EPOCHS, plan, run_cells, shorter_on_world
from dear.bench.planning import GridPlan
from dear.bench.results import CELL_SPLITS, PROTOCOLS, Cell, CellResult, results_in, stored_cells
from dear.bench.run_cell import Workbench
from dear.bench.tables import main_tables
from dear.commands.shared import add_seeds_argument
from dear.commands.train import add_constants_argument
from dear.core.config import add_arguments as add
from dear.core.config import given_arguments
from dear.core.errors import warn
from dear.core.names import AUTO
from dear.core.table import Table, add_json_argument
from dear.core.words import counted
from dear.data.resolve import resolve_dataset
from dear.methods.registry import METHODS, find_method, require_method, working_methods
from dear.parallel.cluster import add_ray_arguments, cluster_from_args
from dear.training.backbone import choose_backbone
from dear.training.config import RunConfig, TrainConfig
from dear.trials.compare import DEFAULT_METHODS
from dear.trials.outcome import TEST


def add_arguments(parser: argparse.ArgumentParser) -> None:
    summaries = "; ".join(f"{name}: {protocol.summary}" for name, protocol in PROTOCOLS.items())
    parser.add_argument("protocol", choices=tuple(PROTOCOLS), metavar="PROTOCOL", help=summaries)
    _add_methods(parser)
    parser.add_argument(
        "--targets", nargs="+", default=[], metavar="DATA", help="datasets to test on, for cross-dataset and domain"
    )
    add_constants_argument(parser)
    add_grid_arguments(parser)


def _add_methods(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--methods", nargs="+", default=[], metavar="METHOD",
        help=f"names from `dear methods`, or all that work with the backbone (default: {' '.join(DEFAULT_METHODS)})",
    )  # fmt: skip


def add_settings(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    _add_methods(early)
    add_method_settings(parser, chosen_methods(early.parse_known_args(list(argv))[0].methods))


def chosen_methods(names: Sequence[str]) -> list[str]:
    """The methods of these names; those of `dear compare` without any."""
    chosen = list(METHODS) if "all" in names else list(names or DEFAULT_METHODS)
    for name in chosen:
        find_method(name)
    return chosen


def run(args: argparse.Namespace) -> None:
    methods = chosen_methods(args.methods)
    overrides = overridden_settings(args, methods, [*args.datasets, *args.targets])
    model, text_table = overrides["model"], bool(overrides.get("text_features"))
    if not args.methods or "all" in args.methods:
        working = working_methods(model, text_table)
        methods = [name for name in methods if name in working]
    for name in methods:
        require_method(name, model, text_table)
    shots = [args.shots] if "shots" in args else []
    cells = plan(
        args.protocol, args.datasets, methods, args.seeds, overrides, shots, args.targets, args.split,
        args.published_constants,
    )  # fmt: skip
    if any(shorter_on_world(cell.method, cell.protocol, cell.dataset, overrides, cell.shots) for cell in cells):
        print(
            f"Attribute World is for quick trials: methods train for at most {MAX_WORLD_EPOCHS} epochs on it here. "
            "For more: --epochs N or --images-seen N; for a method's own recipe: dear train --method NAME."
        )
    results = run_grid(cells, args, overrides)
    show_tables(main_tables(results), len(results), args)
    for line in not_above_chance(results):
        warn(line)


# Shared by bench and ablate


def after_interrupt(args: argparse.Namespace) -> str:
    done = len(list(stored_cells(args.out)))
    if not done:
        return "no cell was finished"
    return f"{counted(done, 'finished cell')} in {args.out}: the same command continues"


def add_grid_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--datasets", nargs="+", default=["world:signs"], metavar="DATA",
        help="datasets, named as for --data of `dear train` (default: world:signs)",
    )  # fmt: skip
    add_seeds_argument(parser, [1, 2, 3], "1 2 3")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of results, one JSON per cell")
    parser.add_argument(
        "--split", choices=CELL_SPLITS, default=TEST,
        help="images to measure on: test, or those for training and validation that were not trained on (to choose by)",
    )  # fmt: skip
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="folder for cached states of images, shared by all cells"
    )
    parser.add_argument(
        "--other-settings", action="store_true",
        help="allow cells in --out that differ from the new ones only in their settings",
    )  # fmt: skip
    add_ray_arguments(parser, "cell")
    add_json_argument(parser)


def add_method_settings(parser: argparse.ArgumentParser, methods: Sequence[str]) -> None:
    """One flag per setting, for all methods that have it; the defaults are each method's own recipe."""
    add(parser, *_configs(methods))


def overridden_settings(args: argparse.Namespace, methods: Sequence[str], data: Sequence[str]) -> dict[str, Any]:
    """The user's settings, with a backbone that suits the data if none is named."""
    settings = given_arguments(args, *_configs(methods))
    for name in data:
        resolve_dataset(name, root=settings.get("data_root"))  # wrong names are refused first
    choice = choose_backbone(settings.get("model", AUTO), settings.get("pretrained"), data)
    choice.say()
    return {**settings, "model": choice.model, "pretrained": choice.pretrained}


def _configs(methods: Sequence[str]) -> list[Any]:
    return [RunConfig, TrainConfig, *dict.fromkeys(find_method(name).Config for name in methods)]


def run_grid(cells: Sequence[Cell], args: argparse.Namespace, overrides: dict[str, Any]) -> list[CellResult]:
    train = TrainConfig.pick(overrides)
    bench = Workbench(args.cache, overrides.get("data_root"), train.device, train.workers)
    plan = GridPlan(cells, bench)
    print(plan.describe({result.cell.name for result in results_in(args.out)}), flush=True)
    return run_cells(plan.cells, args.out, bench, args.other_settings, cluster_from_args(args, train.device))


def not_above_chance(results: Sequence[CellResult]) -> list[str]:
    """A line per method and dataset whose accuracy could be a guess."""
    lines = {}
    for result in results:
        for one in result.outcomes:
            if one.could_be_guessed:
                what = f"{result.cell.method} on {result.cell.dataset} ({one.part})"
                lines[what] = f"{what}: {one.accuracy:.1f}% of {len(one.per_class)} classes is not above chance"
    return list(lines.values())


def show_tables(tables: dict[str, Table], results: int, args: argparse.Namespace) -> None:
    for title, table in tables.items():
        print(f"\n{title}")
        args.show(title, table)
    print(f"\n{counted(results, 'result')} in {args.out}    all tables and figures: dear report {args.out}")
