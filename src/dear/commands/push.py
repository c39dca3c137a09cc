"""dear push: shares an adapter on the Hugging Face hub."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="folder made by `dear fit` or `dear train`")
    parser.add_argument("name", metavar="ORG/NAME", help="repository on the hub; created if it does not exist")
    parser.add_argument("--private", action="store_true", help="create the repository as private")


def run(args: argparse.Namespace) -> None:
    from dear.model.hub import push

    address, files = push(args.run_folder, args.name, args.private)
    print(f"pushed {', '.join(files)}")
    print(f'{address}    load it with dear.load("hf-hub:{args.name}")')
