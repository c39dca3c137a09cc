"""dear bench: a grid of methods, datasets and seeds under one of the paper's protocols."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dear.commands.train import add_constants_argument

if TYPE_CHECKING:
    from dear.bench.cell import Cell

PROTOCOLS = {
    "base-to-novel": "train on the first half of the classes, test both halves",
    "few-shot": "1, 2, 4, 8 and 16 images a class, all classes",
    "cross-dataset": "train on one dataset, test on others with other classes",
    "domain": "train on one dataset, test on others that show the same classes in another way",
}
_USUAL = ["zero-shot", "linear-probe", "tip-adapter", "dear", "experts"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    listed = "; ".join(f"{name}: {what}" for name, what in PROTOCOLS.items())
    parser.add_argument("protocol", choices=tuple(PROTOCOLS), metavar="PROTOCOL", help=listed)
    _add_methods(parser)
    parser.add_argument("--targets", nargs="+", default=[], metavar="DATA", help="cross-dataset, domain: tested on")
    add_constants_argument(parser)
    add_grid_arguments(parser)


def _add_methods(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--methods", nargs="+", default=_USUAL, metavar="METHOD",
        help=f"names of `dear methods`, or all (default: {' '.join(_USUAL)})",
    )  # fmt: skip


def add_settings(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    _add_methods(early)
    add_method_settings(parser, chosen_methods(early.parse_known_args(list(argv))[0].methods))


def chosen_methods(names: Sequence[str]) -> list[str]:
    from dear.methods.registry import METHODS, find_method

    chosen = list(METHODS) if "all" in names else list(names)
    for name in chosen:
        find_method(name)
    return chosen


def add_grid_arguments(parser: argparse.ArgumentParser) -> None:
    """What bench and ablate share."""
    from dear.core.config import number
    from dear.core.table import add_json_argument
    from dear.parallel.cluster import add_ray_arguments

    parser.add_argument("--datasets", nargs="+", default=["world:signs"], metavar="DATA", help="as --data elsewhere")
    parser.add_argument(
        "--seeds",
        nargs="+",
        type=number("--seeds", 0, 2**32 - 1),
        default=[1, 2, 3],
        metavar="SEED",
        help="default: 1 2 3",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of results, one JSON a cell")
    parser.add_argument(
        "--split", choices=("test", "held-out"), default="test",
        help="measure on test images, or on training and validation images that were not drawn (to choose settings)",
    )  # fmt: skip
    parser.add_argument(
        "--states", type=Path, metavar="DIR", help="keep the trunk's states of images here, for all cells"
    )
    parser.add_argument("--other-settings", action="store_true", help="add cells to a DIR that has them with others")
    add_ray_arguments(parser, "cell")
    add_json_argument(parser)


def add_method_settings(parser: argparse.ArgumentParser, methods: Sequence[str]) -> None:
    """A flag counts for every method that has it; what is not given is each method's own recipe."""
    from dear.core.config import add_arguments as add

    add(parser, *_kinds(methods))


def _kinds(methods: Sequence[str]) -> list[Any]:
    from dear.methods.registry import find_method
    from dear.training.config import RunConfig, TrainConfig

    return [RunConfig, TrainConfig, *dict.fromkeys(find_method(name).Config for name in methods)]


def given_settings(args: argparse.Namespace, methods: Sequence[str]) -> dict[str, Any]:
    from dear.core.config import given_arguments

    return given_arguments(args, *_kinds(methods))


def run_grid(cells: "Sequence[Cell]", args: argparse.Namespace, given: dict[str, Any]) -> list[dict[str, Any]]:
    from dear.bench.grid import run_cells
    from dear.bench.workbench import Workbench
    from dear.parallel.cluster import given_cluster
    from dear.training.config import TrainConfig

    train = TrainConfig.pick(given)
    bench = Workbench(args.states, given.get("data_root"), train.device, train.workers)
    return run_cells(cells, args.out, bench, args.other_settings, given_cluster(args, train.device))


def run(args: argparse.Namespace) -> None:
    from dear.bench.grid import MOST_PASSES, plan, shortened
    from dear.bench.tables import main_tables

    methods = chosen_methods(args.methods)
    given = given_settings(args, methods)
    shots = [args.shots] if "shots" in args else []
    cells = plan(
        args.protocol,
        args.datasets,
        methods,
        args.seeds,
        given,
        shots,
        args.targets,
        args.split,
        args.published_constants,
    )
    if any(shortened(cell.method, cell.protocol, cell.dataset, given, cell.shots) for cell in cells):
        print(
            f"Attribute World is for trying out: no method takes more than {MOST_PASSES} passes over it here. "
            "For more: --epochs N or --images-seen N; for a method's own recipe: dear train --method NAME."
        )
    results = run_grid(cells, args, given)
    for title, table in main_tables(results).items():
        print(f"\n{title}")
        args.show(title, table)
    print(f"\n{len(results)} results in {args.out}    all tables and figures: dear report {args.out}")
