"""dear data: what datasets are known and found, and whether one is in order."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dear.data.known import KnownDataset


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dear.core.config import number
    from dear.core.table import add_json_argument
    from dear.data.resolve import HELP

    actions = parser.add_subparsers(metavar="list | check", required=True)
    root = "folder that holds the known datasets, as CoOp lays them out"

    what = "the known datasets, which of them are found, and where to get them; nothing is downloaded"
    every = actions.add_parser("list", help=what, description=what[0].upper() + what[1:] + ".")
    every.add_argument("--root", "--data-root", type=Path, metavar="DIR", help=root)
    add_json_argument(every)
    every.set_defaults(action=_list)

    what = "read every image of a dataset, and compare its counts with what is known"
    check = actions.add_parser("check", help=what, description=what[0].upper() + what[1:] + ".")
    check.add_argument("data", metavar="DATA", help=HELP)
    check.add_argument("--root", "--data-root", metavar="DIR", help=root)
    check.add_argument(
        "--shots",
        type=number("--shots", 1, 10**6),
        default=16,
        help="training images a class should have (default: 16)",
    )
    add_json_argument(check)
    check.set_defaults(action=_check)


def run(args: argparse.Namespace) -> None:
    args.action(args)


def _list(args: argparse.Namespace) -> None:
    from dear.core.errors import DearError
    from dear.core.table import Table
    from dear.data.known import COOP, KNOWN

    if args.root is not None and not args.root.is_dir():
        raise DearError(f"There is no folder {args.root}: --root must be the folder that holds the datasets.")
    table = Table(["dataset", "folder", "classes", "train", "val", "test", "found"])
    for known in KNOWN:
        table.add(known.name, known.folder, known.classes, *(n or None for n in known.counts), _found(known, args.root))
    args.show("datasets", table)
    print("\nHow to get them, each into its folder:")
    for known in KNOWN:
        print(f"  {known.name}: {known.get.replace(COOP, 'CoOp')}")
    print(f"  CoOp: {COOP}")
    print("\nThen: dear data check NAME --root DIR, dear train --data NAME --data-root DIR")
    if args.root is None:
        print("To see which of them you have: dear data list --root DIR")


def _found(known: "KnownDataset", root: Path | None) -> str | None:
    if root is None:
        return None
    if not (root / known.folder).is_dir():
        return "no"
    gap = known.missing(root)
    if gap:
        return f"needs {gap.relative_to(root / known.folder)}"
    split = known.split_file(root)
    return f"yes, with {split.name}" if split else "yes, split by rule" if known.split else "yes"


def _check(args: argparse.Namespace) -> None:
    from dear.core.errors import DearError
    from dear.core.table import Table
    from dear.data.check import describe, problems
    from dear.data.known import find_known
    from dear.data.resolve import resolve_dataset

    dataset = resolve_dataset(args.data, root=args.root)
    known = find_known(args.data) if args.root else None  # as it was resolved
    print(describe(dataset) + "\n")
    table = Table(["part", "found", "known"])
    found = {"classes": dataset.classes, "train": dataset.train, "val": dataset.val, "test": dataset.test}
    published = (known.classes, *known.counts) if known else (None,) * 4
    for (name, items), count in zip(found.items(), published, strict=True):
        table.add(name, len(items), count)
    args.show("counts", table)
    print()
    findings = problems(dataset, args.shots)
    lines = findings.warnings()
    if known and (differences := known.differences(dataset)):
        lines.insert(0, "not the published counts: " + ", ".join(differences))
    print("\n".join(f"- {line}" for line in lines) or "No problems found.")
    findings.refuse_unreadable()
    if findings.leaked:
        raise DearError(f"{dataset.name} has training images that are also in test: remove one of each.")
