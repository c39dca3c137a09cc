"""dear world: look at Attribute World."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, default=Path("world.png"), help="where the picture goes (default: world.png)"
    )
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other pictures (default: 0)")
    parser.add_argument("--size", type=int, default=64, help="pixels a side of each picture (default: 64)")


def run(args: argparse.Namespace) -> None:
    from dear.data.world.sheet import contact_sheet
    from dear.errors import DearError
    from dear.files import atomic_path

    if args.out.suffix.lower() != ".png":
        raise DearError(f"--out {args.out} must end in .png.")
    if not 16 <= args.size <= 512:
        raise DearError(f"--size {args.size} must be from 16 to 512.")
    with atomic_path(args.out) as temporary:
        contact_sheet(args.seed, args.size).save(temporary)
    print(f"wrote {args.out}")
