"""Is A better than B on these images, and by how much? The one comparison of the package.

`difference` is A minus B in points of accuracy. A is **ahead** or **behind** if the 95% interval of the difference is
above or below zero, **level** if all of it is within two points, else the comparison is **undecided**: more images
would tell.

The interval with one test set and one draw of training images: the wider of Tango's score interval and that of
McNemar's exact test, so that few images never look certain and the verdict agrees with p. With several draws or test
sets: a bootstrap over draws and images, in which both methods have the same draws and images.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dear.core.metrics import binomial_tail, mcnemar

LEVEL = 2.0
AHEAD, BEHIND, EVEN, UNDECIDED = "ahead", "behind", "level", "undecided"
_RESAMPLES = 4000
_Z, _TINY = 1.959964, 1e-12
_STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # 97.5%, for 1 to 9 degrees of freedom

Draws = Mapping[int, Sequence[np.ndarray]]
"""Right answers of a method on one dataset: seed -> one array of 0 and 1 per part that is measured, [images]."""
Score = Callable[[Sequence[np.ndarray]], np.ndarray]
"""Shares of right answers in each part -> a score in %."""


class Comparison(Struct, frozen=True, omit_defaults=True):
    """The difference of two methods in points, and its 95% interval."""

    difference: float
    low: float
    high: float
    p: float | None = None  # McNemar's exact test; None with several draws or test sets
    pairs: int = 1  # of dataset and seed

    @property
    def verdict(self) -> str:
        if self.low > 0 or self.high < 0:
            return AHEAD if self.low > 0 else BEHIND
        return EVEN if max(-self.low, self.high) < LEVEL else UNDECIDED

    def turned(self) -> "Comparison":
        """Compares the other way round: the second method minus the first."""
        return replace(self, difference=0.0 - self.difference, low=0.0 - self.high, high=0.0 - self.low)  # never -0.0

    def __str__(self) -> str:
        return f"{self.difference:+.1f} ({self.low:+.1f} to {self.high:+.1f})"

    def sentence(self, first: str, second: str) -> str:
        """Such as "gda is ahead of zero-shot by 3.1 points (95% interval +0.4 to +5.9, p = 0.03)."."""
        figures = f"95% interval {self.low:+.1f} to {self.high:+.1f}"
        figures += "" if self.p is None else f", p = {self.p:.2g}"
        if self.verdict in (AHEAD, BEHIND):
            preposition = "of" if self.verdict == AHEAD else ""
            size = f"{abs(self.difference):.1f} points"
            return f"{first} is {self.verdict} {preposition} {second} by {size} ({figures}).".replace("  ", " ")
        difference = f"{self.difference:+.1f} points ({figures})"
        if self.verdict == EVEN:
            return f"{first} is level with {second}: {difference}."
        return f"{first} against {second} is undecided: {difference}; more images would tell."


def mean_share(shares: Sequence[np.ndarray]) -> np.ndarray:
    """The mean accuracy (%) over parts."""
    return 100 * np.mean(shares, 0)


def harmonic_share(shares: Sequence[np.ndarray]) -> np.ndarray:
    """The harmonic mean of two accuracies (%), of base and novel classes."""
    base, novel = shares
    return 200 * base * novel / np.maximum(base + novel, 1e-9)


def compare(
    first: Sequence[Draws], second: Sequence[Draws], score: Score = mean_share, same_images: bool = True
) -> Comparison | None:
    """First minus second in `score`, the mean over the datasets and seeds that both have; None if they share none.

    Entry i of either is of dataset i. `same_images`: a test set is the same for all seeds; held-out images are not.
    Draws with other numbers of images are not compared. The variance over n seeds is multiplied by n / (n - 1), because
    resamples of n spread less by that. What is hard for both methods does not widen the interval.
    """
    rng = np.random.default_rng(0)
    pairs = []
    for ours, theirs in zip(first, second, strict=True):
        seeds = sorted(seed for seed in ours.keys() & theirs.keys() if _sizes(ours[seed]) == _sizes(theirs[seed]))
        pairs.append([(ours[seed], theirs[seed]) for seed in seeds])
    pairs = [of_dataset for of_dataset in pairs if of_dataset]
    if not pairs:
        return None
    if len(pairs) == len(pairs[0]) == len(pairs[0][0][0]) == 1 and score is mean_share:
        return compare_once(pairs[0][0][0][0], pairs[0][0][1][0])
    means, resampled = [], []
    for of_dataset in pairs:
        exact, drawn = [], []
        weights: list[np.ndarray] = []
        for ours_once, theirs_once in of_dataset:
            if not same_images or [share.shape[1] for share in weights] != _sizes(ours_once):
                weights = [_resample(rng, len(right)) for right in ours_once]
            exact.append(score([r.mean() for r in ours_once]) - score([r.mean() for r in theirs_once]))
            sides = [score([w @ r for w, r in zip(weights, side, strict=True)]) for side in (ours_once, theirs_once)]
            drawn.append(sides[0] - sides[1])
        means.append(np.mean(exact))
        differences = np.stack(drawn, 1)  # [resamples, seeds]
        count = len(of_dataset)
        over_seeds = ((_resample(rng, count) - 1 / count) * differences).sum(1)
        resampled.append(differences.mean(1) + math.sqrt(count / max(1, count - 1)) * over_seeds)
    low, high = np.percentile(np.mean(resampled, 0), (2.5, 97.5))
    return Comparison(float(np.mean(means)), float(low), float(high), None, sum(map(len, pairs)))


def compare_once(first: np.ndarray, second: np.ndarray, weights: np.ndarray | None = None) -> Comparison:
    """Two methods on the same images: right answers [images] as 0 and 1.

    `weights`: how much each image counts, 1 on average (None: alike). Then intervals and p are those of as many images
    of equal weight as say as much (Kish).
    """
    images = float(len(first))
    gained, lost = (first > second).astype(float), (first < second).astype(float)
    if weights is not None:
        gained, lost = gained * weights, lost * weights
        images = float(len(first) / np.square(weights).mean())
    shares = float(gained.sum() / len(first)), float(lost.sum() / len(first))
    only_first, only_second = (round(share * images) for share in shares)
    images = max(images, only_first + only_second)
    score, test = tango_interval(only_first, only_second, images), mcnemar_interval(only_first, only_second, images)
    difference = 100 * (shares[0] - shares[1])
    low, high = min(score[0], test[0], difference), max(score[1], test[1], difference)
    return Comparison(difference, low, high, mcnemar(only_first, only_second))


def compare_values(differences: np.ndarray, weights: np.ndarray) -> Comparison:
    """Two methods whose answers to an image are right to some share, by the differences of these shares [images].

    `weights`: see `compare_once`. The interval is the mean's, by the normal distribution.
    """
    mean = (weights * differences).mean()
    half = _Z * (weights * (differences - mean)).std(ddof=1) / math.sqrt(len(differences))
    points, low, high = (float(100 * value) for value in (mean, mean - half, mean + half))
    return Comparison(points, low, high)


def tango_interval(only_first: int, only_second: int, images: float) -> tuple[float, float]:
    """Tango's score interval (1998) of the difference of two paired shares, in points."""

    def score(difference: float) -> float:
        """z of the hypothesis that the shares differ by this much; falls with it."""
        a, b = 2 * images, -only_first - only_second + (2 * images - only_first + only_second) * difference
        c = -only_second * difference * (1 - difference)
        share = (math.sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)  # of images that only the second has right
        variance = images * (2 * share + difference * (1 - difference))
        gap = only_first - only_second - images * difference
        return gap / math.sqrt(variance) if variance > 1e-12 else math.copysign(math.inf, gap) if gap else 0.0

    centre = (only_first - only_second) / images
    low = _where_false(lambda d: score(d) < _Z, centre, -1.0)
    high = _where_false(lambda d: score(d) > -_Z, centre, 1.0)
    return 100 * low, 100 * high


def mcnemar_interval(only_first: int, only_second: int, images: float) -> tuple[float, float]:
    """The differences, in points, that McNemar's exact test does not reject, given the images that tell the two apart.

    It is Clopper and Pearson's interval of the first method's share of these images, and excludes zero exactly where
    p < 0.05.
    """
    differing = only_first + only_second
    if not differing:
        return 0.0, 0.0
    share = only_first / differing
    low = _where_false(lambda s: binomial_tail(only_first, differing, s) > 0.025, share, _TINY)
    high = _where_false(lambda s: binomial_tail(only_second, differing, 1 - s) > 0.025, share, 1 - _TINY)
    return tuple(100 * differing / images * (2 * end - 1) for end in (low, high))  # type: ignore[return-value]


def compare_with_printed(mean: float, spread: float | None, seeds: int, printed: float) -> Comparison | None:
    """The mean of some seeds minus a published mean whose spread is not given; None for one seed.

    The published mean is of three seeds, and its spread is taken to be ours: the interval is that of Student's t for
    two means, and the rounding of the printed number to one decimal.
    """
    if spread is None:
        return None
    t = _STUDENT_T[min(seeds - 2, len(_STUDENT_T) - 1)]
    half = t * spread * math.sqrt(1 / seeds + 1 / 3) + 0.05
    return Comparison(mean - printed, mean - printed - half, mean - printed + half, None, seeds)


def _where_false(holds: Callable[[float], bool], inside: float, end: float) -> float:
    """The point between `inside`, where a condition holds, and `end` from which on it does not; `end` if it does."""
    if holds(end):
        return end
    for _ in range(60):
        middle = (inside + end) / 2
        inside, end = (middle, end) if holds(middle) else (inside, middle)
    return end


def _sizes(answers: Sequence[np.ndarray]) -> list[int]:
    return [len(right) for right in answers]


def _resample(rng: np.random.Generator, count: int) -> np.ndarray:
    """Share of each of `count` things in each resample, [resamples, count]."""
    places = rng.integers(count, size=(_RESAMPLES, count)) + count * np.arange(_RESAMPLES)[:, None]
    return np.bincount(places.ravel(), minlength=_RESAMPLES * count).reshape(_RESAMPLES, count) / count
