"""dear train: adapt a backbone to classes from a few images each."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dear.config import add_arguments as add_settings
    from dear.methods.config import DearConfig
    from dear.training.config import RunConfig, TrainConfig

    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="folder of the run; becomes the adapter")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out after an interruption")
    parser.add_argument("--states", type=Path, metavar="DIR", help="with --fixed-views: where their states are kept")
    add_settings(parser, RunConfig, TrainConfig, DearConfig)


def run(args: argparse.Namespace) -> None:
    from dear.config import from_arguments
    from dear.methods.config import DearConfig
    from dear.training.config import RunConfig, TrainConfig
    from dear.training.run import train_run

    run_config, train_config, method = from_arguments(args, RunConfig, TrainConfig, DearConfig)
    result = train_run(run_config, method, train_config, args.out, args.resume, args.states)
    print("test accuracy (%): " + "  ".join(f"{name} {value:.1f}" for name, value in result.items()))
    print(f"adapter: {args.out}    try: dear predict {args.out} IMAGE")
