"""dear reproduce: a table or figure of the paper, from its plan to a page with a verdict for each number."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dear.bench.chapters import Block, Chapter
from dear.bench.grid import run_cells
from dear.bench.page import write_report
from dear.bench.paper import compare_with_paper, summary_line, verdict_table
from dear.bench.planning import disk_megabytes, gpu_hours
from dear.bench.reproduce import (
    FULL,
    REPRODUCTIONS,
    SUBSET,
    Reproduction,
    find_reproduction,
    heads_chapter,
    reproduction_cells,
)
from dear.bench.results import Cell, read_results, stored_cells
from dear.bench.run_cell import Workbench
from dear.clip import load_backbone
from dear.commands.bench import chosen_methods
from dear.commands.shared import DATA_ROOT, add_seeds_argument
from dear.core.errors import DearError
from dear.core.table import Table, add_json_argument
from dear.core.words import counted
from dear.parallel.cluster import add_ray_arguments, cluster_from_args
from dear.trials.paired import LEVEL


def add_arguments(parser: argparse.ArgumentParser) -> None:
    titles = "; ".join(f"{name}: {item.title}" for name, item in REPRODUCTIONS.items())
    parser.add_argument("table", metavar="TABLE", help=titles)
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder of results and of the page; not needed to see the plan"
    )
    parser.add_argument(
        "--subset", action="store_true", help="a tiny version, on the bundled model and Attribute World: minutes"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be run, and what it costs")
    parser.add_argument("--resume", action="store_true", help="continue what --out holds already")
    parser.add_argument("--data-root", metavar="DIR", help=DATA_ROOT)
    parser.add_argument("--methods", nargs="+", default=[], metavar="METHOD",
                        help="methods in place of the paper's: names from `dear methods`, or all")  # fmt: skip
    add_seeds_argument(parser, None, "1 2 3; of the subset: 1 2")
    parser.add_argument("--model", metavar="NAME", help="another backbone (default: OpenAI's ViT-B-16)")
    parser.add_argument("--pretrained", metavar="TAG", help="its weights, as in `dear train`")
    parser.add_argument("--device", default="auto", metavar="NAME", help="device: cpu, cuda, cuda:N, auto")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="folder for cached states of images")
    add_ray_arguments(parser, "cell")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> None:
    item = find_reproduction(args.table)
    if args.out is None and not args.dry_run:
        raise DearError("Name a folder for results and page: --out DIR; or see the plan alone: --dry-run.")
    print(f"{args.table}: {item.title}" + (", subset" if args.subset else ""))
    overrides = {"model": args.model, "pretrained": args.pretrained} if args.model else {}
    if item.heads:
        if args.dry_run:
            print("heads are measured and nothing is trained: minutes on one core, no dataset")
        else:
            report = args.out / "report"
            write_report([], report, [_heads_report(args, overrides)])
            print(f"wrote {report / 'results.html'}")
        return
    methods = chosen_methods(args.methods) if args.methods else []
    seeds = args.seeds or ([1, 2] if args.subset else [1, 2, 3])
    cells = reproduction_cells(item, args.subset, seeds, methods, overrides)
    _show_plan(cells, args)
    if args.dry_run:
        return
    if next(stored_cells(args.out), None) and not args.resume:
        raise DearError(f"{args.out} already holds results: continue with --resume, or choose another --out.")
    bench = Workbench(args.cache, args.data_root, args.device)
    run_cells(cells, args.out, bench, cluster=cluster_from_args(args, args.device))
    report = args.out / "report"
    write_report([args.out], report, [_beside_the_paper(item, cells, args)])
    print(f"wrote {report / 'results.html'}, results.md, tables/ and figures/")


def _show_plan(cells: Sequence[Cell], args: argparse.Namespace) -> None:
    table = Table(["method", "cells", "A100 hours"])
    for method in dict.fromkeys(cell.method for cell in cells):
        own = [cell for cell in cells if cell.method == method]
        hours = gpu_hours(own)
        table.add(method, len(own), None if hours is None else f"{hours:.1f}")
    args.show("plan", table)
    hours, datasets = gpu_hours(cells), sorted({name for cell in cells for name in (cell.dataset, *cell.targets)})
    cost = "minutes on one core" if hours is None else f"about {hours:.0f} A100 hours (derived, an upper bound)"
    disk = f"{disk_megabytes(cells) / 1000:.1f} GB of disk"
    print(f"\n{counted(len(cells), 'cell')} on {', '.join(datasets)}: {cost}, {disk}\n")


def _beside_the_paper(item: Reproduction, cells: Sequence[Cell], args: argparse.Namespace) -> Chapter:
    names = {cell.method for cell in cells}
    results = [result for result in read_results([args.out]) if result.cell.method in names]
    compared = compare_with_paper(results)
    if not compared:
        note = "The paper prints no numbers for this: the curves are below."
        print(f"\n{note}")
        return Chapter("paper", f"{args.table}, beside the paper", [], [note])
    table, note = verdict_table(compared), summary_line(compared)
    args.show("beside the paper", table)
    print(f"\n{note}")
    explained = (
        f"{note[0].upper()}{note[1:]}. Difference: of two means, with its 95% interval; theirs is over three seeds "
        f"with the same spread. Ahead, behind: all of it is above or below zero. Level: within {LEVEL:g} points."
    )
    return Chapter("paper", f"{args.table}, beside the paper", [Block("paper-verdicts", item.title, table, explained)])


def _heads_report(args: argparse.Namespace, overrides: dict[str, Any]) -> Chapter:
    chosen = {**(SUBSET if args.subset else FULL), **overrides}
    backbone = load_backbone(chosen["model"], chosen["pretrained"], device=args.device)
    chapter = heads_chapter(args.table, backbone, limit=200 if args.subset else None)
    for block in chapter.blocks:
        print(f"\n{block.title}")
        args.show(block.title, block.table)
        print(f"\n{block.note}")
    return chapter
