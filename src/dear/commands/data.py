"""dear data: lists and downloads the known datasets, checks data and labels, and draws Attribute World."""

import argparse
from dataclasses import replace
from pathlib import Path

from dear.commands.shared import DATA_ROOT, add_action, add_device_arguments, add_draw_arguments
from dear.core.config import number
from dear.core.errors import DearError
from dear.core.figure import check_suffix
from dear.core.files import atomic_path
from dear.core.table import Table, add_json_argument
from dear.core.words import counted
from dear.data.check import class_table, describe_dataset, division, problems
from dear.data.few_shot import read_few_shot, shared_images, write_few_shot
from dear.data.known import KNOWN, KnownDataset, find_known
from dear.data.known.get import get_dataset, steps
from dear.data.known.sources import SOURCES
from dear.data.resolve import HELP, resolve_dataset

_MAX_CLASSES = 30  # that a terminal shows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="list | get | check | suspects | few-shot | world", required=True)

    listing = add_action(
        actions, "list", _list, "list the known datasets, which are on this machine, and where they come from"
    )
    listing.add_argument("--data-root", type=Path, metavar="DIR", help=DATA_ROOT)
    add_json_argument(listing)

    get = add_action(actions, "get", _get, "download known datasets, check them, and lay them out as CoOp does")
    get.add_argument("names", nargs="+", metavar="NAME", help="names from `dear data list`, or all")
    get.add_argument("--root", "--data-root", dest="data_root", type=Path, required=True, metavar="DIR", help=DATA_ROOT)
    get.add_argument("--dry-run", action="store_true", help="show what would be downloaded, from where and how much")
    get.add_argument(
        "--accept-licence", action="store_true", help="accept the licences of datasets whose owners ask for it"
    )

    what = "read every image of a dataset, and compare its counts with the published ones"
    check = add_action(actions, "check", _check_dataset, what)
    check.add_argument("data", metavar="DATA", help=HELP)
    check.add_argument("--data-root", metavar="DIR", help=DATA_ROOT)
    add_draw_arguments(check, "training images per class in a run")
    add_json_argument(check)

    what = "find labels that are probably wrong, near-duplicates across classes, and outliers"
    suspects = add_action(actions, "suspects", _suspects, what)
    suspects.add_argument("data", metavar="DATA", help=HELP)
    suspects.add_argument("--data-root", metavar="DIR", help=DATA_ROOT)
    suspects.add_argument("--model", default="auto", metavar="MODEL", help="backbone, as of `dear fit` (default: auto)")
    suspects.add_argument("--pretrained", help="OpenCLIP tag or checkpoint file")
    add_device_arguments(suspects)
    suspects.add_argument("--cache", type=Path, metavar="DIR", help="folder for encoded images, as of `dear fit`")
    suspects.add_argument("--out", type=Path, metavar="FILE", help="CSV of all suspects, worst first")
    suspects.add_argument("--sheet", type=Path, metavar="FILE", help="PNG with pictures of the first suspects")
    suspects.add_argument("--drop", type=Path, metavar="FILE", help="CSV for --data, without the suspects")
    suspects.add_argument("--relabel", type=Path, metavar="FILE", help="CSV for --data, with wrong labels replaced")
    add_json_argument(suspects)

    what = "write the few-shot images that training draws as a list in 2SFS's form, or compare them with another list"
    few_shot = add_action(actions, "few-shot", _write_few_shot, what)
    few_shot.add_argument("data", metavar="DATA", help=HELP)
    few_shot.add_argument("--data-root", metavar="DIR", help=DATA_ROOT)
    add_draw_arguments(few_shot, "images per class")
    few_shot.add_argument("--out", type=Path, metavar="DIR", help="folder for shot_N-seed_S_train.jsonl and _val.jsonl")
    few_shot.add_argument("--compare", type=Path, metavar="FILE", help="a list of training images drawn by others")

    world = add_action(
        actions, "world", _draw_world, "draw a contact sheet of Attribute World, the bundled synthetic dataset"
    )
    world.add_argument("--out", type=Path, default=Path("world.png"), help="PNG file to write (default: world.png)")
    world.add_argument(
        "--seed", type=number("--seed", 0, 2**63 - 1), default=0, help="random seed of the pictures (default: 0)"
    )
    world.add_argument(
        "--size", type=number("--size", 16, 512), default=64, help="side length of each picture in pixels (default: 64)"
    )


def run(args: argparse.Namespace) -> None:
    args.action(args)


def _list(args: argparse.Namespace) -> None:
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
    """The server of an address, or the repository on the hub."""
    kind, _, rest = url.partition("://")
    parts = rest.removeprefix("datasets/").partition("@")[0].split("/")
    return f"hf.co/{'/'.join(parts[:2])}" if kind == "hf" else parts[0]


def _get(args: argparse.Namespace) -> None:
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


def _status(entry: KnownDataset, root: Path | None) -> str | None:
    if root is None:
        return None
    if not (root / entry.folder).is_dir():
        return "no"
    if missing := entry.missing(root):
        return f"needs {missing.relative_to(root / entry.folder)}"
    split = entry.split_file(root)
    return f"yes, with {split.name}" if split else "yes, split by rule" if entry.split_name else "yes"


def _write_few_shot(args: argparse.Namespace) -> None:
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


def _check_dataset(args: argparse.Namespace) -> None:
    dataset = resolve_dataset(args.data, root=args.data_root)
    entry = find_known(args.data) if args.data_root else None  # as `resolve_dataset` does
    drawn = dataset.few_shot(args.shots, args.seed) if dataset.train else dataset
    print("\n".join([describe_dataset(dataset), *division(dataset, drawn, args.shots)]) + "\n")
    table = Table(["part", "found", "known"])
    parts = {"classes": dataset.classes, "train": dataset.train, "val": dataset.val, "test": dataset.test}
    published = (entry.class_count, *entry.image_counts) if entry else (None,) * 4
    for (name, items), count in zip(parts.items(), published, strict=True):
        table.add(name, len(items), count)
    args.show("counts", table)
    print()
    by_class = class_table(dataset)
    rest = 0 if "json_tables" in args else max(0, len(by_class.rows) - _MAX_CLASSES)
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


def _suspects(args: argparse.Namespace) -> None:
    from dear.training.backbone import choose_backbone
    from dear.training.images import ImageSource
    from dear.trials.fit import cache_folder
    from dear.trials.suspects import (
        LABEL,
        all_images,
        find_suspects,
        require_files,
        suspects_table,
        write_cleaned,
        write_suspect_sheet,
        write_suspects,
    )  # fmt: skip

    cleaned = {args.drop: False, args.relabel: True}
    for file, suffix in ((args.out, ".csv"), (args.sheet, ".png"), (args.drop, ".csv"), (args.relabel, ".csv")):
        if file is not None:
            check_suffix(file, (suffix,))
    dataset, cache = resolve_dataset(args.data, root=args.data_root), cache_folder(args.cache)
    images = all_images(dataset)
    if args.drop or args.relabel:
        require_files(dataset)
    problems(dataset, 1).refuse_unreadable()
    choice = choose_backbone(args.model, args.pretrained, [args.data])
    backbone = choice.load(args.device, args.precision)
    choice.say()
    suspects, noise = find_suspects(dataset, ImageSource(backbone, cache))
    wrong = sum(one.reason == LABEL for one in suspects)
    print(f"{counted(len(images), 'image')}: about {100 * noise.rate:.1f}% of the labels seem wrong; here are {wrong}, "
          f"and {len(suspects) - wrong} near-duplicates across classes or outliers\n")  # fmt: skip
    table = suspects_table(suspects)
    rest = 0 if "json_tables" in args else max(0, len(suspects) - _MAX_CLASSES)
    args.show("suspects", replace(table, rows=table.rows[: len(suspects) - rest]))
    print(f"and {rest} more (--out FILE.csv lists all)\n" if rest else "")
    if args.out is not None:
        write_suspects(args.out, suspects)
        print(f"wrote {args.out}")
    if args.sheet is not None and suspects:
        write_suspect_sheet(args.sheet, suspects, images)
        print(f"wrote {args.sheet}")
    for file, relabel in cleaned.items():
        if file is not None:
            written, changed = write_cleaned(file, dataset, suspects, relabel)
            how = "labels replaced" if relabel else "suspects left out"
            print(f"wrote {file}: {counted(written, 'image')}, {changed} {how}")


def _draw_world(args: argparse.Namespace) -> None:
    from dear.data.world.sheet import world_sheet

    check_suffix(args.out, (".png",))
    with atomic_path(args.out) as temporary:
        world_sheet(args.seed, args.size).save(temporary)
    print(f"wrote {args.out}")
