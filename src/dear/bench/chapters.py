"""Parts of a report: chapters of tables under titles, tables of comparisons, and a list of what is missing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from dear.bench.results import CellResult
from dear.bench.series import (
    HM,
    TARGETS,
    Series,
    Stat,
    average,
    backbone_of,
    best_label,
    by_label,
    compare_series,
    complete_methods,
    datasets_of,
    is_zero_shot,
    missing,
)
from dear.core.table import Table
from dear.core.words import counted
from dear.trials.outcome import TEST
from dear.trials.paired import LEVEL

AVERAGE = "Average"
_DIFFERENCES = (
    "the mean over datasets and the seeds that both have, with its 95% interval (a bootstrap over seeds and over "
    "images, the same for both methods; one draw of one test set: the wider of Tango's and that of McNemar's exact "
    f"test). Ahead, behind: the interval is above or below zero. Level: all of it is within {LEVEL:g} points. "
    "Undecided: none of these; more images would tell."
)
_COMPARED = {  # title, what is in the columns, and its name in the others
    HM: ("Harmonic mean on each dataset, and paired comparison", "Harmonic mean of base and novel accuracy (%)", HM),
    TARGETS: ("Paired comparison: from {}", "Mean accuracy (%) over the targets", "average"),
}


@dataclass
class Block:
    """A table under its title. `name`: of its files. `main`: printed by `dear report`, and unfolded on the page."""

    name: str
    title: str
    table: Table
    note: str = ""
    main: bool = True


@dataclass
class Chapter:
    """`missing`: what the chapter's grid lacks, a sentence for each method."""

    name: str
    title: str
    blocks: list[Block]
    missing: list[str] = field(default_factory=list)


def on_split(text: str, split: str) -> str:
    return text if split == TEST else f"{text}, {split} images"


def comparison(all_series: Sequence[Series], score: str, name: str) -> list[Block]:
    """One row per method: its score on each dataset, its cost, and how it compares with zero-shot of its backbone and
    with the best. None if nothing can be compared.
    """
    title, what, short = _COMPARED[score]
    datasets, whole, best = datasets_of(all_series), complete_methods(all_series), best_label(all_series, score)
    methods = {label: own for label, own in by_label(all_series).items() if any(s.stat(score) for s in own)}
    firsts = {label: own[0].results[0] for label, own in methods.items()}
    zero_shot = {backbone_of(first): label for label, first in reversed(firsts.items()) if is_zero_shot(first.cell)}
    columns = ["average of targets"] if score == TARGETS else [*datasets, *([AVERAGE] if len(datasets) > 1 else [])]
    table = Table(["method", *columns, "fit (s)", f"{short} - zero-shot", f"{short} - best", "verdict", "pairs"])
    for label, own in methods.items():
        frozen = zero_shot.get(backbone_of(firsts[label]))
        to_frozen = compare_series(own, methods[frozen], score) if frozen and label != frozen else None
        to_best = compare_series(own, methods[best], score) if best and label != best else None
        either = to_best or to_frozen
        if either is None and label != best:
            continue
        stats = {s.dataset: s.stat(score) for s in own} | {AVERAGE: average(own, datasets, score)}
        shown = [stats.get(place) for place in [*datasets, AVERAGE][: len(columns)]]
        means = [None if value is None else value.mean for value in shown]
        if label not in whole and AVERAGE in columns:
            means[-1] = None
        seconds = median(result.seconds.fit for s in own for result in s.results)
        verdict = "best" if label == best else to_best and to_best.verdict
        table.add(label, *means, seconds, to_frozen, to_best, verdict, either and either.pairs)
    if all(row[-1] is None for row in table.rows):
        return []
    stress_best(table, all_series, range(1, 1 + len(columns)))
    note = f"{what}, mean over seeds; fit: the median. Best: {best}, by the mean over pairs of dataset and seed, among "
    note += f"the methods with the most pairs; others may be ahead of it. Differences: {_DIFFERENCES}"
    title = on_split(title.format(datasets[0]), all_series[0].results[0].cell.split)
    return [Block(f"{name}_overview", title, table, note)]


def few_shot_comparison(all_series: Sequence[Series], shots: Sequence[str], name: str) -> list[Block]:
    """Every method against the best, for each number of shots; scores of the series are named by their shots."""
    methods = by_label(all_series)
    best = {number: best_label(all_series, number) for number in shots}
    table = Table(["method", *(counted(int(number), "shot") for number in shots)])
    judged = False
    for label, own in methods.items():
        cells: list[str | None] = []
        for number, first in best.items():
            found = None if first in (label, None) else compare_series(own, methods[str(first)], number)
            judged |= found is not None
            cells.append("best" if label == first else f"{found} {found.verdict}" if found else None)
        if any(cells):
            table.add(label, *cells)
    note = f"Accuracy minus that of the best with as many images per class, {_DIFFERENCES}"
    title = on_split("Paired comparison with the best", all_series[0].results[0].cell.split)
    return [Block(f"{name}_overview", title, table, note)] if judged else []


def stress_best(table: Table, all_series: Iterable[Series], columns: Iterable[int]) -> None:
    """Bold: the best of each dataset and backbone, as far as the printed digits tell."""
    backbones = {s.label: backbone_of(s.results[0]) for s in all_series}
    for column in columns:
        groups: dict[object, list[tuple[float, int]]] = {}
        for number, row in enumerate(table.rows):
            dataset, label = row[:2] if table.header[0] == "dataset" else (None, row[0])
            value = row[column]
            if isinstance(value, float | Stat):
                digits = value.digits if isinstance(value, Stat) else 1
                groups.setdefault((dataset, backbones[str(label)]), []).append((round(float(value), digits), number))
        for group in groups.values():
            best = max(printed for printed, _ in group)
            if len(group) > 1:
                table.bold.update((number, column) for printed, number in group if printed == best)


def list_missing(results: Sequence[CellResult]) -> list[str]:
    """A sentence for each method: "experts, 16 shots: DTD, EuroSAT (seeds 2, 3)".

    Datasets with equal seeds, and shots with equal datasets, are named together.
    """
    by_method: dict[str, dict[int, dict[str, list[int]]]] = {}
    on = on_split("", results[0].cell.split)
    for data, label, seed, shots in missing(results):
        by_method.setdefault(label, {}).setdefault(shots, {}).setdefault(data, []).append(seed)
    return [
        f"{label}, {_joined(shots)} {'shot' if shots == (1,) else 'shots'}{on}: {places}"
        for label, by_shots in by_method.items()
        for places, shots in _alike({number: _place_names(seeds) for number, seeds in by_shots.items()})
    ]


def _joined(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def _place_names(seeds: dict[str, list[int]]) -> str:
    alike = _alike({data: tuple(numbers) for data, numbers in seeds.items()})
    return ", ".join(
        f"{_joined(data)} ({'seed' if len(numbers) == 1 else 'seeds'} {_joined(numbers)})" for numbers, data in alike
    )


def _alike(values: dict[Any, Any]) -> list[tuple[Any, tuple[Any, ...]]]:
    """Each value, with the keys that have it."""
    keys: dict[Any, tuple[Any, ...]] = {}
    for key, value in values.items():
        keys[value] = (*keys.get(value, ()), key)
    return list(keys.items())
