"""dear train: adapts a backbone to classes from a few images each."""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from dear.commands.decide import add_decision_arguments, decide_if_asked
from dear.core.config import add_arguments as add
from dear.core.config import given_arguments
from dear.core.files import read_json
from dear.core.runtime import pick_device
from dear.methods.registry import find_method, recipe_of
from dear.parallel.processes import process_group
from dear.training.adapter import read_config
from dear.training.config import SingleRunConfig, TrainConfig
from dear.training.estimate import parse_duration
from dear.training.run_folder import RESULTS_PAGE, RunFolder
from dear.trials.train import run_settings, train_run

_INDEX = "dear index {} IMAGES --out gallery"
_NEXT = {
    "dear predict {} IMAGE": "classify images; --json, --csv",
    "dear explain {} IMAGE": "draw the reasons for a prediction",
    "dear serve {} --page": "open a local page",
    _INDEX: "search by an image or a sentence",
    "dear push {} ORG/NAME": "share the adapter",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="folder of the run and its adapter")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out after an interruption")
    parser.add_argument(
        "--time-limit", metavar="TIME", help="end after about this time, with fewer epochs: 90s, 5m, 1h"
    )
    parser.add_argument("--cache", type=Path, metavar="DIR", help="folder for cached states of images, shared by runs")
    add_decision_arguments(parser)
    add_constants_argument(parser)


def add_constants_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--published-constants", action="store_true",
        help="also use the settings that a method's authors chose per dataset: not a fair comparison",
    )  # fmt: skip


def add_settings(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    method = early_method(argv)
    add(parser, SingleRunConfig, TrainConfig, find_method(method).Config, defaults=recipe_of(method))


def run(args: argparse.Namespace) -> None:
    settings = given_arguments(args, SingleRunConfig, TrainConfig, find_method(chosen_method(args)).Config)
    run_config, method, train = run_settings(settings, args.published_constants)
    limit = None if args.time_limit is None else parse_duration(args.time_limit)
    with process_group(pick_device(train.device)):
        result = train_run(run_config, method, train, args.out, args.resume, args.cache, limit)
        print(f"\n{result}\n")
        print(f"pictures of the mistakes, and all numbers: {args.out / RESULTS_PAGE}")
        print_next(args.out)
    decide_if_asked(args, train.device, train.precision)


def print_next(out: Path) -> None:
    """Prints where the adapter is, and commands that use it."""
    by_attribute = {_INDEX: "search by attribute"} if len(read_config(out)["components"]) > 1 else {}
    commands = {command.format(shlex.quote(str(out))): what for command, what in (_NEXT | by_attribute).items()}
    width = max(map(len, commands))
    print(f"adapter: {out}\n\nnext:", *(f"{c:{width}}  {what}" for c, what in commands.items()), sep="\n  ")


def after_interrupt(args: argparse.Namespace) -> str:
    """The last line of an interrupted command: the state of its run."""
    state = RunFolder(args.out).state()
    return f"{state}: the same command with --resume continues" if state else "nothing was finished"


def early_method(argv: Sequence[str], default: str | None = None) -> str:
    """The method on the command line, read before the full parser, which has its settings as flags."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--method", default=argparse.SUPPRESS)
    early.add_argument("--config")
    return chosen_method(early.parse_known_args(list(argv))[0], default)


def chosen_method(args: argparse.Namespace, default: str | None = None) -> str:
    """The method by flag, else by the config file, else the default."""
    if "method" in args:
        return args.method
    file = read_json(args.config) if args.config else {}
    name = file.get("method") if isinstance(file, dict) else None
    return name if isinstance(name, str) else default or SingleRunConfig().method
