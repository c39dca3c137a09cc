"""The role of one head with the evidence for it, and its JSON form."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, TypedDict

from msgspec import Meta

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
    variance: float
    concept: str


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

    def to_json(self, concepts: Sequence[str]) -> dict[str, Any]:
        """JSON values; rows become mappings from concept to number, and missing evidence is left out."""
        entry: dict[str, Any] = {"role": self.role, "concept": self.concept}
        if self.entropy is not None:
            entry["entropy"] = self.entropy
        if self.sure is not None:
            entry["sure"] = self.sure
        for name, row in (("distribution", self.distribution), ("shares", self.shares)):
            if row is not None:
                entry[name] = dict(zip(concepts, row, strict=True))
        if self.mean is not None:
            entry["mean"] = " ".join(map(str, self.mean))  # a list would be a line for each number
        if self.phrases:
            entry["phrases"] = [asdict(phrase) for phrase in self.phrases]
        return entry

    @classmethod
    def from_json(cls, entry: Mapping[str, Any], concepts: Sequence[str]) -> "HeadRole":
        def row(name: str) -> tuple[float, ...] | None:
            if (values := entry.get(name)) is None:
                return None
            if unknown := [concept for concept in values if concept not in concepts]:
                raise DearError(f"Not a valid role map: the concept {listed(unknown)} is not among its concepts.")
            return tuple(float(values.get(concept, 0)) for concept in concepts)

        def number(name: str) -> float | None:
            return None if entry.get(name) is None else float(entry[name])

        mean = None if entry.get("mean") is None else tuple(float(part) for part in entry["mean"].split())
        if mean is not None and not (mean and all(map(math.isfinite, mean))):
            raise DearError("Not a valid role map: the mean of a head is not a row of finite numbers.")
        return cls(
            role=entry["role"],
            concept=entry.get("concept"),
            entropy=number("entropy"),
            distribution=row("distribution"),
            phrases=tuple(Phrase(p["text"], float(p["variance"]), p["concept"]) for p in entry.get("phrases", ())),
            shares=row("shares"),
            sure=number("sure"),
            mean=mean,
        )


class PhraseFile(TypedDict):
    text: str
    variance: Finite
    concept: str


class RoleFile(TypedDict):
    role: str


class HeadFile(RoleFile, total=False):
    concept: str | None
    entropy: Finite | None
    distribution: dict[str, Finite] | None
    shares: dict[str, Finite] | None
    sure: Finite | None
    mean: Annotated[str, Meta(max_length=100_000)] | None
    phrases: list[PhraseFile]


def listed(values: Sequence[object]) -> str:
    """The first five values, and the number of others, for a sentence."""
    first = ", ".join(str(value) for value in values[:5])
    return f"{first} and {len(values) - 5} more" if len(values) > 5 else first
