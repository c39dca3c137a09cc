"""Statistics over results: grouping, averaging and comparing. Pure functions."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean, stdev
from typing import Any

from dear.bench.protocols import ALL, BASE, BASE_TO_NOVEL, FEW_SHOT, NOVEL, PROTOCOLS
from dear.bench.results import Cell, Evaluation, Result, show_value
from dear.core.metrics import harmonic_mean
from dear.core.names import DECOUPLED, FUSION, PLAIN

HM, TARGETS = "HM", "targets"
_BACKBONE, _TABLE = ("model", "pretrained", "text_features"), "text_features_sha256"
Scores = dict[str, float]


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
class Difference:
    """Mean of paired differences and its standard error (None for one pair)."""

    mean: float
    error: float | None
    pairs: int

    def __float__(self) -> float:
        return self.mean

    def __str__(self) -> str:
        return f"{self.mean:+.1f}" + ("" if self.error is None else f" ± {self.error:.1f}")


@dataclass(frozen=True)
class Series:
    """Results of one method on one dataset, and their scores: seed -> name -> score.

    `inference`: the one that was asked for; None: that which the paper uses for the protocol."""

    dataset: str
    label: str
    scores: dict[int, Scores]
    results: tuple[Result, ...]
    inference: str | None = None

    def stat(self, name: str) -> Stat | None:
        return stat(scores[name] for scores in self.scores.values() if name in scores)

    @property
    def names(self) -> set[str]:
        return {name for scores in self.scores.values() for name in scores}


def stat(values: Iterable[float], digits: int = 1) -> Stat | None:
    sample = list(values)
    if not sample:
        return None
    return Stat(fmean(sample), stdev(sample) if len(sample) > 1 else None, len(sample), digits)


def pick(result: Result, name: str, inference: str | None = None) -> Evaluation | None:
    """The evaluation of this name; by default, with the inference that the paper uses for the protocol."""
    order = [FUSION, PLAIN, DECOUPLED]
    if PROTOCOLS[result.cell.protocol].has_targets:
        order.reverse()
    by_inference = {e.inference: e for e in result.evaluations if e.name == name}
    choices = [inference] if inference else [*order, *by_inference]
    return next((by_inference[choice] for choice in choices if choice in by_inference), None)


def scores(result: Result, inference: str | None = None) -> Scores:
    """Accuracies of a result by name, with their HM or the average of all targets."""
    cell = result.cell
    names = PROTOCOLS[cell.protocol].evaluations or (cell.dataset, *cell.targets)
    accuracies = {name: e.accuracy for name in names if (e := pick(result, name, inference))}
    if cell.protocol == BASE_TO_NOVEL and len(accuracies) == 2:
        accuracies[HM] = harmonic_mean(accuracies[BASE], accuracies[NOVEL])
    if cell.targets and all(target in accuracies for target in cell.targets):
        accuracies[TARGETS] = fmean(accuracies[target] for target in cell.targets)
    return accuracies


def labels(results: Sequence[Result]) -> list[str]:
    """A name for each result: its method, and the settings that tell it from others of the same method.

    These are the settings in which cells differ that otherwise differ only in their seed: different settings are never
    averaged. A backbone is named whenever there are several.
    """
    cells = [result.cell for result in results]
    differing: dict[str, set[str]] = {}
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for cell in cells:
        key = (cell.method, cell.protocol, cell.split, cell.dataset, cell.variant, _shots_key(cell))
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


def backbone_of(result: Result) -> tuple[str, ...]:
    return tuple(show_value(_settings(result.cell).get(name)) for name in _BACKBONE)


def series(results: Sequence[Result], inference: str | None = None, by_shots: bool = False) -> list[Series]:
    """One for each dataset and label, in order of appearance; `by_shots`: scores are named by their shots."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result, label in zip(results, labels(results), strict=True):
        groups.setdefault((result.cell.dataset, label), []).append(result)
    all_series = []
    for (dataset, label), group in groups.items():
        by_seed: dict[int, Scores] = {}
        for result in group:
            named = scores(result, inference)
            if by_shots and ALL in named:
                named = {str(result.cell.shots): named[ALL]}
            by_seed.setdefault(result.cell.seed, {}).update(named)
        all_series.append(Series(dataset, label, by_seed, tuple(group), inference))
    return all_series


def complete_datasets(all_series: Sequence[Series]) -> list[str]:
    """Datasets on which every method has every score that it has anywhere: averages are over these."""
    datasets = list(dict.fromkeys(s.dataset for s in all_series))
    required: dict[str, set[str]] = {}
    for s in all_series:
        required.setdefault(s.label, set()).update(s.names)
    present = {(s.dataset, s.label): s.names for s in all_series}
    return [d for d in datasets if all(names <= present.get((d, label), set()) for label, names in required.items())]


def complete_methods(all_series: Sequence[Series]) -> list[str]:
    """Labels of the methods that have all their scores on every dataset: only these have an average over all."""
    datasets = {s.dataset for s in all_series}
    by_label: dict[str, list[Series]] = {}
    for s in all_series:
        by_label.setdefault(s.label, []).append(s)
    return [
        label
        for label, own in by_label.items()
        if {s.dataset for s in own} == datasets and len({frozenset(s.names) for s in own}) == 1
    ]


def average(method_series: Sequence[Series], datasets: Sequence[str], name: str) -> Stat | None:
    """For one method: the mean over datasets for each seed that all of them have, then mean and std over seeds.

    HM is that of the mean base and the mean novel, as in the paper's averages.
    """
    if name == HM:
        base, novel = _means_by_seed(method_series, datasets, BASE, NOVEL)
        return stat(harmonic_mean(b, n) for b, n in zip(base, novel, strict=True))
    return stat(_means_by_seed(method_series, datasets, name)[0])


def _means_by_seed(method_series: Sequence[Series], datasets: Sequence[str], *names: str) -> list[list[float]]:
    by_dataset = {s.dataset: s.scores for s in method_series}
    if not datasets or any(d not in by_dataset for d in datasets):
        return [[] for _ in names]
    complete = [{seed for seed, one in by_dataset[d].items() if set(names) <= set(one)} for d in datasets]
    seeds = sorted(set.intersection(*complete))
    return [[fmean(by_dataset[d][seed][name] for d in datasets) for seed in seeds] for name in names]


def paired_difference(changed: Sequence[Series], default: Sequence[Series], name: str) -> Difference | None:
    """Over all pairs with the same dataset and seed."""
    base = {(s.dataset, seed): one[name] for s in default for seed, one in s.scores.items() if name in one}
    pairs = [
        one[name] - base[s.dataset, seed]
        for s in changed
        for seed, one in s.scores.items()
        if name in one and (s.dataset, seed) in base
    ]
    if not pairs:
        return None
    return Difference(fmean(pairs), stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 else None, len(pairs))


def missing(results: Sequence[Result]) -> list[tuple[str, str, int, int]]:
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
    return cell.method.startswith("zero-shot")


def _shots_key(cell: Cell) -> int | None:
    """Few-shot cells are meant to differ in their shots; elsewhere shots are a setting like any other."""
    return cell.shots if cell.protocol == FEW_SHOT else None


def _settings(cell: Cell) -> dict[str, Any]:
    settings = {name: value for name, value in cell.settings.items() if name not in ("seed", "shots")}
    if "text_features" in settings:  # each dataset has its own file: rows of a table say only that there was one
        settings["text_features"] = "table"
    return settings if cell.protocol == FEW_SHOT else settings | {"shots": cell.shots}


def _label(method: str, settings: Mapping[str, Any], names: set[str]) -> str:
    parts = [f"{name} {show_value(settings[name]) if name in settings else 'unset'}" for name in sorted(names)]
    return f"{method} ({', '.join(parts)})" if parts else method
