"""dear world: draws a contact sheet of Attribute World."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dear.core.config import number

    parser.add_argument("--out", type=Path, default=Path("world.png"), help="PNG file to write (default: world.png)")
    parser.add_argument(
        "--seed", type=number("--seed", 0, 2**63 - 1), default=0, help="random seed of the pictures (default: 0)"
    )
    parser.add_argument(
        "--size", type=number("--size", 16, 512), default=64, help="side length of each picture in pixels (default: 64)"
    )


def run(args: argparse.Namespace) -> None:
    from dear.core.figure import check_suffix
    from dear.core.files import atomic_path
    from dear.data.world.sheet import world_sheet

    check_suffix(args.out, (".png",))
    with atomic_path(args.out) as temporary:
        world_sheet(args.seed, args.size).save(temporary)
    print(f"wrote {args.out}")
