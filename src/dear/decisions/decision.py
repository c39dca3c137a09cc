"""A decision, the part of an adapter that turns scores into what is acted on. Needs no PyTorch.

decision.json   `Decision`, bound to the adapter by the hash of its config
decision.npy    features of the words that strangers may be, [words, dim], if the score is by words
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Struct, to_builtins
from msgspec.structs import replace

from dear.core.errors import DearError
from dear.core.files import checksum_of, read_bytes, read_json, write_bytes, write_json
from dear.core.schema import Count, Finite, Percent, check_shape, damaged, limited
from dear.decisions.ridge import RidgeSets

FILE, WORDS = "decision.json", "decision.npy"
LOGIT, BY_WORDS = "largest logit", "words"
HELD_OUT, LEFT_OUT, FULL = "held-out images", "images left out of their own fit", "full conformal"
_AGAIN = "run `dear decide` again"
_Share = limited(float, 0, 1)
_Scale = limited(float, 1e-4, 1e4)


class Measured(Struct, frozen=True):
    """How well strangers were told from own images."""

    strangers: str  # what they were
    images: Count
    auroc: Percent
    fpr95: Percent  # of strangers answered, where 95% of own images are
    accepted: Percent  # of strangers, at the threshold
    interval: tuple[Percent, Percent]  # of `accepted`, 95%


class Reject(Struct, frozen=True):
    """An image with a score below the threshold is none of the classes."""

    promise: Literal["own", "strangers", "estimate"]
    alpha: _Share  # type: ignore[valid-type]
    score: Literal["largest logit", "words"]
    threshold: Finite
    refused: Percent  # of own images, at the threshold
    measured: tuple[Measured, ...] = ()


class Coverage(Struct, frozen=True):
    """The set of classes that holds the true one with probability `level`."""

    level: _Share  # type: ignore[valid-type]
    how: str
    threshold: _Share  # type: ignore[valid-type]  # the least probability of a class in the set, or its p-value
    mean_size: Finite
    labels: Annotated[tuple[int, ...], Meta(max_length=10_000)] = ()  # of the landmarks, for full conformal
    ridge: Finite = 0.0


class Abstain(Struct, frozen=True):
    """Answers below the threshold are not given, so that the promised share of the others is right."""

    promised: _Share  # type: ignore[valid-type]
    threshold: _Share  # type: ignore[valid-type]
    answered: Percent


class Decision(Struct, frozen=True, omit_defaults=True):
    """What is done with scores, and on what it was measured; printed, a paragraph."""

    adapter: str  # config_sha256
    on: str
    images: Count
    temperature: _Scale  # type: ignore[valid-type]  # probabilities are softmax(logits / temperature)
    calibrated: bool
    reject: Reject | None = None
    coverage: Coverage | None = None
    abstain: Abstain | None = None
    words: tuple[str, ...] = ()
    words_sha256: str = ""

    def to_json(self) -> dict[str, Any]:
        return to_builtins(self)

    def __str__(self) -> str:
        lines = [f"measured on {self.images} {self.on}"] if self.images else []
        if self.calibrated:
            lines.append(f"temperature: {self.temperature:.2f}")
        else:
            lines.append("not calibrated: no image could be answered by a fit without it")
        if (reject := self.reject) is not None:
            whom = {"own": "own images refused", "strangers": "strangers accepted"}.get(reject.promise)
            whom = whom or "images of other classes accepted (an estimate by leaving classes out, no promise)"
            lines.append(
                f"none of these: at most {100 * reject.alpha:g}% of {whom}; by {reject.score}; {reject.refused:.1f}% "
                "of own images are refused"
            )
            lines += [
                f"  strangers, {one.strangers} ({one.images} images): {one.accepted:.0f}% accepted "
                f"({one.interval[0]:.0f} to {one.interval[1]:.0f}), AUROC {one.auroc:.1f}, FPR95 {one.fpr95:.1f}"
                for one in reject.measured
            ]
        if (sets := self.coverage) is not None:
            lines.append(f"sets: the true class in {100 * sets.level:g}%, {sets.mean_size:.2f} classes ({sets.how})")
        if (abstain := self.abstain) is not None:
            lines.append(f"answers: {abstain.answered:.0f}%, of which {100 * abstain.promised:g}% are right")
        return "\n".join(lines)


def write_decision(folder: Path, decision: Decision, words: np.ndarray | None) -> None:
    """Writes both files; the features of words first, whose checksum the other holds."""
    if words is not None:
        file = BytesIO()
        np.save(file, words.astype(np.float32))
        write_bytes(folder / WORDS, file.getvalue())
        decision = replace(decision, words_sha256=checksum_of(folder / WORDS))
    write_json(folder / FILE, decision.to_json())


def read_decision(folder: Path, adapter: Callable[[], str]) -> tuple[Decision, np.ndarray | None] | None:
    """The decision in a folder, and the features of its words, or None; `adapter`: gives the hash of the adapter."""
    path = folder / FILE
    if not path.is_file():
        return None
    decision: Decision = check_shape(read_json(path), Decision, str(path), _AGAIN)
    if decision.adapter != adapter():
        raise DearError(f"{path} is the decision of another adapter: remove it, or {_AGAIN}.")
    if not decision.words:
        return decision, None
    if checksum_of(folder / WORDS) != decision.words_sha256:
        raise DearError(f"{folder / WORDS} is damaged or of another decision: {_AGAIN}.")
    with damaged(str(folder / WORDS), _AGAIN):
        words = np.load(BytesIO(read_bytes(folder / WORDS)), allow_pickle=False).astype(np.float32)
        if words.ndim != 2 or len(words) != len(decision.words):
            raise ValueError("it has another number of words")
    return decision, words


def log_share(logits: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The logarithm of the share of evidence that the columns of `logits` have beside `others`, [images]."""
    everything = np.concatenate([logits, others], 1)
    return _logsumexp(logits) - _logsumexp(everything)


def score_of(logits: np.ndarray, plain: np.ndarray | None = None, others: np.ndarray | None = None) -> np.ndarray:
    """How much each image looks like one of the classes, [images].

    The largest of the `logits` [images, classes]; or, with cosines times the temperature with the texts of classes,
    `plain`, and with words that strangers may be, `others` [images, words], the logarithm of the largest probability
    times the share of the classes in the evidence.
    """
    if plain is None or others is None:
        return logits.max(1)
    return logits.max(1) - _logsumexp(logits) + log_share(plain, others)


def _logsumexp(values: np.ndarray) -> np.ndarray:
    top = values.max(1, keepdims=True)
    return top[:, 0] + np.log(np.exp(values - top).sum(1))


@dataclass(frozen=True)
class Decider:
    """Applies a decision. `text`: features of the classes [classes, dim]; `words`: those of strangers, [words, dim]."""

    decision: Decision
    classes: Sequence[str]
    text: np.ndarray | None = None
    words: np.ndarray | None = None
    tau: float = 100.0
    sets: RidgeSets | None = None

    def __call__(self, logits: np.ndarray, features: np.ndarray) -> list[dict[str, Any]]:
        """Further fields of the answers for logits [images, classes], already divided by the temperature, and class
        features [images, dim]."""
        decision = self.decision
        fields: list[dict[str, Any]] = [{} for _ in logits]
        probabilities = np.exp(logits - _logsumexp(logits)[:, None])

        def give(name: str, values: Sequence[Any]) -> None:
            for field, value in zip(fields, values, strict=True):
                field[name] = value

        empty: np.ndarray = np.zeros(len(logits), bool)
        if (sets := decision.coverage) is not None:
            inside = probabilities if self.sets is None else self.sets.p_values(features)
            inside = inside >= sets.threshold if self.sets is None else inside > sets.threshold
            empty = ~inside.any(1)
            order = np.argsort(-logits, axis=1, kind="stable")
            give("set", [tuple(self.classes[i] for i in row if of[i]) for row, of in zip(order, inside, strict=True)])
        if (reject := decision.reject) is not None:
            give("rejected", ((self.scores(logits, features) < reject.threshold) | empty).tolist())
        elif sets is not None:
            give("rejected", empty.tolist())
        if decision.abstain is not None:
            give("abstains", (probabilities.max(1) < decision.abstain.threshold).tolist())
        return fields

    def scores(self, logits: np.ndarray, features: np.ndarray) -> np.ndarray:
        if self.words is None or self.text is None:
            return score_of(logits)
        return score_of(logits, self.tau * features @ self.text.T, self.tau * features @ self.words.T)


# --- thresholds --------------------------------------------------------------------------------------------------


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
