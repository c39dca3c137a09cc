"""Scores of images, and the thresholds on them that keep a promise. Needs no PyTorch."""

import math

import numpy as np

from dear.core.errors import DearError


def score_of(logits: np.ndarray, plain: np.ndarray | None = None, others: np.ndarray | None = None) -> np.ndarray:
    """How much each image looks like one of the classes, [images].

    The largest of the `logits` [images, classes]; or, with cosines times the temperature with the texts of classes,
    `plain`, and with words that strangers may be, `others` [images, words], the logarithm of the largest probability
    times the share of the classes in the evidence.
    """
    if plain is None or others is None:
        return logits.max(1)
    share = _logsumexp(plain) - _logsumexp(np.concatenate([plain, others], 1))
    return logits.max(1) - _logsumexp(logits) + share


def probabilities_of(logits: np.ndarray) -> np.ndarray:
    return np.exp(logits - _logsumexp(logits)[:, None])


def _logsumexp(values: np.ndarray) -> np.ndarray:
    top = values.max(1, keepdims=True)
    return top[:, 0] + np.log(np.exp(values - top).sum(1))


def least_accepted(own: np.ndarray, alpha: float) -> float:
    """The score from which images are accepted, so that at most a share `alpha` of own images is refused."""
    rank = math.floor(alpha * (len(own) + 1) + 1e-9)
    if rank < 1:
        raise DearError(_too_few(f"{alpha:g} of own images refused", alpha, len(own)))
    return float(np.sort(own)[rank - 1])


def above_strangers(strangers: np.ndarray, alpha: float) -> float:
    """The score from which images are accepted, so that at most a share `alpha` of strangers is."""
    rank = math.ceil((1 - alpha) * (len(strangers) + 1) - 1e-9)
    if rank > len(strangers):
        raise DearError(_too_few(f"{alpha:g} of strangers accepted", alpha, len(strangers), "strangers"))
    return float(np.nextafter(np.sort(strangers)[rank - 1], np.inf))


def least_probability(true: np.ndarray, level: float) -> float:
    """The probability from which classes belong to a set, by the probabilities of true classes [images] (LAC)."""
    rank = math.floor((1 - level) * (len(true) + 1) + 1e-9)
    if rank < 1:
        raise DearError(_too_few(f"sets that hold the true class in {level:g}", 1 - level, len(true)))
    return float(np.sort(true)[rank - 1])


def least_sure(confidence: np.ndarray, right: np.ndarray, promised: float) -> tuple[float, float]:
    """The confidence from which the promised share of answers is right, and the share (%) of images answered.

    One more answer is counted, and counted as wrong, as for a conformal risk; ties are answered together.
    """
    order = np.argsort(-confidence, kind="stable")
    confidence, wrong = confidence[order], np.cumsum(~right[order])
    last = np.append(confidence[1:] < confidence[:-1], True)
    kept = ((wrong + 1) / (np.arange(len(wrong)) + 2) <= 1 - promised + 1e-12) & last
    if not kept.any():
        raise DearError(
            f"No part of the {len(right)} images has {promised:.0%} right answers with certainty enough: label more "
            "images, or promise less with --abstain."
        )
    count = int(kept.nonzero()[0][-1])
    return float(confidence[count]), 100 * (count + 1) / len(right)


def _too_few(promise: str, alpha: float, images: int, kind: str = "images") -> str:
    needed = math.ceil(1 / alpha - 1 - 1e-9)
    return f"A promise of {promise} needs {needed} {kind}, and there are {images}: give more, or promise less."
