"""dear methods: what `--method` takes."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> None:
    from dear.methods.registry import METHODS
    from dear.tables import Table

    table = Table(["method", "what it does", "published", "trained"])
    for name, listed in METHODS.items():
        table.add(name, listed.line, listed.published, "yes" if listed.trained else "no")
    print(table.text())
    print("\nSettings of one, with its published recipe: dear train --method NAME --help")
