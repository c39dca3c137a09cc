"""The answer for one image, made of plain numbers: exported models answer without PyTorch."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Vote:
    """The choice of one component by itself, and its weight."""

    component: str  # "cls", "color", ...
    weight: float
    choice: str
    probability: float  # of its own choice
    for_answer: float  # probability that it gave to the final answer
    lead: float = 0.0  # its part of the margin over the next best class, in logits; negative: it voted against


@dataclass(frozen=True)
class Without:
    """The answer without an attribute: without its vote, or with its heads at their mean."""

    attribute: str
    choice: str
    probability: float  # of that choice
    lead: float  # of the true answer over the class that is next best with all attributes, in logits


@dataclass(frozen=True)
class Answer:
    """The class of an image, with the votes that decided for it."""

    choice: str
    probability: float
    top: tuple[tuple[str, float], ...]
    votes: tuple[Vote, ...]
    without: tuple[Without, ...] = ()  # by `explain` alone
    rejected: bool | None = None  # by a decision: none of the classes
    set: tuple[str, ...] | None = None  # by a decision: the classes of which one is true, as promised
    abstains: bool | None = None  # by a decision: not sure enough

    @property
    def verdict(self) -> str:
        """The answer in words, as the decision has it."""
        if self.rejected:
            return f"none of these (nearest: {self.choice})"
        if self.abstains:
            return f"not sure enough (likeliest: {self.choice})"
        return self.choice if self.set is None else ";".join(self.set)

    @property
    def lead(self) -> float:
        """The margin of the answer over the next best class, in logits."""
        return sum(vote.lead for vote in self.votes)

    def to_json(self) -> dict[str, Any]:
        value = asdict(self)
        if not self.without:
            del value["without"]
        return {name: part for name, part in value.items() if part is not None}

    def __str__(self) -> str:
        """The best classes, then what decided: each component's part of the margin, with what it would say alone."""
        lines = [f"{name}  {100 * p:.1f}%" for name, p in self.top]
        if self.verdict != self.choice:
            lines.insert(0, self.verdict.replace(";", ", "))
        votes = [
            f"  {v.component:<10} {v.lead:+6.2f} (weight {v.weight:.2f})  "
            + ("agrees" if v.choice == self.choice else f"alone: {v.choice}")
            for v in self.votes
        ]
        without = [f"  without {w.attribute}: {w.choice} ({100 * w.probability:.0f}%)" for w in self.without]
        return "\n".join(lines + votes + without)


def make_answer(
    logits: np.ndarray,
    votes: np.ndarray,
    weights: Sequence[float],
    classes: Sequence[str],
    components: Sequence[str],
    topk: int,
    decided: Mapping[str, Any] | None = None,
) -> Answer:
    """The answer for logits [classes], the weighted sum of votes [components, classes]; `decided`: further fields."""
    fused, own_probabilities = _softmax(logits), _softmax(votes)
    order = np.argsort(-logits, kind="stable")
    best, second = order[0], order[min(1, len(order) - 1)]
    top = tuple((classes[i], float(fused[i])) for i in order[:topk])
    explained = tuple(
        Vote(
            name,
            float(weight),
            classes[own.argmax()],
            float(row[own.argmax()]),
            float(row[best]),
            float(weight * (own[best] - own[second])),
        )
        for name, weight, row, own in zip(components, weights, own_probabilities, votes, strict=True)
    )
    return Answer(*top[0], top, explained, **(decided or {}))


def _softmax(logits: np.ndarray) -> np.ndarray:
    likelihood = np.exp(logits - logits.max(-1, keepdims=True))
    return likelihood / likelihood.sum(-1, keepdims=True)
