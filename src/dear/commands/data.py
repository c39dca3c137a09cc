"""dear data: lists the known datasets, and checks one dataset for problems."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dear.data.known import KnownDataset

_MOST_CLASSES = 30  # that a terminal shows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dear.core.config import number
    from dear.core.table import add_json_argument
    from dear.data.resolve import HELP

    actions = parser.add_subparsers(metavar="list | check", required=True)
    root = "folder of the known datasets, in CoOp's layout"

    what = "list the known datasets, which of them are on this machine, and how to get them; nothing is downloaded"
    listing = actions.add_parser("list", help=what, description=what[0].upper() + what[1:] + ".")
    listing.add_argument("--data-root", type=Path, metavar="DIR", help=root)
    add_json_argument(listing)
    listing.set_defaults(action=_list)

    what = "read every image of a dataset, and compare its counts with the published ones"
    check = actions.add_parser("check", help=what, description=what[0].upper() + what[1:] + ".")
    check.add_argument("data", metavar="DATA", help=HELP)
    check.add_argument("--data-root", metavar="DIR", help=root)
    check.add_argument(
        "--shots",
        type=number("--shots", 1, 10**6),
        default=16,
        help="smallest number of training images per class (default: 16)",
    )
    add_json_argument(check)
    check.set_defaults(action=_check)


def run(args: argparse.Namespace) -> None:
    args.action(args)


def _list(args: argparse.Namespace) -> None:
    from dear.core.errors import DearError
    from dear.core.table import Table
    from dear.data.known import COOP, KNOWN

    if args.data_root is not None and not args.data_root.is_dir():
        raise DearError(f"There is no folder {args.data_root}: --data-root must be the folder of the datasets.")
    table = Table(["dataset", "folder", "classes", "train", "val", "test", "found"])
    for entry in KNOWN:
        counts = (n or None for n in entry.image_counts)
        table.add(entry.name, entry.folder, entry.class_count, *counts, _status(entry, args.data_root))
    args.show("datasets", table)
    print("\nHow to get each dataset, into its folder:")
    for entry in KNOWN:
        print(f"  {entry.name}: {entry.instructions.replace(COOP, 'CoOp')}")
    print(f"  CoOp: {COOP}")
    print("\nThen: dear data check NAME --data-root DIR, dear train --data NAME --data-root DIR")
    if args.data_root is None:
        print("To see which of them you have: dear data list --data-root DIR")


def _status(entry: "KnownDataset", root: Path | None) -> str | None:
    if root is None:
        return None
    if not (root / entry.folder).is_dir():
        return "no"
    if missing := entry.missing(root):
        return f"needs {missing.relative_to(root / entry.folder)}"
    split = entry.split_file(root)
    return f"yes, with {split.name}" if split else "yes, split by rule" if entry.split_name else "yes"


def _check(args: argparse.Namespace) -> None:
    from dear.core.errors import DearError
    from dear.core.table import Table
    from dear.data.check import class_table, describe, division, problems
    from dear.data.known import find_known
    from dear.data.resolve import resolve_dataset

    dataset = resolve_dataset(args.data, root=args.data_root)
    entry = find_known(args.data) if args.data_root else None  # as `resolve_dataset` does
    print("\n".join([describe(dataset), *division(dataset, dataset, args.shots)]) + "\n")
    table = Table(["part", "found", "known"])
    parts = {"classes": dataset.classes, "train": dataset.train, "val": dataset.val, "test": dataset.test}
    published = (entry.class_count, *entry.image_counts) if entry else (None,) * 4
    for (name, items), count in zip(parts.items(), published, strict=True):
        table.add(name, len(items), count)
    args.show("counts", table)
    print()
    by_class = class_table(dataset)
    rest = 0 if "json_tables" in args else max(0, len(by_class.rows) - _MOST_CLASSES)
    args.show("classes", replace(by_class, rows=by_class.rows[: len(by_class.rows) - rest]))
    print(f"and {rest} larger classes (--json lists all)\n" if rest else "")
    findings = problems(dataset, args.shots)
    lines = findings.warnings()
    if entry and (differences := entry.differences(dataset)):
        lines.insert(0, "not the published counts: " + ", ".join(differences))
    if "json_tables" in args:
        args.show("problems", Table(["problem"], [(line,) for line in lines]))
    print("\n".join(f"- {line}" for line in lines) or "No problems found.")
    findings.refuse_unreadable()
    if findings.leaked:
        raise DearError(f"{dataset.name} has training images that are also in test: remove one of each.")
