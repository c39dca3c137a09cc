"""From cells to numbers: what is grouped, averaged and compared. Pure functions of cells."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean, stdev
from typing import Any

from dear.bench.results import BASE_TO_NOVEL, FEW_SHOT, Cell, Evaluation, show_value
from dear.core.metrics import harmonic_mean

HM, ALL, TARGETS = "HM", "all", "targets"
_BACKBONE = ("model", "pretrained")
Scores = dict[str, float]


@dataclass(frozen=True)
class Stat:
    """Mean over seeds and sample standard deviation, which one seed does not have."""

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
    """Mean of paired differences and its standard error, which one pair does not have."""

    mean: float
    error: float | None
    pairs: int

    def __float__(self) -> float:
        return self.mean

    def __str__(self) -> str:
        return f"{self.mean:+.1f}" + ("" if self.error is None else f" ± {self.error:.1f}")


@dataclass(frozen=True)
class Series:
    """What one method reaches on one dataset: the scores of each seed, by name."""

    dataset: str
    label: str
    scores: dict[int, Scores]
    cells: tuple[Cell, ...]

    def stat(self, name: str) -> Stat | None:
        return stat(of[name] for of in self.scores.values() if name in of)

    @property
    def names(self) -> set[str]:
        return {name for of in self.scores.values() for name in of}


def stat(values: Iterable[float], digits: int = 1) -> Stat | None:
    found = list(values)
    if not found:
        return None
    return Stat(fmean(found), stdev(found) if len(found) > 1 else None, len(found), digits)


def pick(cell: Cell, name: str, inference: str | None = None) -> Evaluation | None:
    """The evaluation of this name; where nothing is said, the inference that the paper uses for the protocol."""
    order = ["fusion", "plain", "decoupled"]
    if cell.protocol not in (BASE_TO_NOVEL, FEW_SHOT):
        order.reverse()
    found = {e.inference: e for e in cell.evaluations if e.name == name}
    return next((found[i] for i in ([inference] if inference else [*order, *found]) if i in found), None)


def scores(cell: Cell, inference: str | None = None) -> Scores:
    """Accuracies of a cell by name; HM and the average of all targets are computed here, never read."""
    names = {BASE_TO_NOVEL: ("base", "novel"), FEW_SHOT: (ALL,)}.get(cell.protocol, (cell.dataset, *cell.targets))
    found = {name: e.accuracy for name in names if (e := pick(cell, name, inference))}
    if cell.protocol == BASE_TO_NOVEL and len(found) == 2:
        found[HM] = harmonic_mean(found["base"], found["novel"])
    if cell.targets and all(target in found for target in cell.targets):
        found[TARGETS] = fmean(found[target] for target in cell.targets)
    return found


def labels(cells: Sequence[Cell]) -> list[str]:
    """A name for what each cell ran: its method, and the settings without which unlike things would be averaged.

    Those are the settings in which cells differ that otherwise differ in nothing but their seed. A backbone is named
    whenever there are several.
    """
    differing: dict[str, set[str]] = {}
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for cell in cells:
        key = (cell.method, cell.protocol, cell.split, cell.dataset, cell.variant, _shots_key(cell))
        groups.setdefault(key, []).append(_settings(cell))
    for key, group in groups.items():
        differing.setdefault(key[0], set()).update(differences_in(group))
    backbones = set(_BACKBONE) & differences_in([_settings(cell) for cell in cells])
    return [_label(cell.method, _settings(cell), differing[cell.method] | backbones) for cell in cells]


def differences_in(settings: Sequence[Mapping[str, Any]]) -> set[str]:
    """Names of the settings that are not the same in all."""
    names = {name for of in settings for name in of}
    return {name for name in names if len({show_value(of.get(name)) for of in settings}) > 1}


def backbone_of(cell: Cell) -> tuple[str, ...]:
    return tuple(show_value(cell.settings.get(name)) for name in _BACKBONE)


def series(cells: Sequence[Cell], inference: str | None = None, by_shots: bool = False) -> list[Series]:
    """One for each dataset and label, in order of appearance; `by_shots`: scores are named by their shots."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell, label in zip(cells, labels(cells), strict=True):
        groups.setdefault((cell.dataset, label), []).append(cell)
    found = []
    for (dataset, label), group in groups.items():
        by_seed: dict[int, Scores] = {}
        for cell in group:
            of = scores(cell, inference)
            by_seed.setdefault(cell.seed, {}).update({str(cell.shots): of[ALL]} if by_shots and ALL in of else of)
        found.append(Series(dataset, label, by_seed, tuple(group)))
    return found


def complete_datasets(found: Sequence[Series]) -> list[str]:
    """Datasets on which every method has every score that it has anywhere: only these are averaged over."""
    datasets = list(dict.fromkeys(s.dataset for s in found))
    wanted: dict[str, set[str]] = {}
    for s in found:
        wanted.setdefault(s.label, set()).update(s.names)
    has = {(s.dataset, s.label): s.names for s in found}
    return [d for d in datasets if all(names <= has.get((d, label), set()) for label, names in wanted.items())]


def average(found: Sequence[Series], datasets: Sequence[str], name: str) -> Stat | None:
    """Of one method: the mean over datasets for each seed that all of them have, then mean and std over seeds.

    HM is that of the mean base and the mean novel, as the paper's averages are.
    """
    if name == HM:
        return stat(harmonic_mean(b, n) for b, n in zip(*_by_seed(found, datasets, "base", "novel"), strict=True))
    return stat(_by_seed(found, datasets, name)[0])


def _by_seed(found: Sequence[Series], datasets: Sequence[str], *names: str) -> list[list[float]]:
    of = {s.dataset: s.scores for s in found}
    if not datasets or any(d not in of for d in datasets):
        return [[] for _ in names]
    seeds = sorted(set.intersection(*({s for s, v in of[d].items() if set(names) <= set(v)} for d in datasets)))
    return [[fmean(of[d][seed][name] for d in datasets) for seed in seeds] for name in names]


def paired_difference(of: Sequence[Series], default: Sequence[Series], name: str) -> Difference | None:
    """Paired by dataset and seed: what both have."""
    base = {(s.dataset, seed): v[name] for s in default for seed, v in s.scores.items() if name in v}
    pairs = [
        v[name] - base[s.dataset, seed]
        for s in of
        for seed, v in s.scores.items()
        if name in v and (s.dataset, seed) in base
    ]
    if not pairs:
        return None
    return Difference(fmean(pairs), stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 else None, len(pairs))


def missing(cells: Sequence[Cell]) -> list[tuple[str, str, int, int]]:
    """(dataset, label, seed, shots) that the grid of these cells, of one protocol, implies but that are not there.

    Zero-shot does not depend on shots, so it is only expected at those at which it was run at all.
    """
    named = list(zip(cells, labels(cells), strict=True))
    there = {(cell.dataset, label, cell.seed, cell.shots) for cell, label in named}
    datasets, seeds = {cell.dataset for cell in cells}, {cell.seed for cell in cells}
    trained = {cell.shots for cell in cells if not cell.method.startswith("zero-shot")}
    shots: dict[str, set[int]] = {}
    for cell, label in named:
        grid = cell.protocol == FEW_SHOT and not cell.method.startswith("zero-shot")
        shots.setdefault(label, set()).update(trained if grid else {cell.shots})
    expected = {here for label in shots for here in product(datasets, [label], seeds, shots[label])}
    return sorted(expected - there)


def _shots_key(cell: Cell) -> int | None:
    """Few-shot cells are meant to differ in their shots; elsewhere shots are a setting like any other."""
    return cell.shots if cell.protocol == FEW_SHOT else None


def _settings(cell: Cell) -> dict[str, Any]:
    of = {name: value for name, value in cell.settings.items() if name not in ("seed", "shots")}
    return of if cell.protocol == FEW_SHOT else of | {"shots": cell.shots}


def _label(method: str, settings: Mapping[str, Any], names: set[str]) -> str:
    said = [f"{name} {show_value(settings[name]) if name in settings else 'unset'}" for name in sorted(names)]
    return f"{method} ({', '.join(said)})" if said else method
