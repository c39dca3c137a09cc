"""Series: the results of one method on one dataset, over seeds; their means, averages and comparisons."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean, stdev
from typing import Any

import numpy as np

from dear.bench.results import BASE_TO_NOVEL, FEW_SHOT, PROTOCOLS, Cell, CellResult, show_value
from dear.core.metrics import harmonic_mean
from dear.core.names import DECOUPLED, FUSION, PLAIN
from dear.methods.registry import ZERO_SHOT
from dear.trials.outcome import ALL, BASE, NOVEL, TEST, Outcome
from dear.trials.paired import Comparison, compare, harmonic_share, mean_share

HM, TARGETS = "HM", "targets"
_BACKBONE, _TABLE = ("model", "pretrained", "text_features"), "text_features_sha256"


@dataclass(frozen=True)
class Stat:
    """Mean over seeds and sample standard deviation (None for one seed)."""

    mean: float
    std: float | None = None
    seeds: int = 1
    digits: int = 1

    def __float__(self) -> float:
        return self.mean

    def __str__(self) -> str:
        return f"{self.mean:.{self.digits}f}" + ("" if self.std is None else f" ± {self.std:.{self.digits}f}")


@dataclass(frozen=True)
class Series:
    """Results of one method on one dataset, and their accuracies: seed -> name -> %.

    `inference`: the one that was asked for; None: that which the paper uses for the protocol. `by_shots`: scores are
    named by their shots.
    """

    dataset: str
    label: str
    scores: dict[int, dict[str, float]]
    results: tuple[CellResult, ...]
    inference: str | None = None
    by_shots: bool = False

    def stat(self, name: str) -> Stat | None:
        return stat(scores[name] for scores in self.scores.values() if name in scores)

    @property
    def names(self) -> set[str]:
        return {name for scores in self.scores.values() for name in scores}

    def answers(self, name: str) -> dict[int, list[np.ndarray]]:
        """The right answers of each seed, by the parts of a score: base and novel for HM, all targets, or one part."""
        by_seed = {}
        for result in self.results:
            if self.by_shots and str(result.cell.shots) != name:
                continue
            known = {HM: (BASE, NOVEL), TARGETS: result.cell.targets}
            parts = (ALL,) if self.by_shots else known.get(name, (name,))
            outcomes = [outcome for part in parts if (outcome := pick(result, part, self.inference))]
            if len(outcomes) == len(parts):
                by_seed[result.cell.seed] = [outcome.answers for outcome in outcomes]
        return by_seed


def stat(values: Iterable[float], digits: int = 1) -> Stat | None:
    sample = list(values)
    if not sample:
        return None
    return Stat(fmean(sample), stdev(sample) if len(sample) > 1 else None, len(sample), digits)


def pick(result: CellResult, part: str, inference: str | None = None) -> Outcome | None:
    """The outcome on a part; by default, with the inference that the paper uses for the protocol."""
    order = [FUSION, PLAIN, DECOUPLED]
    if PROTOCOLS[result.cell.protocol].has_targets:
        order.reverse()
    by_inference = {outcome.inference: outcome for outcome in result.outcomes if outcome.part == part}
    choices = [inference] if inference else [*order, *by_inference]
    return next((by_inference[choice] for choice in choices if choice in by_inference), None)


def scores(result: CellResult, inference: str | None = None) -> dict[str, float]:
    """Accuracies of a result by part, with their HM or the average of all targets."""
    cell = result.cell
    names = PROTOCOLS[cell.protocol].parts or (cell.dataset, *cell.targets)
    accuracies = {name: outcome.accuracy for name in names if (outcome := pick(result, name, inference))}
    if cell.protocol == BASE_TO_NOVEL and len(accuracies) == 2:
        accuracies[HM] = harmonic_mean(accuracies[BASE], accuracies[NOVEL])
    if cell.targets and all(target in accuracies for target in cell.targets):
        accuracies[TARGETS] = fmean(accuracies[target] for target in cell.targets)
    return accuracies


def labels(results: Sequence[CellResult]) -> list[str]:
    """A name for each result: its method, and the settings that tell it from others of the same method.

    These are the settings in which cells differ that otherwise differ only in their seed: different settings are never
    averaged. A backbone is named whenever there are several.
    """
    cells = [result.cell for result in results]
    differing: dict[str, set[str]] = {}
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for cell in cells:
        shots = cell.shots if cell.protocol == FEW_SHOT else None  # elsewhere a setting like any other
        key = (cell.method, cell.protocol, cell.split, cell.dataset, cell.variant, shots)
        groups.setdefault(key, []).append(_settings(cell))
    for key, group in groups.items():
        names = differences_in(group)
        if len({one.get(_TABLE) for one in group} - {None}) < 2:  # there is a table or none: that is said already
            names.discard(_TABLE)
        differing.setdefault(key[0], set()).update(names)
    backbones = set(_BACKBONE) & differences_in([_settings(cell) for cell in cells])
    return [_label(cell.method, _settings(cell), differing[cell.method] | backbones) for cell in cells]


def differences_in(settings: Sequence[Mapping[str, Any]]) -> set[str]:
    """Names of the settings that are not the same in all."""
    names = {name for one in settings for name in one}
    return {name for name in names if len({show_value(one.get(name)) for one in settings}) > 1}


def backbone_of(result: CellResult) -> tuple[str, ...]:
    return tuple(show_value(_settings(result.cell).get(name)) for name in _BACKBONE)


def series(results: Sequence[CellResult], inference: str | None = None, by_shots: bool = False) -> list[Series]:
    """One for each dataset and label, in order of appearance."""
    groups: dict[tuple[str, str], list[CellResult]] = {}
    for result, label in zip(results, labels(results), strict=True):
        groups.setdefault((result.cell.dataset, label), []).append(result)
    all_series = []
    for (dataset, label), group in groups.items():
        by_seed: dict[int, dict[str, float]] = {}
        for result in group:
            named = scores(result, inference)
            if by_shots and ALL in named:
                named = {str(result.cell.shots): named[ALL]}
            by_seed.setdefault(result.cell.seed, {}).update(named)
        all_series.append(Series(dataset, label, by_seed, tuple(group), inference, by_shots))
    return all_series


def by_label(all_series: Iterable[Series]) -> dict[str, list[Series]]:
    """The series of each method."""
    methods: dict[str, list[Series]] = {}
    for one in all_series:
        methods.setdefault(one.label, []).append(one)
    return methods


def datasets_of(all_series: Iterable[Series]) -> list[str]:
    return list(dict.fromkeys(one.dataset for one in all_series))


def complete_datasets(all_series: Sequence[Series]) -> list[str]:
    """Datasets on which every method has every score that it has anywhere: averages are over these."""
    required = {label: set[str]().union(*(s.names for s in own)) for label, own in by_label(all_series).items()}
    present = {(s.dataset, s.label): s.names for s in all_series}
    return [
        data
        for data in datasets_of(all_series)
        if all(names <= present.get((data, label), set()) for label, names in required.items())
    ]


def complete_methods(all_series: Sequence[Series]) -> list[str]:
    """Labels of the methods that have all their scores on every dataset: only these have an average over all."""
    datasets = set(datasets_of(all_series))
    return [
        label
        for label, own in by_label(all_series).items()
        if {s.dataset for s in own} == datasets and len({frozenset(s.names) for s in own}) == 1
    ]


def average(own: Sequence[Series], datasets: Sequence[str], name: str) -> Stat | None:
    """One method's mean over datasets for each seed that all of them have, then mean and std over seeds.

    HM is that of the mean base and the mean novel, as in the paper's averages.
    """
    by_dataset = {s.dataset: s.scores for s in own}
    if not datasets or any(dataset not in by_dataset for dataset in datasets):
        return None
    names = {BASE, NOVEL} if name == HM else {name}
    complete = [{seed for seed, one in by_dataset[dataset].items() if names <= set(one)} for dataset in datasets]
    means = [
        {part: fmean(by_dataset[dataset][seed][part] for dataset in datasets) for part in names}
        for seed in sorted(set.intersection(*complete))
    ]
    return stat(harmonic_mean(one[BASE], one[NOVEL]) if name == HM else one[name] for one in means)


def compare_series(first: Sequence[Series], second: Sequence[Series], name: str) -> Comparison | None:
    """Two methods in a score, on the datasets and seeds that both have; None if they share none."""
    others = {s.dataset: s.answers(name) for s in second}
    pairs = [(s.answers(name), others[s.dataset]) for s in first if s.dataset in others]
    same_images = all(result.cell.split == TEST for s in first for result in s.results)  # held-out ones are of a draw
    return compare(
        [ours for ours, _ in pairs], [theirs for _, theirs in pairs], harmonic_share if name == HM else mean_share,
        same_images,
    )  # fmt: skip


def best_label(all_series: Sequence[Series], name: str) -> str | None:
    """The method with the highest mean, among those with the most pairs of dataset and seed."""
    values = {
        label: [one[name] for s in own for one in s.scores.values() if name in one]
        for label, own in by_label(all_series).items()
    }
    most = max(map(len, values.values()), default=0)
    complete = {label: fmean(own) for label, own in values.items() if own and len(own) == most}
    return max(complete, key=lambda label: complete[label]) if complete else None


def missing(results: Sequence[CellResult]) -> list[tuple[str, str, int, int]]:
    """(dataset, label, seed, shots) that are missing from the grid of these results, which share a protocol.

    Zero-shot does not depend on shots, so it is only expected at those at which it was run at all.
    """
    named = [(result.cell, label) for result, label in zip(results, labels(results), strict=True)]
    present = {(cell.dataset, label, cell.seed, cell.shots) for cell, label in named}
    datasets, seeds = {cell.dataset for cell, _ in named}, {cell.seed for cell, _ in named}
    trained = {cell.shots for cell, _ in named if not is_zero_shot(cell)}
    shots: dict[str, set[int]] = {}
    for cell, label in named:
        in_grid = cell.protocol == FEW_SHOT and not is_zero_shot(cell)
        shots.setdefault(label, set()).update(trained if in_grid else {cell.shots})
    expected = {place for label in shots for place in product(datasets, [label], seeds, shots[label])}
    return sorted(expected - present)


def is_zero_shot(cell: Cell) -> bool:
    return cell.method.startswith(ZERO_SHOT)


def _settings(cell: Cell) -> dict[str, Any]:
    settings = {name: value for name, value in cell.settings.items() if name not in ("seed", "shots")}
    if "text_features" in settings:  # each dataset has its own file: rows of a table say only that there was one
        settings["text_features"] = "table"
    return settings if cell.protocol == FEW_SHOT else settings | {"shots": cell.shots}


def _label(method: str, settings: Mapping[str, Any], names: set[str]) -> str:
    parts = [f"{name} {show_value(settings[name]) if name in settings else 'unset'}" for name in sorted(names)]
    return f"{method} ({', '.join(parts)})" if parts else method
