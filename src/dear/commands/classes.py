"""dear classes add | remove | rename: classes that come, go or change their name after the fit."""

import argparse
from pathlib import Path

from dear.commands.shared import add_action


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="add | remove | rename", required=True)
    for action in (
        add_action(actions, "add", _add, "fit a run again with more classes, a folder of images each, in seconds"),
        add_action(actions, "remove", _remove_class, "leave classes out; the scores of the others stay"),
        add_action(actions, "rename", _rename, "give a class another name; its text follows the name"),
    ):
        action.add_argument("run_folder", type=Path, metavar="RUN", help="folder made by `dear fit` or `dear train`")
        if action.prog.endswith("add"):
            action.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="images of a new class")
            action.add_argument("--device", default="auto", help="cpu, cuda, cuda:N, mps (default: auto)")
        elif action.prog.endswith("remove"):
            action.add_argument("names", nargs="+", metavar="CLASS")
        else:
            action.add_argument("old", metavar="CLASS")
            action.add_argument("new", metavar="NAME")
        action.add_argument("--out", type=Path, required=True, metavar="NEW", help="folder of the new run")


def run(args: argparse.Namespace) -> None:
    names = args.action(args)
    print(f"{len(names)} classes: {', '.join(names)}\nrun: {args.out}")


def _add(args: argparse.Namespace) -> tuple[str, ...]:
    from dear.model.classes import add_classes

    return add_classes(args.run_folder, args.folders, args.out, args.device)


def _remove_class(args: argparse.Namespace) -> tuple[str, ...]:
    from dear.model.classes import remove_classes

    return remove_classes(args.run_folder, args.names, args.out)


def _rename(args: argparse.Namespace) -> tuple[str, ...]:
    from dear.model.classes import rename_class

    return rename_class(args.run_folder, args.old, args.new, args.out)
