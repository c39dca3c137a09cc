"""The smaller tables of a report: uncertainty, components, cost and settings."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from dear.bench.chapters import Block, Chapter, on_split
from dear.bench.results import PROTOCOLS, CellResult, show_value
from dear.bench.series import Stat, labels, pick, stat
from dear.bench.tables import main_results
from dear.core.metrics import interval_text
from dear.core.table import Table
from dear.trials.outcome import TEST


def detail_chapters(results: Sequence[CellResult]) -> list[Chapter]:
    chapters = [
        Chapter("uncertainty", "Intervals and calibration", _for_each_split(results, _uncertainty)),
        Chapter("components", "Accuracy of each component alone", _for_each_split(results, _components)),
        Chapter("cost", "Time, memory, parameters", [_cost(results)]),
        Chapter("settings", "Settings, versions, machine", _settings_tables(results)),
    ]
    return [chapter for chapter in chapters if chapter.blocks]


def _for_each_split(results: Sequence[CellResult], *makers: Callable[[list[CellResult]], Block | None]) -> list[Block]:
    """Blocks of the protocols whose parts have fixed names, for each split of their results."""
    protocols = [name for name, protocol in PROTOCOLS.items() if not protocol.has_targets]
    groups = [group for protocol in protocols for group in main_results(results, protocol).values()]
    return [block for make in makers for group in groups if (block := make(group))]


def _by_place(results: Sequence[CellResult]) -> dict[tuple[str, str, int], list[CellResult]]:
    """Results that differ only in their seed, by dataset, label and shots."""
    groups: dict[tuple[str, str, int], list[CellResult]] = {}
    for result, label in zip(results, labels(results), strict=True):
        groups.setdefault((result.cell.dataset, label, result.cell.shots), []).append(result)
    return groups


def _uncertainty(results: list[CellResult]) -> Block | None:
    parts = PROTOCOLS[results[0].cell.protocol].parts
    columns = [f"{part}{column}" for part in parts for column in ("", ", 95% interval", ", ECE")]
    table = Table(["dataset", "method", "shots", *columns, "seeds"])
    for (dataset, label, shots), group in _by_place(results).items():
        row: list[object] = []
        for part in parts:
            outcomes = [outcome for result in group if (outcome := pick(result, part))]
            ends = [fmean(outcome.interval[side] for outcome in outcomes) for side in (0, 1)] if outcomes else None
            interval = ends and interval_text((ends[0], ends[1]), 1)
            row += [stat(outcome.accuracy for outcome in outcomes), interval, stat(outcome.ece for outcome in outcomes)]
        table.add(dataset, label, shots, *row, len(group))
    note = (
        "Interval: of the accuracy (%) on these test images, its ends averaged over seeds; Wilson's, but of cells run "
    )
    note += "before December 2026 a bootstrap over images. ECE: expected calibration error (%)."
    return _block("uncertainty", results[0], table, note)


def _components(results: list[CellResult]) -> Block | None:
    results = [result for result in results if result.components]
    names = list(dict.fromkeys(name for result in results for scores in result.components for name in scores.alone))
    table = Table(["dataset", "method", "shots", "what", *names, "cosine", "seeds"])
    for (dataset, label, shots), group in _by_place(results).items():
        for part in dict.fromkeys(scores.part for result in group for scores in result.components):
            in_part = [scores for result in group for scores in result.components if scores.part == part]
            row = [stat(scores.alone[name] for scores in in_part if name in scores.alone) for name in names]
            cosine = stat((scores.cosine for scores in in_part if scores.cosine is not None), digits=2)
            table.add(dataset, label, shots, f"alone, {part}", *row, cosine, len(group))
        weights = [result.fusion or {} for result in group]
        row = [stat((one[name] for one in weights if name in one), digits=2) for name in names]
        table.add(dataset, label, shots, "fusion weight", *row, None, len(group))
    note = "Accuracy (%) by the votes of one component alone; the learned fusion weights; and the mean cosine "
    note += "similarity of two features of an image, the class feature aside: 1 for copies of one another."
    return _block("components", results[0], table, note) if results else None


def _block(name: str, result: CellResult, table: Table, note: str) -> Block | None:
    protocol, split = result.cell.protocol, result.cell.split
    title = PROTOCOLS[protocol].title
    name = "_".join([name, protocol] + ([] if split == TEST else [split]))
    return Block(name, on_split(title, split), table, note, main=False) if table.rows else None


def _cost(results: Sequence[CellResult]) -> Block:
    table = Table(["protocol", "method", "cells", "fit (s)", "evaluate (s)", "peak memory (MB)", "trained parameters"])
    for name, protocol in PROTOCOLS.items():
        own = [result for group in main_results(results, name).values() for result in group]
        for method in dict.fromkeys(result.cell.method for result in own):
            _add_cost(table, protocol.title, method, [result for result in own if result.cell.method == method])
    ablated = [(result.cell.variant.ablation, result) for result in results if result.cell.variant]
    for ablation in sorted({name for name, _ in ablated}):
        _add_cost(table, "Ablation", ablation, [result for name, result in ablated if name == ablation])
    note = "Per cell. Seconds: mean ± std; memory: the highest of all."
    return Block("cost", "Cost", table, note, main=False)


def _add_cost(table: Table, protocol: str, method: str, results: list[CellResult]) -> None:
    memory = max((r.peak_memory_mb for r in results if r.peak_memory_mb is not None), default=None)
    counts = sorted({r.trained_parameters for r in results})
    parameters = f"{counts[0]:,}" + (f" to {counts[-1]:,}" if len(counts) > 1 else "")
    fit, evaluate = stat(r.seconds.fit for r in results), stat(r.seconds.evaluate for r in results)
    peak = None if memory is None else Stat(memory, digits=0)
    table.add(protocol, method, len(results), fit, evaluate, peak, parameters)


def _settings_tables(results: Sequence[CellResult]) -> list[Block]:
    all_settings = [result.cell.settings for result in results]
    shared, differing = Table(["setting", "value"]), Table(["setting", "values", "cells"])
    for name in sorted({name for settings in all_settings for name in settings}):
        values = _counted(settings[name] for settings in all_settings if name in settings)
        if len(values) == 1:
            shared.add(name, next(iter(values)))
        for value, count in values.items() if len(values) > 1 else ():
            differing.add(name, value, count)
    environment = Table(["what", "value", "cells"])
    for facts in ([r.versions for r in results], [r.machine for r in results]):
        for name in dict.fromkeys(name for one in facts for name in one):
            for value, count in _counted(one.get(name) for one in facts).items():
                environment.add(name, value, count)
    days = sorted(result.finished for result in results)
    environment.add("finished", days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}", len(results))
    note = "The same in every cell that has them."
    blocks = [
        Block("settings_shared", "Settings that all cells share", shared, note, main=False),
        Block("settings_differing", "Settings that differ", differing, "", main=False),
        Block("versions", "Versions and machine", environment, "", main=False),
    ]
    return [block for block in blocks if block.table.rows]


def _counted(values: Iterable[object]) -> Counter[str]:
    return Counter(show_value(value) for value in values)
