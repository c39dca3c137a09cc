"""dear methods: what `--method` takes."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dear.tables import add_json_argument

    add_json_argument(parser)


def run(args: argparse.Namespace) -> None:
    from dear.methods.registry import METHODS
    from dear.tables import Table

    table = Table(["method", "what it does", "published", "trained"])
    for name, listed in METHODS.items():
        table.add(name, listed.line, listed.published, "yes" if listed.trained else "no")
    args.show("methods", table)
    print("\nSettings of one, with its published recipe: dear train --method NAME --help")
