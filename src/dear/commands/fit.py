"""dear fit: the best of the methods without training, in seconds."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dear.commands.decide import add_decision_arguments, decide_if_asked
from dear.commands.shared import add_device_arguments
from dear.commands.train import print_next
from dear.core.config import add_arguments as add
from dear.core.config import given_arguments
from dear.core.table import add_json_argument
from dear.data.resolve import HELP
from dear.trials.fit import FitConfig, fit_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", help=HELP)
    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="folder of the run and its adapter")
    parser.add_argument(
        "--thorough", action="store_true", help="also compare trained methods, by cross-validation: minutes"
    )
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="folder for encoded images (default: dear in your cache folder)"
    )
    add_decision_arguments(parser)
    add_device_arguments(parser)
    add_json_argument(parser)


def add_settings(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    add(parser, FitConfig, without=("data",))


def run(args: argparse.Namespace) -> None:
    settings = {**given_arguments(args, FitConfig), "data": args.data}
    result = fit_run(FitConfig(**settings), args.device, args.out, args.cache, args.thorough, precision=args.precision)
    args.show("comparison", result)
    print_next(args.out)
    decide_if_asked(args, args.device, args.precision)
