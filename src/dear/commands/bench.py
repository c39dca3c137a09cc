"""dear bench: a grid of methods, datasets and seeds under one of the paper's protocols."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dear.evaluation.workbench import Workbench

PROTOCOLS = {
    "base-to-novel": "train on the first half of the classes, test both halves",
    "few-shot": "1, 2, 4, 8 and 16 images a class, all classes",
    "cross-dataset": "train on one dataset, test on others with other classes",
    "domain": "train on one dataset, test on others that show the same classes in another way",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    listed = "; ".join(f"{name}: {what}" for name, what in PROTOCOLS.items())
    parser.add_argument("protocol", choices=tuple(PROTOCOLS), metavar="PROTOCOL", help=listed)
    parser.add_argument(
        "--methods", nargs="+", default=["zero-shot", "linear-probe", "tip-adapter", "dear"], metavar="METHOD",
        help="zero-shot, zero-shot-ensemble, linear-probe, tip-adapter, dear (default: all but the ensemble)",
    )  # fmt: skip
    parser.add_argument("--targets", nargs="+", default=[], metavar="DATA", help="cross-dataset, domain: tested on")
    add_grid_arguments(parser)


def add_grid_arguments(parser: argparse.ArgumentParser) -> None:
    """What bench and ablate share."""
    from dear.config import add_arguments as add_settings
    from dear.methods.config import DearConfig
    from dear.training.config import RunConfig, TrainConfig

    parser.add_argument("--datasets", nargs="+", default=["world:signs"], metavar="DATA", help="as --data elsewhere")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], metavar="SEED", help="default: 1 2 3")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of results, one JSON a cell")
    parser.add_argument(
        "--split", choices=("test", "held-out"), default="test",
        help="measure on test images, or on training and validation images that were not drawn (to choose settings)",
    )  # fmt: skip
    parser.add_argument(
        "--states", type=Path, metavar="DIR", help="keep the trunk's states of images here, for all cells"
    )
    parser.add_argument("--other-settings", action="store_true", help="add cells to a DIR that has them with others")
    add_settings(parser, RunConfig, TrainConfig, DearConfig)


def grid_configs(args: argparse.Namespace) -> tuple[Any, Any, Any]:
    from dear.config import from_arguments
    from dear.errors import DearError
    from dear.methods.config import DearConfig
    from dear.training.config import RunConfig, TrainConfig

    if any(seed < 0 for seed in args.seeds):
        raise DearError("--seeds must be whole numbers from 0 up.")
    configs = from_arguments(args, RunConfig, TrainConfig, DearConfig)
    return configs[0], configs[1], configs[2]


def workbench(args: argparse.Namespace, configs: tuple[Any, Any, Any]) -> "Workbench":
    from dear.evaluation.workbench import Workbench

    run, train, _ = configs
    return Workbench(args.states, run.data_root, train.device, train.workers)


def run(args: argparse.Namespace) -> None:
    from dear.evaluation.bench import plan, run_cells
    from dear.evaluation.report_tables import main_tables

    configs = grid_configs(args)
    shots = [args.shots] if "shots" in args else []
    cells = plan(args.protocol, args.datasets, args.methods, args.seeds, configs, shots, args.targets, args.split)
    results = run_cells(cells, args.out, workbench(args, configs), args.other_settings)
    for title, table in main_tables(results).items():
        print(f"\n{title}\n{table.text()}")
    print(f"\n{len(results)} results in {args.out}    all tables and figures: dear report {args.out}")
