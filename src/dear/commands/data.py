"""dear data: lists and downloads the known datasets, and checks one dataset for problems."""

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

    actions = parser.add_subparsers(metavar="list | get | check | few-shot", required=True)
    root = "folder of the known datasets, in CoOp's layout"

    what = "list the known datasets, which of them are on this machine, and where they come from"
    listing = actions.add_parser("list", help=what, description=what[0].upper() + what[1:] + ".")
    listing.add_argument("--data-root", type=Path, metavar="DIR", help=root)
    add_json_argument(listing)
    listing.set_defaults(action=_list)

    what = "download known datasets, check them, and lay them out as CoOp does"
    get = actions.add_parser("get", help=what, description=what[0].upper() + what[1:] + ".")
    get.add_argument("names", nargs="+", metavar="NAME", help="names from `dear data list`, or all")
    get.add_argument("--root", "--data-root", dest="data_root", type=Path, required=True, metavar="DIR", help=root)
    get.add_argument("--dry-run", action="store_true", help="show what would be downloaded, from where and how much")
    get.add_argument(
        "--accept-licence", action="store_true", help="accept the licences of datasets whose owners ask for it"
    )
    get.set_defaults(action=_get)

    what = "read every image of a dataset, and compare its counts with the published ones"
    check = actions.add_parser("check", help=what, description=what[0].upper() + what[1:] + ".")
    check.add_argument("data", metavar="DATA", help=HELP)
    check.add_argument("--data-root", metavar="DIR", help=root)
    check.add_argument(
        "--shots",
        type=number("--shots", 1, 10**6),
        default=16,
        help="training images per class in a run (default: 16)",
    )
    add_json_argument(check)
    check.set_defaults(action=_check)

    what = "write the few-shot images that training draws as a list in 2SFS's form, or compare them with another list"
    few_shot = actions.add_parser("few-shot", help=what, description=what[0].upper() + what[1:] + ".")
    few_shot.add_argument("data", metavar="DATA", help=HELP)
    few_shot.add_argument("--data-root", metavar="DIR", help=root)
    few_shot.add_argument(
        "--shots", type=number("--shots", 1, 10**6), default=16, help="images per class (default: 16)"
    )
    few_shot.add_argument(
        "--seed", type=number("--seed", 0, 2**32 - 1), default=1, help="seed of the draw (default: 1)"
    )
    few_shot.add_argument("--out", type=Path, metavar="DIR", help="folder for shot_N-seed_S_train.jsonl and _val.jsonl")
    few_shot.add_argument("--compare", type=Path, metavar="FILE", help="a list of training images drawn by others")
    few_shot.set_defaults(action=_few_shot)


def run(args: argparse.Namespace) -> None:
    args.action(args)


def _list(args: argparse.Namespace) -> None:
    from dear.core.errors import DearError
    from dear.core.table import Table
    from dear.data.known import KNOWN
    from dear.data.known.sources import SOURCES

    if args.data_root is not None and not args.data_root.is_dir():
        raise DearError(f"There is no folder {args.data_root}: --data-root must be the folder of the datasets.")
    table = Table(["dataset", "folder", "classes", "train", "val", "test", "found"])
    for entry in KNOWN:
        counts = (n or None for n in entry.image_counts)
        table.add(entry.name, entry.folder, entry.class_count, *counts, _status(entry, args.data_root))
    args.show("datasets", table)
    hosts = Table(["dataset", "from", "MB", "last seen", "licence"])
    for entry in KNOWN:
        source = SOURCES[entry.name]
        for way in source.ways or ((),):
            size = sum(archive.megabytes for archive in way)
            licence = source.licence + (" (asks for consent)" if source.asks else "")
            host, seen = (_host(way[0].url), way[0].seen) if way else ("image-net.org, by hand", None)
            hosts.add(entry.name, host, size or None, seen, licence)
    print()
    args.show("sources", hosts)
    for name, source in SOURCES.items():
        if source.gone:
            print(f"{name}: {source.gone}")
    print("\nNext: dear data get NAME --root DIR, dear data check NAME --data-root DIR, "
          "dear train --data NAME --data-root DIR")  # fmt: skip
    if args.data_root is None:
        print("To see which of them are on this machine: dear data list --data-root DIR")


def _host(url: str) -> str:
    """The server, or the repository of the hub."""
    kind, _, rest = url.partition("://")
    parts = rest.removeprefix("datasets/").partition("@")[0].split("/")
    return f"hf.co/{'/'.join(parts[:2])}" if kind == "hf" else parts[0]


def _get(args: argparse.Namespace) -> None:
    from dear.core.errors import DearError
    from dear.data.known import KNOWN, find_known
    from dear.data.known.get import get_dataset, steps

    names = [entry.name for entry in KNOWN] if args.names == ["all"] else args.names
    entries = [find_known(name) for name in names]
    if None in entries:
        known = ", ".join(entry.name for entry in KNOWN)
        raise DearError(f"There is no known dataset {names[entries.index(None)]!r}: choose from {known}, or all.")
    failed = []
    for entry in filter(None, entries):
        if args.dry_run:
            print("\n  ".join([f"{entry.name} -> {args.data_root / entry.folder}", *steps(entry, args.data_root)]))
            continue
        try:
            print(f"{entry.name}: {get_dataset(entry, args.data_root, args.accept_licence)}", flush=True)
        except DearError as error:
            if len(entries) == 1:
                raise
            print(f"{entry.name}: {error}", flush=True)
            failed.append(entry.name)
    if failed:
        ready = "; the other datasets are ready" if len(failed) < len(entries) else ""
        raise DearError(f"{', '.join(failed)} failed (reasons above){ready}.")


def _status(entry: "KnownDataset", root: Path | None) -> str | None:
    if root is None:
        return None
    if not (root / entry.folder).is_dir():
        return "no"
    if missing := entry.missing(root):
        return f"needs {missing.relative_to(root / entry.folder)}"
    split = entry.split_file(root)
    return f"yes, with {split.name}" if split else "yes, split by rule" if entry.split_name else "yes"


def _few_shot(args: argparse.Namespace) -> None:
    from dear.core.errors import DearError
    from dear.data.few_shot import read_few_shot, shared_images, write_few_shot
    from dear.data.resolve import resolve_dataset

    if args.out is None and args.compare is None:
        raise DearError("Nothing to do: give --out DIR to write the draw, or --compare FILE.")
    dataset = resolve_dataset(args.data, root=args.data_root)
    if args.compare is not None:
        ours = dataset.few_shot(args.shots, args.seed).train
        both, first, second, equal = shared_images(ours, read_few_shot(args.compare, dataset))
        print(f"{dataset.name}, {args.shots} shots, seed {args.seed}, against {args.compare}: {both} images in both, "
              f"{first} only in this draw, {second} only in the list; "
              f"{equal} of {len(dataset.classes)} classes have the same images")  # fmt: skip
    if args.out is not None:
        for file in write_few_shot(dataset, args.shots, args.seed, args.out):
            print(f"wrote {file}")


def _check(args: argparse.Namespace) -> None:
    from dear.core.errors import DearError
    from dear.core.table import Table
    from dear.data.check import class_table, describe_dataset, division, problems
    from dear.data.known import find_known
    from dear.data.resolve import resolve_dataset

    dataset = resolve_dataset(args.data, root=args.data_root)
    entry = find_known(args.data) if args.data_root else None  # as `resolve_dataset` does
    drawn = dataset.few_shot(args.shots, 1) if dataset.train else dataset
    print("\n".join([describe_dataset(dataset), *division(dataset, drawn, args.shots)]) + "\n")
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
