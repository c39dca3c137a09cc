"""The main tables of a report: one chapter per protocol, the ablations, and the paper's numbers beside ours."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dear.bench.ablations import INFERENCE, AblationResults, ablation_results
from dear.bench.chapters import (
    AVERAGE,
    Block,
    Chapter,
    comparison,
    few_shot_comparison,
    list_missing,
    on_split,
    stress_best,
)
from dear.bench.paper import base_to_novel_table, transfer_table
from dear.bench.results import BASE_TO_NOVEL, FEW_SHOT, PROTOCOLS, CellResult, comparable
from dear.bench.series import (
    HM,
    TARGETS,
    Series,
    Stat,
    average,
    by_label,
    complete_datasets,
    complete_methods,
    datasets_of,
    is_zero_shot,
    pick,
    series,
)
from dear.core.table import Table
from dear.core.words import counted
from dear.methods.registry import METHODS, is_ours
from dear.trials.outcome import BASE, NOVEL, TEST

_ABLATIONS = "ablations"
_PAPER_NOTE = (
    "As printed in the paper (ViT-B/16, OpenAI weights, full datasets): comparable with ours only with the same "
    "backbone, the same weights and the full datasets."
)


def ordered(results: Iterable[CellResult]) -> list[CellResult]:
    """Results in the order of every table: by dataset, then zero-shot first and our methods last."""

    def place(result: CellResult) -> tuple[object, ...]:
        cell = result.cell
        rank = 0 if is_zero_shot(cell) else 2 if is_ours(cell.method) else 1
        return cell.dataset, rank, cell.method, cell.shots, cell.seed

    return sorted(results, key=place)


def main_results(
    results: Iterable[CellResult], protocol: str, transductive: bool = False
) -> dict[str, list[CellResult]]:
    """Results of one protocol by split, test first, without ablations; `transductive`: of the methods that see
    unlabelled images of all classes, or of the others."""
    by_split: dict[str, list[CellResult]] = {}
    for result in ordered(results):
        cell = result.cell
        sees_all = cell.method in METHODS and METHODS[cell.method].transductive
        if cell.variant is None and cell.protocol == protocol and sees_all == transductive:
            by_split.setdefault(cell.split, []).append(result)
    return dict(sorted(by_split.items(), key=lambda item: item[0] != TEST))


def main_chapters(results: Sequence[CellResult]) -> list[Chapter]:
    chapters = []
    for protocol, described in PROTOCOLS.items():
        chapter = Chapter(protocol, described.title, [])
        tables_of = {BASE_TO_NOVEL: _base_to_novel, FEW_SHOT: _few_shot}.get(protocol, _transfer)
        for transductive in (False, True):
            for split, group in main_results(results, protocol, transductive).items():
                name = protocol if split == TEST else f"{protocol}_{split}"
                blocks = tables_of(group, f"{name}_transductive" if transductive else name)
                if transductive:
                    main = next(block for block in blocks if block.name.endswith("_transductive"))
                    blocks = [replace(main, title=f"{main.title}, with unlabelled images of all classes")]
                chapter.blocks += blocks
                chapter.missing += list_missing(group)
        if chapter.blocks:
            chapters.append(chapter)
    ablations = ablation_results(results)
    if ablations:
        # what a run's two ways to infer lack, its own row lacks too
        absent = [f"{a.name}: {one}" for a in ablations if a.name != INFERENCE for one in list_missing(a.results)]
        chapters.append(Chapter(_ABLATIONS, "Ablations", [_ablation(a) for a in ablations], absent))
    return chapters


def main_tables(results: Iterable[CellResult]) -> dict[str, Table]:
    """The tables of the protocols, by title."""
    chapters = main_chapters([result for result in comparable(results) if result.cell.variant is None])
    return {block.title: block.table for c in chapters if c.name != _ABLATIONS for block in c.blocks if block.main}


def ablation_tables(results: Iterable[CellResult]) -> dict[str, Table]:
    """The tables of the ablations, by title."""
    blocks = map(_ablation, ablation_results(comparable(results)))
    return {block.title: block.table for block in blocks}


def _base_to_novel(results: list[CellResult], name: str) -> list[Block]:
    split, all_series = results[0].cell.split, series(results)
    table = Table(["dataset", "method", BASE, NOVEL, HM, "images", "seeds"])
    for s in all_series:
        stats = [s.stat(score) for score in (BASE, NOVEL, HM)]
        images = [{outcome.images for r in s.results if (outcome := pick(r, part))} for part in (BASE, NOVEL)]
        table.add(s.dataset, s.label, *stats, sum(max(counts, default=0) for counts in images), _seeds(stats))
    note = "Accuracy (%); HM is computed for each seed from its base and novel."
    note += _add_averages(table, all_series, (BASE, NOVEL, HM), tail=[None])
    stress_best(table, all_series, range(2, 5))
    main = Block(name, on_split(PROTOCOLS[BASE_TO_NOVEL].title, split), table, note)
    blocks = [*comparison(all_series, HM, name), main]
    paper = base_to_novel_table(s.dataset for s in all_series) if split == TEST else None
    if paper:
        note = f"{_PAPER_NOTE} HM is computed from the base and novel printed there, and is not always the HM printed."
        blocks.append(Block(f"{name}_paper", "The paper's numbers", paper, note, main=False))
    return blocks


def _few_shot(results: list[CellResult], name: str) -> list[Block]:
    all_series = series(results, by_shots=True)
    shots = [str(n) for n in sorted({result.cell.shots for result in results})]
    table = Table(["dataset", "method", *(counted(int(n), "shot") for n in shots), "seeds"])
    for s in all_series:
        stats = [s.stat(n) for n in shots]
        table.add(s.dataset, s.label, *stats, _seeds(stats))
    note = "Accuracy (%) over all classes, trained on this many images of each."
    note += _add_averages(table, all_series, shots)
    stress_best(table, all_series, range(2, 2 + len(shots)))
    main = Block(name, on_split(PROTOCOLS[FEW_SHOT].title, results[0].cell.split), table, note)
    return [main, *few_shot_comparison(all_series, shots, name)]


def _transfer(results: list[CellResult], name: str) -> list[Block]:
    groups: dict[tuple[str, tuple[str, ...]], list[CellResult]] = {}
    for result in results:
        groups.setdefault((result.cell.dataset, result.cell.targets), []).append(result)
    blocks, protocol = [], results[0].cell.protocol
    for number, ((source, targets), group) in enumerate(groups.items(), start=1):
        table = Table(["method", f"{source} (source)", *targets, "average of targets", "seeds"])
        rows: list[Series] = []
        for s in series(group):
            inferences = {outcome.inference for result in s.results for outcome in result.outcomes}
            for inference in sorted(inferences):  # decoupled, the paper's, before fusion
                label = s.label if len(inferences) == 1 else f"{s.label} ({inference})"
                rows += [replace(part, label=label) for part in series(s.results, inference)]
        for s in rows:
            stats = [s.stat(score) for score in (source, *targets, TARGETS)]
            table.add(s.label, *stats, _seeds(stats))
        stress_best(table, rows, range(1, len(targets) + 3))
        note = "Accuracy (%), trained on the source alone. Decoupled inference (CLS alone) is the paper's protocol."
        title = on_split(f"{PROTOCOLS[protocol].title}: from {source}", group[0].cell.split)
        suffix = f"_{number}" if len(groups) > 1 else ""
        title += f" ({number})" if len({source for source, _ in groups}) < len(groups) else ""
        blocks += [Block(name + suffix, title, table, note), *comparison(rows, TARGETS, name + suffix)]
        paper = transfer_table(protocol, source, targets)
        if paper:
            blocks.append(Block(f"{name}{suffix}_paper", "The paper's numbers", paper, _PAPER_NOTE, main=False))
    return blocks


def _ablation(ablation: AblationResults) -> Block:
    all_series = [s for row in ablation.rows.values() for s in row]
    datasets = datasets_of(all_series)
    shared = complete_datasets(all_series)
    columns = datasets if len(datasets) > 1 else []
    header = [ablation.name, *ablation.scores, f"{ablation.score} − default", "pairs"]
    table = Table([*header, *(f"{dataset} {ablation.score}" for dataset in columns), "seeds"])
    for value, row in ablation.rows.items():
        stats = [average(row, shared, score) for score in ablation.scores]
        each = {s.dataset: s.stat(ablation.score) for s in row}
        difference = ablation.comparisons[value]
        name = f"{value} (default)" if ablation.is_default(value) else value
        pairs = difference and difference.pairs
        seeds = _seeds([*stats, *each.values()])
        table.add(name, *stats, difference, pairs, *(each.get(dataset) for dataset in columns), seeds)
    note = f"Means over {counted(len(shared), 'dataset')} (those that all values have), ± std over seeds; difference "
    note += "to the default: the mean over datasets and the seeds that both have, and its 95% interval."
    protocol = PROTOCOLS[ablation.protocol].title.lower()
    title = on_split(f"{ablation.name} ({protocol}, {ablation.shots} shots)", ablation.split)
    name = "_".join(["ablation", ablation.name, ablation.protocol, ablation.split, str(ablation.shots)])
    return Block(name, title[0].upper() + title[1:], table, note)


def _add_averages(table: Table, all_series: Sequence[Series], names: Sequence[str], tail: Sequence[object] = ()) -> str:
    """Adds one row per method that has numbers on every dataset; returns a sentence about what is averaged."""
    datasets, methods = datasets_of(all_series), by_label(all_series)
    if len(datasets) < 2:
        return ""
    complete = complete_methods(all_series)
    if not complete:
        return " No average: no method has numbers on every dataset."
    for label in complete:
        stats = [average(methods[label], datasets, name) for name in names]
        table.add(AVERAGE, label, *stats, *tail, _seeds(stats))
    others = [label for label in methods if label not in complete]
    over = f" Average: over all {len(datasets)} datasets and the seeds they share"
    over += f"; none for {', '.join(others)}, which did not run on all" if others else ""
    return over + ("; its HM is that of its base and novel." if HM in names else ".")


def _seeds(stats: Iterable[Stat | None]) -> int | str | None:
    counts = sorted({s.seeds for s in stats if s})
    return f"{counts[0]}–{counts[-1]}" if len(counts) > 1 else counts[0] if counts else None
