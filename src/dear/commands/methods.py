"""dear methods: what `--method` takes."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dear.core.table import add_json_argument

    add_json_argument(parser)


def run(args: argparse.Namespace) -> None:
    from dear.core.table import Table
    from dear.methods.registry import METHODS

    table = Table(["method", "what it does", "published", "trained"])
    for name, listed in METHODS.items():
        trained = "transductive" if listed.transductive else "yes" if listed.trained else "no"
        table.add(name, listed.summary, listed.published, trained)
    args.show("methods", table)
    print("\nSettings of one, with its published recipe: dear train --method NAME --help")
