"""dear decide: what a finished run may promise, measured and stored with its adapter."""

import argparse
from pathlib import Path

from dear.commands.shared import add_device_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="folder made by `dear fit` or `dear train`")
    parser.add_argument(
        "--data", metavar="HELD_OUT", help="labelled images to measure on (default: those of the run, each left out)"
    )
    parser.add_argument("--cache", type=Path, metavar="DIR", help="folder of encoded images, as for `dear fit`")
    add_decision_arguments(parser)
    add_device_arguments(parser)


def add_decision_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reject", type=float, metavar="SHARE",
        help="answer none of these; 0.05: at most 5%% of own images, or of strangers if these are given")  # fmt: skip
    parser.add_argument("--strangers", metavar="FOLDER",
        help="images of no class, of which at most the share of --reject is answered; classes: estimate it by leaving "
        "classes out")  # fmt: skip
    parser.add_argument("--other", nargs="+", default=(), metavar="WORDS", help="what strangers show, in words")
    parser.add_argument("--coverage", type=float, metavar="SHARE",
        help="answer with a set of classes, which holds the true one in this share of images")  # fmt: skip
    parser.add_argument("--abstain", type=float, metavar="SHARE",
        help="answer only where this share of answers is right")  # fmt: skip


def run(args: argparse.Namespace) -> None:
    _decide(args, args.run_folder, args.data, args.device, args.precision)


def decide_if_asked(args: argparse.Namespace, device: str, precision: str) -> None:
    """The same at the end of `dear fit` and `dear train`, if one of the flags was given."""
    if args.other or any(given is not None for given in (args.reject, args.strangers, args.coverage, args.abstain)):
        print()
        _decide(args, args.out, None, device, precision)


def _decide(args: argparse.Namespace, run: Path, data: str | None, device: str, precision: str) -> None:
    from dear.decisions.decide import DecideConfig, decide_run

    asked = DecideConfig(args.reject, args.strangers, tuple(args.other), args.coverage, args.abstain)
    print(decide_run(run, asked, data, args.cache, device, precision))
