"""The smaller tables of a report: uncertainty, errors, cost, and what was run with which settings."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from dear.bench.results import BASE_TO_NOVEL, FEW_SHOT, PROTOCOLS, Cell, show_value
from dear.bench.summary import ALL, Stat, labels, pick, stat
from dear.bench.tables import TITLES, Block, Chapter, main_cells, on_split
from dear.core.table import Table
from dear.methods.registry import is_ours

_PARTS = {BASE_TO_NOVEL: ("base", "novel"), FEW_SHOT: (ALL,)}
_TOP = 5


def detail_chapters(cells: Sequence[Cell]) -> list[Chapter]:
    found = [
        Chapter("uncertainty", "Intervals and calibration", _for_each_split(cells, _uncertainty)),
        Chapter("components", "What each feature is worth alone", _for_each_split(cells, _apart)),
        Chapter("errors", "Where our methods are wrong", _for_each_split(cells, _confused, _worst)),
        Chapter("cost", "Time, memory, parameters", [_cost(cells)]),
        Chapter("settings", "What was run", _settings(cells)),
    ]
    return [chapter for chapter in found if chapter.blocks]


def _for_each_split(cells: Sequence[Cell], *makers: Callable[[list[Cell]], Block | None]) -> list[Block]:
    groups = [found for protocol in _PARTS for found in main_cells(cells, protocol).values()]
    return [block for make in makers for found in groups if (block := make(found))]


def _groups(cells: Sequence[Cell]) -> dict[tuple[str, str, int], list[Cell]]:
    """By dataset, label and shots: cells that differ only in their seed."""
    found: dict[tuple[str, str, int], list[Cell]] = {}
    for cell, label in zip(cells, labels(cells), strict=True):
        found.setdefault((cell.dataset, label, cell.shots), []).append(cell)
    return found


def _uncertainty(cells: list[Cell]) -> Block | None:
    parts = _PARTS[cells[0].protocol]
    columns = [f"{part}{what}" for part in parts for what in ("", ", 95% interval", ", ECE")]
    table = Table(["dataset", "method", "shots", *columns, "seeds"])
    for (dataset, label, shots), group in _groups(cells).items():
        row: list[object] = []
        for part in parts:
            found = [e for cell in group if (e := pick(cell, part))]
            intervals = [e.interval for e in found if e.interval]
            ends = [fmean(interval[side] for interval in intervals) for side in (0, 1)] if intervals else None
            eces = stat(e.ece for e in found if e.ece is not None)
            row += [stat(e.accuracy for e in found), ends and f"{ends[0]:.1f} to {ends[1]:.1f}", eces]
        table.add(dataset, label, shots, *row, len(group))
    note = "Interval: of the accuracy (%) under a bootstrap over test images, its ends averaged over seeds. "
    note += "ECE: expected calibration error (%)."
    return _block("uncertainty", cells[0], table, note)


def _apart(cells: list[Cell]) -> Block | None:
    cells = [cell for cell in cells if cell.components]
    names = list(dict.fromkeys(name for cell in cells for of in cell.components for name in of.alone))
    table = Table(["dataset", "method", "shots", "what", *names, "cosine", "seeds"])
    for (dataset, label, shots), group in _groups(cells).items():
        for part in dict.fromkeys(of.name for cell in group for of in cell.components):
            found = [of for cell in group for of in cell.components if of.name == part]
            row = [stat(of.alone[name] for of in found if name in of.alone) for name in names]
            cosine = stat((of.cosine for of in found if of.cosine is not None), digits=2)
            table.add(dataset, label, shots, f"alone, {part}", *row, cosine, len(group))
        weights = [cell.fusion or {} for cell in group]
        row = [stat((of[name] for of in weights if name in of), digits=2) for name in names]
        table.add(dataset, label, shots, "fusion weight", *row, None, len(group))
    note = "Accuracy (%) by the votes of one feature alone; the learned weights of their votes; and the mean cosine of "
    note += "two features of an image, the class feature aside: 1 where they are copies of one another."
    return _block("components", cells[0], table, note) if cells else None


def _confused(cells: list[Cell]) -> Block | None:
    table = Table(["dataset", "method", "true class", "answered", "times"])
    for (dataset, label), group in _ours(cells).items():
        counts: Counter[tuple[str, str]] = Counter()
        for cell in group:
            for part in _PARTS[cell.protocol]:
                for true, said, count in e.confused if (e := pick(cell, part)) else ():
                    counts[true, said] += count
        for (true, said), count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_TOP]:
            table.add(dataset, label, true, said, count)
    return _block("confused", cells[0], table, "Counted over all seeds, most frequent first.", "confused pairs")


def _worst(cells: list[Cell]) -> Block | None:
    table = Table(["dataset", "method", "class", "accuracy", "seeds"])
    for (dataset, label), group in _ours(cells).items():
        found: dict[str, list[float]] = {}
        for cell in group:
            for part in _PARTS[cell.protocol]:
                for name, share in (e.per_class if (e := pick(cell, part)) else {}).items():
                    found.setdefault(name, []).append(share)
        for name, shares in sorted(found.items(), key=lambda item: (fmean(item[1]), item[0]))[:_TOP]:
            table.add(dataset, label, name, stat(shares), len(shares))
    return _block("worst", cells[0], table, "Lowest accuracy (%) over all seeds.", "worst classes")


def _ours(cells: list[Cell]) -> dict[tuple[str, str], list[Cell]]:
    """Of the methods that this project is about, with the most shots, by dataset and label."""
    own = [cell for cell in cells if is_ours(cell.method)]
    most = max((cell.shots for cell in own), default=0)
    return {key[:2]: group for key, group in _groups([cell for cell in own if cell.shots == most]).items()}


def _block(name: str, cell: Cell, table: Table, note: str, what: str = "") -> Block | None:
    title = TITLES[cell.protocol] + (f": {what}" if what else "")
    name = "_".join([name, cell.protocol] + ([] if cell.split == "test" else [cell.split]))
    return Block(name, on_split(title, cell.split), table, note, main=False) if table.rows else None


def _cost(cells: Sequence[Cell]) -> Block:
    table = Table(["protocol", "method", "cells", "fit (s)", "evaluate (s)", "peak memory (MB)", "trained parameters"])
    for protocol in PROTOCOLS:
        found = [cell for group in main_cells(cells, protocol).values() for cell in group]
        for method in dict.fromkeys(cell.method for cell in found):
            _add_cost(table, TITLES[protocol], method, [cell for cell in found if cell.method == method])
    for name in sorted({cell.variant.ablation for cell in cells if cell.variant}):
        _add_cost(table, "Ablation", name, [cell for cell in cells if cell.variant and cell.variant.ablation == name])
    note = "Seconds: mean over cells ± std; memory: the highest of all."
    return Block("cost", "For each cell", table, note, main=False)


def _add_cost(table: Table, protocol: str, method: str, cells: list[Cell]) -> None:
    memory = max((cell.peak_memory_mb for cell in cells if cell.peak_memory_mb is not None), default=None)
    counts = sorted({cell.trained_parameters for cell in cells if cell.trained_parameters is not None})
    parameters = None if not counts else f"{counts[0]:,}" + (f" to {counts[-1]:,}" if len(counts) > 1 else "")
    seconds = [stat(values) for values in zip(*((c.fit_seconds, c.evaluate_seconds) for c in cells), strict=True)]
    table.add(protocol, method, len(cells), *seconds, None if memory is None else Stat(memory, digits=0), parameters)


def _settings(cells: Sequence[Cell]) -> list[Block]:
    names = sorted({name for cell in cells for name in cell.settings})
    shared, differing = Table(["setting", "value"]), Table(["setting", "values", "cells"])
    for name in names:
        values = _counted(cell.settings[name] for cell in cells if name in cell.settings)
        if len(values) == 1:
            shared.add(name, next(iter(values)))
        for value, count in values.items() if len(values) > 1 else ():
            differing.add(name, value, count)
    run = Table(["what", "value", "cells"])
    for kind in ("versions", "machine"):
        for name in dict.fromkeys(name for cell in cells for name in getattr(cell, kind)):
            for value, count in _counted(getattr(cell, kind).get(name) for cell in cells).items():
                run.add(name, value, count)
    days = sorted(cell.finished for cell in cells)
    run.add("finished", days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}", len(cells))
    note = "The same in every cell that has them."
    blocks = [
        Block("settings_shared", "Settings that all cells share", shared, note, main=False),
        Block("settings_differing", "Settings that differ", differing, "", main=False),
        Block("versions", "Versions and machine", run, "", main=False),
    ]
    return [block for block in blocks if block.table.rows]


def _counted(values: Iterable[object]) -> Counter[str]:
    return Counter(show_value(value) for value in values)
