"""dear report: tables and figures of finished benchmark cells."""

import argparse
from pathlib import Path

from dear.core.table import add_json_argument

_MAX_MISSING = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json_argument(parser)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="--out of `dear bench` or `dear ablate`")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="folder of the report (default: report, in the first DIR)"
    )


def run(args: argparse.Namespace) -> None:
    from dear.bench.page import write_report

    out = args.out or args.folders[0] / "report"
    for chapter in write_report(args.folders, out):
        for block in chapter.blocks:
            if block.main:
                print(f"{block.title}\n{block.note}\n")
                args.show(block.title, block.table)
                print()
        if chapter.missing:
            more = len(chapter.missing) - _MAX_MISSING
            print("missing:", "; ".join(chapter.missing[:_MAX_MISSING]) + (f"; and {more} more" if more > 0 else ""))
            print()
    print(f"wrote {out / 'results.html'}, results.md, tables/ and figures/")
