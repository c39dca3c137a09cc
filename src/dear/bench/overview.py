"""One row per method: its score on each dataset, its cost, and how it compares with the best."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

from dear.bench.chapters import AVERAGE, Block, on_split
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
)
from dear.core.table import Table
from dear.trials.outcome import ALL
from dear.trials.paired import LEVEL, Comparison

_INTERVAL = (
    "with its 95% interval (a bootstrap over seeds and over images, the same for both methods; one draw of one test "
    "set: the wider of Tango's and that of McNemar's exact test). Ahead, behind: the interval is above or below zero. "
    f"Level: all of it is within {LEVEL:g} points. Undecided: none of these; more images would tell."
)


def base_to_novel_comparison(all_series: Sequence[Series], name: str) -> list[Block]:
    """Harmonic means on each dataset, and every method against zero-shot of its backbone and against the best.

    None for a single method, or for results without answers per image.
    """
    datasets, whole = datasets_of(all_series), complete_methods(all_series)
    columns = [*datasets, *([AVERAGE] if len(datasets) > 1 else [])]

    def means(label: str, own: Sequence[Series]) -> list[float | None]:
        by_dataset = {s.dataset: s.stat(HM) for s in own}
        each = [by_dataset.get(dataset) for dataset in datasets]
        of_all = [average(own, datasets, HM) if label in whole else None] if AVERAGE in columns else []
        return [_mean(value) for value in (*each, *of_all)]

    table, best = _one_row_per_method(all_series, HM, "HM", columns, means)
    note = f"Harmonic mean of base and novel accuracy (%), mean over seeds; fit: the median. Best: {best}, by the mean "
    note += "over pairs of dataset and seed, among the methods with the most pairs; others may be ahead of it. "
    note += f"Differences: the mean over datasets and the seeds that both have, {_INTERVAL}"
    title = on_split("Harmonic mean on each dataset, and paired comparison", all_series[0].results[0].cell.split)
    return [Block(f"{name}_overview", title, table, note)] if table.rows else []


def transfer_comparison(all_series: Sequence[Series], name: str) -> list[Block]:
    """The average over targets, and every method against zero-shot and against the best, as from base to novel."""
    table, best = _one_row_per_method(
        all_series, TARGETS, "average", ["average of targets"], lambda _, own: [_mean(own[0].stat(TARGETS))]
    )
    note = f"Mean accuracy (%) over the targets and seeds; fit: the median. Best: {best}. Differences: the mean over "
    note += f"the seeds that both have, {_INTERVAL}"
    title = on_split(f"Paired comparison: from {all_series[0].dataset}", all_series[0].results[0].cell.split)
    return [Block(f"{name}_overview", title, table, note)] if table.rows else []


def _one_row_per_method(
    all_series: Sequence[Series],
    score: str,
    short: str,
    columns: Sequence[str],
    means: Callable[[str, Sequence[Series]], list[float | None]],
) -> tuple[Table, str | None]:
    """`means` of each method in `columns`, its cost, its comparisons; and the best method. No rows if nothing can be
    compared.

    `short`: the score's name in the header.
    """
    methods = {label: own for label, own in by_label(all_series).items() if any(s.stat(score) for s in own)}
    best = best_label(all_series, score)
    firsts = {label: own[0].results[0] for label, own in methods.items()}
    zero_shot = {backbone_of(first): label for label, first in reversed(firsts.items()) if is_zero_shot(first.cell)}
    table = Table(["method", *columns, "fit (s)", f"{short} - zero-shot", f"{short} - best", "verdict", "pairs"])
    for label, own in methods.items():
        frozen = zero_shot.get(backbone_of(firsts[label]))
        to_frozen = compare_series(own, methods[frozen], score) if frozen and label != frozen else None
        to_best = compare_series(own, methods[best], score) if best and label != best else None
        comparison = to_best or to_frozen
        if comparison is None and label != best:
            continue
        seconds = median(result.seconds.fit for s in own for result in s.results)
        verdict = "best" if label == best else to_best and to_best.verdict
        table.add(label, *means(label, own), seconds, to_frozen, to_best, verdict, comparison and comparison.pairs)
    if all(row[-1] is None for row in table.rows):
        table.rows.clear()
    _stress_highest(table, columns=range(1, 1 + len(columns)))
    return table, best


def few_shot_comparison(all_series: Sequence[Series], shots: Sequence[str], name: str) -> list[Block]:
    """Every method against the best, for each number of shots; scores of the series are named by their shots."""
    columns, best = [], []
    for number in shots:
        of_shots = [_with_shots(s, int(number)) for s in all_series]
        methods = by_label([s for s in of_shots if s.results])
        first = best_label(of_shots, number)
        if first is None:
            return []
        columns.append(
            {label: compare_series(own, methods[first], ALL) for label, own in methods.items() if label != first}
        )
        best.append(first)
    table = Table(["method", *(f"{n} shots" if n != "1" else "1 shot" for n in shots)])
    for label in by_label(all_series):
        cells = ["best" if label == first else _judged(c.get(label)) for c, first in zip(columns, best, strict=True)]
        if any(cells):
            table.add(label, *cells)
    if len(table.rows) < 2 or all(not any(c.values()) for c in columns):
        return []
    note = "Accuracy minus that of the best with as many images per class, the mean over datasets and the seeds that "
    note += f"both have, {_INTERVAL}"
    title = on_split("Paired comparison with the best", all_series[0].results[0].cell.split)
    return [Block(f"{name}_overview", title, table, note)]


def _with_shots(s: Series, shots: int) -> Series:
    return replace(s, results=tuple(result for result in s.results if result.cell.shots == shots))


def _judged(comparison: Comparison | None) -> str | None:
    return None if comparison is None else f"{comparison} {comparison.verdict}"


def _mean(value: Stat | None) -> float | None:
    return None if value is None else value.mean


def _stress_highest(table: Table, columns: Sequence[int]) -> None:
    for column in columns:
        values = {n: row[column] for n, row in enumerate(table.rows)}
        printed = {n: round(value, 1) for n, value in values.items() if isinstance(value, float)}
        if len(printed) > 1:
            table.bold.update((n, column) for n, value in printed.items() if value == max(printed.values()))
