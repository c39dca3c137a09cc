"""dear demo: the main job on the embedded model and world."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, default=Path("dear-demo"), help="folder for the pictures (default: dear-demo)"
    )


def run(args: argparse.Namespace) -> None:
    from dear.commands import world, zero_shot

    world.run(argparse.Namespace(out=args.out / "world.png", seed=0))
    zero_shot.run(argparse.Namespace(model="dear-mini", pretrained=None, device="auto", data=None))
