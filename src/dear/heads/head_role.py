"""The role of one head with the evidence for it, and its JSON form."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from msgspec import Meta, Struct

from dear.core.errors import DearError
from dear.core.schema import Finite

CORE_ATTRIBUTE = "core_attribute"
OTHER_SPECIALIZED = "other_specialized"
GENERALIZATION = "generalization"
MIXED = "mixed"
ROLES = (CORE_ATTRIBUTE, OTHER_SPECIALIZED, GENERALIZATION, MIXED)


@dataclass(frozen=True)
class Phrase:
    """A phrase that describes a head, the share of the head's variance that it explains, and its concept."""

    text: str
    variance: Finite
    concept: str


class HeadFile(Struct):
    """A head in the file of a role map; rows are mappings from concept to number, the mean is a text of numbers."""

    role: str
    concept: str | None = None
    entropy: Finite | None = None
    distribution: dict[str, Finite] | None = None
    phrases: list[Phrase] = []
    shares: dict[str, Finite] | None = None
    sure: Finite | None = None
    mean: Annotated[str, Meta(max_length=100_000)] | None = None


@dataclass(frozen=True)
class HeadRole:
    """The role of one head, and the evidence for it (a role from a paper's table has none).

    `concept` is the dominant concept. `distribution` is P_h(k) over the map's concepts: by phrases the share of
    phrases, by pictures the lifts (shares over the mean head's) scaled to sum to 1. By pictures only: `shares`, the
    share of the head's variance that goes with each concept, `sure`, the share of resamples with the same dominant
    concept, and `mean`, what the head puts out at CLS on average over the pictures, which gains of heads need.
    """

    role: str
    concept: str | None = None
    entropy: float | None = None
    distribution: tuple[float, ...] | None = None
    phrases: tuple[Phrase, ...] = ()
    shares: tuple[float, ...] | None = None
    sure: float | None = None
    mean: tuple[float, ...] | None = None  # [head_dim]

    def require_valid(self, who: str, concepts: Sequence[str], core: Sequence[str]) -> None:
        """Refuses a role that contradicts itself or the concepts of its map; `who` is the head, for the sentence."""
        demand(self.role in ROLES, f"{who} has the unknown role {self.role!r}; known: {listed(ROLES)}")
        for concept in (self.concept, *(phrase.concept for phrase in self.phrases)):
            valid = concept is None or concept in concepts
            demand(valid, f"{who} has the concept {concept!r}, which is not among its concepts")
        if self.role == CORE_ATTRIBUTE:
            demand(self.concept in core, f"{who} is a core attribute head, but {self.concept} is not core")
        if self.role == OTHER_SPECIALIZED:
            other = self.concept is not None and self.concept not in core
            demand(other, f"{who} is specialised in something else, but has the concept {self.concept}")
        for row in (self.distribution, self.shares):
            sized = row is None or len(row) == len(concepts)
            demand(sized, f"{who} has a distribution over another number of concepts")

    def to_json(self, concepts: Sequence[str]) -> dict[str, Any]:
        """JSON values; rows become mappings from concept to number, and missing evidence is left out."""
        rows = {
            name: None if row is None else dict(zip(concepts, row, strict=True))
            for name, row in (("distribution", self.distribution), ("shares", self.shares))
        }
        mean = None if self.mean is None else " ".join(map(str, self.mean))  # a list would be a line for each number
        phrases = [asdict(phrase) for phrase in self.phrases] or None
        entry = {"entropy": self.entropy, "sure": self.sure, **rows, "mean": mean, "phrases": phrases}
        known = {name: value for name, value in entry.items() if value is not None}
        return {"role": self.role, "concept": self.concept, **known}

    @classmethod
    def from_file(cls, entry: HeadFile, concepts: Sequence[str]) -> "HeadRole":
        """The role in the form of a file."""

        def row(values: Mapping[str, float] | None) -> tuple[float, ...] | None:
            unknown = [concept for concept in values or () if concept not in concepts]
            demand(not unknown, f"the concept {listed(unknown)} is not among its concepts")
            return None if values is None else tuple(values.get(concept, 0.0) for concept in concepts)

        mean = None if entry.mean is None else tuple(map(float, entry.mean.split()))
        finite = mean is None or (len(mean) > 0 and all(map(math.isfinite, mean)))
        demand(finite, "the mean of a head is not a row of finite numbers")
        rows = row(entry.distribution), tuple(entry.phrases), row(entry.shares)
        return cls(entry.role, entry.concept, entry.entropy, *rows, entry.sure, mean)


def demand(condition: bool, sentence: str) -> None:
    """Refuses a role map of which the condition is not true."""
    if not condition:
        raise DearError(f"Not a valid role map: {sentence}.")


def listed(values: Sequence[object]) -> str:
    """The first five values, and the number of others, for a sentence."""
    first = ", ".join(str(value) for value in values[:5])
    return f"{first} and {len(values) - 5} more" if len(values) > 5 else first
