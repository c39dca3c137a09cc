"""dear methods: lists the values of `--method`."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dear.core.table import add_json_argument

    add_json_argument(parser)


def run(args: argparse.Namespace) -> None:
    from dear.core.table import Table
    from dear.methods.registry import METHODS

    table = Table(["method", "what it does", "published", "trained"])
    for name, info in METHODS.items():
        trained = "transductive" if info.transductive else "yes" if info.trained else "no"
        table.add(name, info.summary, info.published, trained)
    args.show("methods", table)
    print("\nSettings and published recipe of a method: dear train --method NAME --help")
