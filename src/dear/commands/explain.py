"""dear explain: draws the reasons for a prediction."""

import argparse
from pathlib import Path

from dear.commands.shared import add_device_arguments, add_gain_argument
from dear.core.figure import check_suffix


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", metavar="RUN", help="folder made by `dear fit` or `dear train`")
    parser.add_argument("image", metavar="IMAGE", help="image file")
    parser.add_argument(
        "--out", type=Path, default=Path("explain.png"), help="PNG, SVG or PDF file to write (default: explain.png)"
    )
    parser.add_argument("--classes", type=Path, metavar="FILE", help="file of novel class names, one per line")
    add_gain_argument(parser)
    add_device_arguments(parser)


def run(args: argparse.Namespace) -> None:
    from dear.commands.predict import checked_gains, load_with_gain, read_classes

    check_suffix(args.out)
    gains = checked_gains(args.gain, args.run_folder)
    model = load_with_gain(args.run_folder, read_classes(args.classes), gains, args.precision, args.device)
    print(model.explain(args.image, args.out))
    print(f"wrote {args.out}")
