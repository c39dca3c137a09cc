"""A decision, the part of an adapter that turns scores into what is acted on. Needs no PyTorch.

decision.json   `Decision`, bound to the adapter by the hash of its config
decision.npy    features of the words that strangers may be, [words, dim], if the score is by words
"""

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
from dear.decisions import thresholds
from dear.decisions.ridge import RidgeSets

FILE, WORDS = "decision.json", "decision.npy"
HELD_OUT, LEFT_OUT, FULL = "held-out images", "images left out of their own fit", "full conformal"
_MEASURE_AGAIN = "run `dear decide` again"
_WHOM = {
    "own": "own images refused", "strangers": "strangers accepted",
    "estimate": "other classes accepted (estimated by leaving classes out: no promise)",
}  # fmt: skip
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
    threshold: Finite
    refused: Percent  # of own images, at the threshold
    measured: tuple[Measured, ...] = ()


class Coverage(Struct, frozen=True):
    """The set of classes that holds the true one with probability `level`."""

    level: _Share  # type: ignore[valid-type]
    how: str
    threshold: _Share  # type: ignore[valid-type]  # the least probability of a class in the set, or its p-value
    mean_size: Finite  # by images left out, also for full conformal
    labels: Annotated[tuple[int, ...], Meta(max_length=10_000)] = ()  # of the landmarks, for full conformal


class Abstain(Struct, frozen=True):
    """Answers below the threshold are not given, so that the promised share of the others is right."""

    promised: _Share  # type: ignore[valid-type]
    threshold: _Share  # type: ignore[valid-type]
    answered: Percent


class Decision(Struct, frozen=True, omit_defaults=True):
    """The use of scores, and the images on which it was measured; printed, a paragraph."""

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

    def write(self, folder: Path, words: np.ndarray | None) -> None:
        """Writes both files; the features of words first, whose checksum the other holds."""
        decision = self
        if words is not None:
            file = BytesIO()
            np.save(file, words)
            write_bytes(folder / WORDS, file.getvalue())
            decision = replace(self, words_sha256=checksum_of(folder / WORDS))
        write_json(folder / FILE, to_builtins(decision))

    def __str__(self) -> str:
        lines = [f"measured on {self.images} {self.on}; temperature: {self.temperature:.2f}"]
        if not self.calibrated:
            lines = ["not calibrated: no image could be answered by a fit without it"]
        if (reject := self.reject) is not None:
            score = f"evidence against {len(self.words)} words" if self.words else "the largest logit"
            lines.append(f"none of these: at most {100 * reject.alpha:g}% of {_WHOM[reject.promise]}, by {score};")
            lines.append(f"  {reject.refused:.1f}% of own images are refused")
            lines += [
                f"  strangers, {one.strangers} ({one.images} images): {one.accepted:.0f}% accepted "
                f"({one.interval[0]:.0f} to {one.interval[1]:.0f}), AUROC {one.auroc:.1f}, FPR95 {one.fpr95:.1f}"
                for one in reject.measured
            ]
        if (sets := self.coverage) is not None:
            lines.append(f"sets: the class in {100 * sets.level:g}%, about {sets.mean_size:.1f} classes ({sets.how})")
        if (abstain := self.abstain) is not None:
            lines.append(f"answers: {abstain.answered:.0f}%, of which {100 * abstain.promised:g}% are right")
        return "\n".join(lines)


def read_decision(folder: Path, adapter: Callable[[], str]) -> tuple[Decision, np.ndarray | None] | None:
    """The decision in a folder, and the features of its words, or None; `adapter`: gives the hash of the adapter."""
    path, words = folder / FILE, None
    if not path.is_file():
        return None
    decision: Decision = check_shape(read_json(path), Decision, str(path), _MEASURE_AGAIN)
    if decision.adapter != adapter():
        raise DearError(f"{path} is the decision of another adapter: remove it, or {_MEASURE_AGAIN}.")
    if decision.words:
        with damaged(str(folder / WORDS), _MEASURE_AGAIN):
            words = np.load(BytesIO(read_bytes(folder / WORDS)), allow_pickle=False)
            if checksum_of(folder / WORDS) != decision.words_sha256 or len(words) != len(decision.words):
                raise ValueError("it belongs to another decision")
    return decision, words


@dataclass(frozen=True)
class Decider:
    """Applies a decision. `text`: features of the classes [classes, dim]; `words`: those of strangers, [words, dim]."""

    decision: Decision
    classes: Sequence[str]
    text: np.ndarray
    words: np.ndarray | None
    tau: float
    sets: RidgeSets | None = None

    def __call__(self, logits: np.ndarray, features: np.ndarray) -> list[dict[str, Any]]:
        """Further fields of the answers for logits [images, classes], already divided by the temperature, and class
        features [images, dim]."""
        decision, probabilities = self.decision, thresholds.probabilities_of(logits)
        fields: dict[str, Sequence[Any]] = {}
        empty: Any = False
        if (sets := decision.coverage) is not None:
            values = probabilities if self.sets is None else self.sets.p_values(features)
            inside = values >= sets.threshold
            empty, order = ~inside.any(1), np.argsort(-logits, axis=1, kind="stable")
            rows = zip(order, inside, strict=True)
            fields["set"] = [tuple(self.classes[i] for i in row if of[i]) for row, of in rows]
            fields["rejected"] = empty.tolist()
        if decision.reject is not None:
            by = () if self.words is None else (self.text, self.words)
            scores = thresholds.score_of(logits, *(self.tau * features @ rows.T for rows in by))
            fields["rejected"] = (empty | (scores < decision.reject.threshold)).tolist()
        if decision.abstain is not None:
            fields["abstains"] = (probabilities.max(1) < decision.abstain.threshold).tolist()
        return [{name: values[row] for name, values in fields.items()} for row in range(len(logits))]
