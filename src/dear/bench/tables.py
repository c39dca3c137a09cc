"""The main tables of a report: one chapter a protocol, the ablations, and the paper's numbers beside ours."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dear.bench.ablation_tables import Ablation, ablations
from dear.bench.paper import base_to_novel_table, transfer_table
from dear.bench.results import BASE_TO_NOVEL, CROSS_DATASET, DOMAIN, FEW_SHOT, PROTOCOLS, Cell, to_cells
from dear.bench.summary import (
    HM,
    TARGETS,
    Series,
    Stat,
    average,
    backbone_of,
    complete_datasets,
    missing,
    pick,
    series,
)
from dear.core.table import Table
from dear.methods.registry import METHODS, is_ours

TITLES = {
    BASE_TO_NOVEL: "Base to novel",
    FEW_SHOT: "Few-shot",
    CROSS_DATASET: "Cross-dataset",
    DOMAIN: "Domain generalization",
}
AVERAGE = "Average"
_ABLATIONS = "ablations"
_PAPER_NOTE = (
    "As printed in the paper (ViT-B/16, OpenAI weights, full datasets): comparable with ours only with the same "
    "backbone, the same weights and the full datasets."
)


@dataclass
class Block:
    """A table under its title. `name` is that of its files; main ones are printed and stand open on the page."""

    name: str
    title: str
    table: Table
    note: str = ""
    main: bool = True


@dataclass
class Chapter:
    name: str
    title: str
    blocks: list[Block]
    missing: list[str] = field(default_factory=list)


def ordered(cells: Iterable[Cell]) -> list[Cell]:
    """By dataset, then zero-shot first and our methods last, so that every table has the same order."""

    def place(cell: Cell) -> tuple[object, ...]:
        rank = 0 if cell.method.startswith("zero-shot") else 2 if is_ours(cell.method) else 1
        return cell.dataset, rank, cell.method, cell.shots, cell.seed

    return sorted(cells, key=place)


def main_cells(cells: Iterable[Cell], protocol: str, transductive: bool = False) -> dict[str, list[Cell]]:
    """Of one protocol, those that are no ablation's, by split; methods that see unlabelled test classes apart."""
    found: dict[str, list[Cell]] = {}
    for cell in ordered(cells):
        apart = cell.method in METHODS and METHODS[cell.method].transductive
        if cell.variant is None and cell.protocol == protocol and apart == transductive:
            found.setdefault(cell.split, []).append(cell)
    return found


def on_split(text: str, split: str) -> str:
    return text if split == "test" else f"{text}, {split} images"


def main_chapters(cells: Sequence[Cell]) -> list[Chapter]:
    chapters = []
    for protocol in PROTOCOLS:
        chapter = Chapter(protocol, TITLES[protocol], [])
        for transductive in (False, True):
            for split, found in main_cells(cells, protocol, transductive).items():
                name = protocol if split == "test" else f"{protocol}_{split}"
                blocks = _blocks(found, f"{name}_transductive" if transductive else name, protocol)
                if transductive:
                    title = f"{blocks[0].title}, with unlabelled images of all classes"
                    blocks = [replace(blocks[0], title=title)]
                chapter.blocks += blocks
                chapter.missing += list_missing(found)
        if chapter.blocks:
            chapters.append(chapter)
    studies = sorted(ablations(cells), key=lambda a: (a.name, PROTOCOLS.index(a.protocol)))
    if studies:
        absent = [f"{a.name}: {m}" for a in studies for m in list_missing(a.cells)]
        chapters.append(Chapter(_ABLATIONS, "Ablations", [_ablation(a) for a in studies], absent))
    return chapters


def _blocks(cells: list[Cell], name: str, protocol: str) -> list[Block]:
    """The tables of one protocol on one split, the main one first."""
    if protocol == BASE_TO_NOVEL:
        return _base_to_novel(cells, name)
    return [_few_shot(cells, name)] if protocol == FEW_SHOT else _transfer(cells, name, protocol)


def main_tables(results: Iterable[Any]) -> dict[str, Table]:
    """From the JSON values of results to the tables of the protocols, by title."""
    chapters = main_chapters([cell for cell in _from_json(results) if cell.variant is None])
    return {block.title: block.table for c in chapters if c.name != _ABLATIONS for block in c.blocks if block.main}


def ablation_tables(results: Iterable[Any]) -> dict[str, Table]:
    """From the JSON values of results to the tables of the ablations, by title."""
    return {
        block.title: block.table
        for c in main_chapters(_from_json(results))
        if c.name == _ABLATIONS
        for block in c.blocks
    }


def _from_json(results: Iterable[Any]) -> list[Cell]:
    return to_cells((f"result {number}", value) for number, value in enumerate(results, start=1))


def list_missing(cells: Sequence[Cell]) -> list[str]:
    return [f"{label} on {data}, seed {seed}, {shots} shots" for data, label, seed, shots in missing(cells)]


def _base_to_novel(cells: list[Cell], name: str) -> list[Block]:
    found = series(cells)
    table = Table(["dataset", "method", "base", "novel", HM, "images", "seeds"])
    for s in found:
        stats = [s.stat(score) for score in ("base", "novel", HM)]
        parts = [{e.images for c in s.cells if (e := pick(c, part))} for part in ("base", "novel")]
        table.add(s.dataset, s.label, *stats, sum(max(images, default=0) for images in parts), _seeds(stats))
    note = "Accuracy (%); HM is computed for each seed from its base and novel."
    note += _add_averages(table, found, ("base", "novel", HM), tail=[None])
    _stress(table, found, columns=range(2, 5))
    blocks = [Block(name, on_split("Base to novel", cells[0].split), table, note)]
    paper = base_to_novel_table(s.dataset for s in found) if cells[0].split == "test" else None
    if paper:
        said = " HM is computed from the base and novel printed there, and is not always the HM printed."
        blocks.append(Block(f"{name}_paper", "The paper's numbers", paper, _PAPER_NOTE + said, main=False))
    return blocks


def _few_shot(cells: list[Cell], name: str) -> Block:
    found = series(cells, by_shots=True)
    shots = [str(n) for n in sorted({cell.shots for cell in cells})]
    table = Table(["dataset", "method", *(f"{n} shots" if n != "1" else "1 shot" for n in shots), "seeds"])
    for s in found:
        stats = [s.stat(n) for n in shots]
        table.add(s.dataset, s.label, *stats, _seeds(stats))
    note = "Accuracy (%) over all classes, trained on this many images of each."
    note += _add_averages(table, found, shots)
    _stress(table, found, columns=range(2, 2 + len(shots)))
    return Block(name, on_split("Few-shot", cells[0].split), table, note)


def _transfer(cells: list[Cell], name: str, protocol: str) -> list[Block]:
    groups: dict[tuple[str, tuple[str, ...]], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.dataset, cell.targets), []).append(cell)
    blocks = []
    for number, ((source, targets), group) in enumerate(groups.items(), start=1):
        table = Table(["method", f"{source} (source)", *targets, "average of targets", "seeds"])
        rows: list[Series] = []
        for s in series(group):
            kinds = {e.inference for cell in s.cells for e in cell.evaluations}
            for kind in sorted(kinds):  # decoupled, the paper's, before fusion
                label = s.label if len(kinds) == 1 else f"{s.label} ({kind})"
                rows += [Series(source, label, part.scores, part.cells) for part in series(s.cells, inference=kind)]
        for s in rows:
            stats = [s.stat(score) for score in (source, *targets, TARGETS)]
            table.add(s.label, *stats, _seeds(stats))
        _stress(table, rows, columns=range(1, len(targets) + 3))
        note = "Accuracy (%), trained on the source alone. Decoupled inference (CLS alone) is the paper's protocol."
        title = on_split(f"{TITLES[protocol]}: from {source}", cells[0].split)
        suffix = f"_{number}" if len(groups) > 1 else ""
        title += f" ({number})" if len({source for source, _ in groups}) < len(groups) else ""
        blocks.append(Block(name + suffix, title, table, note))
        paper = transfer_table(protocol, source, targets)
        if paper:
            blocks.append(Block(f"{name}{suffix}_paper", "The paper's numbers", paper, _PAPER_NOTE, main=False))
    return blocks


def _ablation(study: Ablation) -> Block:
    all_series = [s for row in study.rows.values() for s in row]
    datasets = list(dict.fromkeys(s.dataset for s in all_series))
    shared = complete_datasets(all_series)
    apart = datasets if len(datasets) > 1 else []
    header = [study.name, *study.names, f"{study.score} − default", "pairs"]
    table = Table([*header, *(f"{d} {study.score}" for d in apart), "seeds"])
    for value, row in study.rows.items():
        stats = [average(row, shared, score) for score in study.names]
        each = {s.dataset: s.stat(study.score) for s in row}
        difference = study.difference(value)
        shown = f"{value} (default)" if study.is_default(value) else value
        pairs = difference and difference.pairs
        table.add(shown, *stats, difference, pairs, *(each.get(d) for d in apart), _seeds([*stats, *each.values()]))
    note = f"Means over {_count(len(shared), 'dataset')} (those that all values have), ± std over seeds; difference "
    note += "to the default: mean ± its standard error over the pairs with the same dataset and seed."
    title = on_split(f"{study.name} ({TITLES[study.protocol].lower()}, {study.shots} shots)", study.split)
    name = "_".join(["ablation", study.name, study.protocol, study.split, str(study.shots)])
    return Block(name, title[0].upper() + title[1:], table, note)


def _add_averages(table: Table, found: Sequence[Series], names: Sequence[str], tail: Sequence[object] = ()) -> str:
    """Adds a row a method; says in words over what."""
    datasets = list(dict.fromkeys(s.dataset for s in found))
    shared = complete_datasets(found)
    if len(datasets) < 2:
        return ""
    if not shared:
        return " No average: there is no dataset for which all methods are there."
    for label in dict.fromkeys(s.label for s in found):
        own = [s for s in found if s.label == label]
        stats = [average(own, shared, name) for name in names]
        table.add(AVERAGE, label, *stats, *tail, _seeds(stats))
    over = f" Average: over the {_count(len(shared), 'dataset')} on which every method has its numbers"
    over += "" if len(shared) == len(datasets) else f" ({', '.join(shared)}; not over all {len(datasets)})"
    return over + (", and over the seeds they share; its HM is that of its base and novel." if HM in names else ".")


def _stress(table: Table, found: Sequence[Series], columns: Iterable[int]) -> None:
    """Bold: the best of each dataset and backbone, as far as the shown digits tell."""
    backbones = {s.label: backbone_of(s.cells[0]) for s in found}
    has_dataset = table.header[0] == "dataset"
    for column in columns:
        groups: dict[object, list[tuple[str, int]]] = {}
        for number, row in enumerate(table.rows):
            value, label = row[column], str(row[1] if has_dataset else row[0])
            if isinstance(value, Stat):
                key = (row[0] if has_dataset else None, backbones[label])
                groups.setdefault(key, []).append((f"{value.mean:.{value.digits}f}", number))
        for group in groups.values():
            best = max((shown for shown, _ in group), key=float)
            if len(group) > 1:
                table.bold.update((number, column) for shown, number in group if shown == best)


def _seeds(stats: Iterable[Stat | None]) -> int | str | None:
    counts = sorted({s.seeds for s in stats if s})
    return f"{counts[0]}–{counts[-1]}" if len(counts) > 1 else counts[0] if counts else None


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
