"""Metrics on labelled images: accuracy with its interval, per class, confusions, calibration."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_BINS = 15  # of confidence, as in Guo et al. 2017


def harmonic_mean(base: float, novel: float) -> float:
    return 2 * base * novel / (base + novel) if base + novel else 0.0


def accuracy(scores: Tensor, labels: Tensor) -> float:
    """Share (%) of rows of scores [images, classes] whose largest entry is the label's; nan without images."""
    if not len(labels):
        return math.nan
    return 100 * (scores.argmax(-1) == labels).double().mean().item()


def unique_names(classes: Sequence[str]) -> list[str]:
    """Class names; the second of two equal ones (ImageNet has two such pairs) gets its number."""
    return [name if name not in classes[:i] else f"{name} ({i})" for i, name in enumerate(classes)]


def confusions(chosen: Tensor, labels: Tensor) -> list[list[int]]:
    """The non-zero entries off the diagonal of the confusion matrix: [true, chosen, images], most frequent first."""
    wrong = chosen != labels
    if not wrong.any():
        return []
    pairs, counts = torch.stack([labels[wrong], chosen[wrong]], 1).unique(dim=0, return_counts=True)
    entries = [[*pair, count] for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True)]
    return sorted(entries, key=lambda entry: -entry[2])


def reliability(logits: Tensor, labels: Tensor, counting: Tensor | None = None) -> Tensor:
    """Mean confidence and accuracy (%), and images, of each bin of confidence that has any, [bins, 3].

    `counting`: how much each image counts [images], 1 on average (None: alike).
    """
    confidence, chosen = logits.float().softmax(-1).max(-1)
    counting = torch.ones_like(confidence) if counting is None else counting.to(confidence)
    bins = (confidence * _BINS).long().clamp(max=_BINS - 1)
    columns = torch.stack([100 * confidence, 100 * (chosen == labels).to(confidence), torch.ones_like(confidence)], 1)
    sums = confidence.new_zeros(_BINS, 3).index_add(0, bins, counting[:, None] * columns)
    sums = sums[sums[:, 2] > 0]
    return torch.cat([sums[:, :2] / sums[:, 2:], sums[:, 2:]], 1)


def calibration_error(bins: Tensor) -> float:
    """Expected calibration error (%): |accuracy - confidence| per bin of `reliability`, weighted by its images."""
    return ((bins[:, 1] - bins[:, 0]).abs() @ bins[:, 2] / bins[:, 2].sum()).item()


def wilson_interval(right: float, images: float) -> tuple[float, float]:
    """95% interval of an accuracy (%), also for few images: 2 of 2 right is 34 to 100; a bootstrap calls it certain."""
    z, share = 1.96, right / images
    centre = (share + z**2 / (2 * images)) / (1 + z**2 / images)
    half = z / (1 + z**2 / images) * (share * (1 - share) / images + z**2 / (4 * images**2)) ** 0.5
    return 100 * max(0.0, centre - half), 100 * min(1.0, centre + half)


def interval_text(interval: tuple[float, float], decimals: int = 0) -> str:
    """An interval in words: "60 to 91"."""
    return f"{interval[0]:.{decimals}f} to {interval[1]:.{decimals}f}"


def binomial_tail(successes: int, trials: int, chance: float) -> float:
    """Exact probability of at least so many successes, each of probability `chance`."""
    if successes <= 0:
        return 1.0
    logs = [
        math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        + k * math.log(chance) + (trials - k) * math.log1p(-chance)
        for k in range(successes, trials + 1)
    ]  # fmt: skip
    return min(1.0, math.fsum(map(math.exp, logs)))


def is_above_chance(right: int, images: int, classes: int) -> bool:
    """Whether so many right answers are unlikely (under 5%) for someone who guesses among the classes."""
    return classes > 1 and binomial_tail(right, images, 1 / classes) < 0.05


def mcnemar(only_first: int, only_second: int) -> float:
    """McNemar's exact test, two-sided: p of two methods on the same images, by the images that only one has right."""
    return min(1.0, 2 * binomial_tail(max(only_first, only_second), only_first + only_second, 0.5))
