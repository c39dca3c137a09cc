"""Paired comparison of methods: the same images, the same few-shot draws, an interval over both."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dear.bench.protocols import BASE, NOVEL, TEST
from dear.bench.results import Evaluation
from dear.bench.summary import HM, TARGETS, Series, pick

LEVEL = 2.0
"""Points: two methods are level if the whole interval of their difference is within this."""
_RESAMPLES = 4000


class Comparison(NamedTuple):
    """The mean difference of two methods in points, and its 95% interval."""

    mean: float
    low: float
    high: float
    pairs: int  # of dataset and seed

    @property
    def verdict(self) -> str:
        if self.low > 0 or self.high < 0:
            return "ahead" if self.low > 0 else "behind"
        return "level" if max(-self.low, self.high) < LEVEL else "undecided"

    def __str__(self) -> str:
        return f"{self.mean:+.1f} ({self.low:+.1f} to {self.high:+.1f})"


def compare(first: Sequence[Series], second: Sequence[Series], score: str) -> Comparison | None:
    """First minus second in `score`, the mean over the datasets and seeds that both have; None if there are none.

    The interval is a bootstrap over seeds and images; the variance over n seeds is multiplied by n / (n - 1), because
    resamples of n spread less by that. In a resample both methods have the same seeds and images, so what is hard for
    both does not widen it. Images of a test set are the same for all seeds; held-out ones are not, nor are those of
    other shots, which are not compared.
    """
    others, rng = {s.dataset: s for s in second}, np.random.default_rng(0)
    total = _harmonic_mean if score == HM else _mean
    means, resampled, pairs = [], [], 0
    for one in first:
        ours, theirs = (_right_answers(s, score) for s in (one, others.get(one.dataset)))
        seeds = sorted(seed for seed in ours.keys() & theirs.keys() if _sizes(ours[seed]) == _sizes(theirs[seed]))
        if not seeds:
            continue
        exact, drawn = [], []
        weights: list[np.ndarray] = []
        for seed in seeds:
            if not weights or one.results[0].cell.split != TEST:
                weights = [_resample(rng, len(right)) for right in ours[seed]]
            exact.append(total([r.mean() for r in ours[seed]]) - total([r.mean() for r in theirs[seed]]))
            scores = [total([w @ r for w, r in zip(weights, side[seed], strict=True)]) for side in (ours, theirs)]
            drawn.append(scores[0] - scores[1])
        means.append(np.mean(exact))
        differences = np.stack(drawn, 1)  # [resamples, seeds]
        over_seeds = ((_resample(rng, len(seeds)) - 1 / len(seeds)) * differences).sum(1)
        resampled.append(differences.mean(1) + math.sqrt(len(seeds) / max(1, len(seeds) - 1)) * over_seeds)
        pairs += len(seeds)
    if not means:
        return None
    low, high = np.percentile(np.mean(resampled, 0), (2.5, 97.5))
    return Comparison(float(np.mean(means)), float(low), float(high), pairs)


def best_label(all_series: Sequence[Series], score: str) -> str | None:
    """The method with the highest mean, among those with the most pairs of dataset and seed."""
    values: dict[str, list[float]] = {}
    for s in all_series:
        values.setdefault(s.label, []).extend(scores[score] for scores in s.scores.values() if score in scores)
    most = max(map(len, values.values()), default=0)
    complete = {label: np.mean(own) for label, own in values.items() if own and len(own) == most}
    return max(complete, key=lambda label: complete[label]) if complete else None


def right_answers(evaluation: Evaluation) -> np.ndarray | None:
    """Which images were answered rightly, [images], as 0 and 1; None in older files."""
    if evaluation.right is None:
        return None
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(evaluation.right), np.uint8))
    return bits[: evaluation.images].astype(np.float64)


def _right_answers(series: Series | None, score: str) -> dict[int, list[np.ndarray]]:
    """seed -> the right answers on base and novel images (for HM), on all targets, or on those of one evaluation."""
    by_seed: dict[int, list[np.ndarray]] = {}
    if series is None:
        return by_seed
    for result in series.results:
        parts = {HM: (BASE, NOVEL), TARGETS: result.cell.targets}.get(score, (score,))
        evaluations = [e for part in parts if (e := pick(result, part, series.inference))]
        answers = [right for e in evaluations if (right := right_answers(e)) is not None]
        if len(answers) == len(parts):
            by_seed[result.cell.seed] = answers
    return by_seed


def _sizes(answers: Sequence[np.ndarray]) -> list[int]:
    return [len(right) for right in answers]


def _resample(rng: np.random.Generator, count: int) -> np.ndarray:
    """Share of each of `count` things in each resample, [resamples, count]."""
    places = rng.integers(count, size=(_RESAMPLES, count)) + count * np.arange(_RESAMPLES)[:, None]
    return np.bincount(places.ravel(), minlength=_RESAMPLES * count).reshape(_RESAMPLES, count) / count


def _mean(shares: Sequence[np.ndarray]) -> np.ndarray:
    """The mean accuracy (%)."""
    return 100 * np.mean(shares, 0)


def _harmonic_mean(shares: Sequence[np.ndarray]) -> np.ndarray:
    """That of two accuracies (%)."""
    base, novel = shares
    return 200 * base * novel / np.maximum(base + novel, 1e-9)
