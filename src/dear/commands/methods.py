"""dear methods: lists the values of `--method`."""

import argparse

from dear.core.table import Table, add_json_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json_argument(parser)


def run(args: argparse.Namespace) -> None:
    from dear.methods.registry import METHODS, ZERO_SHOT

    table = Table(["method", "what it does", "published", "fitted"])
    for name, info in METHODS.items():
        fitted = "transductively" if info.transductive else "in epochs" if info.trained else "at once"
        table.add(name, info.summary, info.published, None if name.startswith(ZERO_SHOT) else fitted)
    args.show("methods", table)
    print("\nSettings and published recipe of a method: dear train --method NAME --help")
