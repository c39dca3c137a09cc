"""A role map in words: the paper's Table 2 as text, and the names and colours that the pictures share."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dear.core.errors import DearError
from dear.core.table import Table
from dear.heads.head_role import CORE_ATTRIBUTE, GENERALIZATION, MIXED, OTHER_SPECIALIZED, ROLES, HeadRole
from dear.heads.role_map import RoleMap

ROLE_NAMES = {
    CORE_ATTRIBUTE: "core attribute",
    OTHER_SPECIALIZED: "other specialized",
    GENERALIZATION: "generalization",
    MIXED: "mixed",
}
# Told apart by shape, so that a picture reads without colour too.
ROLE_MARKS = {CORE_ATTRIBUTE: "★", OTHER_SPECIALIZED: "■", GENERALIZATION: "○", MIXED: "◐"}
_NO_CONCEPT = "#b4b2ab"
_PALETTE = (
    "#2f6fb5", "#d9822b", "#c43c4e", "#7b52ab", "#8c5a3c", "#3d8f4f",
    "#d0679d", "#5b6470", "#16919b", "#b8972f", "#e0604c", "#6f9a1f",
)  # fmt: skip


def concept_colors(concepts: Sequence[str]) -> dict[str | None, str]:
    """A colour for each concept; beyond twelve they repeat, and the name in each cell tells them apart."""
    colors: dict[str | None, str] = {None: _NO_CONCEPT}
    return colors | {concept: _PALETTE[i % len(_PALETTE)] for i, concept in enumerate(concepts)}


def color_strength(found: HeadRole, role_map: RoleMap) -> float:
    """How much of its colour a head keeps: all at the map's lowest entropy, little at its highest.

    By pictures, the surer the more, and little without a speciality.
    """
    if found.sure is not None:
        return found.sure * (0.95 if found.role in (CORE_ATTRIBUTE, OTHER_SPECIALIZED) else 0.3)
    if found.entropy is None:
        return 0.35 if found.concept is None else 0.9
    entropies = [other.entropy for other in role_map.roles.values() if other.entropy is not None]
    low, high = min(entropies), max(entropies)
    return 1 - 0.85 * (found.entropy - low) / (high - low) if high > low else 0.9


def role_table(role_map: RoleMap, phrases: int = 3) -> Table:
    """One row a head: layer, head, role, concept, entropy in nats, and the evidence.

    That is, by pictures, the share of its variance (%) that goes with each concept, and in how many resamples (%) the
    concept stayed the same; by phrases its best `phrases`.
    """
    measured = any(found.shares for found in role_map.roles.values())
    evidence = ["sure", *role_map.concepts] if measured else ["top phrases"]
    table = Table(["layer", "head", "role", "concept", "entropy", *evidence])
    for (layer, head), found in sorted(role_map.roles.items()):
        entropy = None if found.entropy is None else f"{found.entropy:.2f}"
        top: list[object] = ["; ".join(phrase.text for phrase in found.phrases[:phrases]) or None]
        if measured:
            shares = found.shares or [None] * len(role_map.concepts)
            top = [None if value is None else f"{100 * value:.0f}%" for value in (found.sure, *shares)]
        table.add(layer, head, ROLE_NAMES[found.role], found.concept, entropy, *top)
    return table


def role_summary(role_map: RoleMap) -> str:
    """How many heads play each role, in one line."""
    counts = Counter(found.role for found in role_map.roles.values())
    return ", ".join(f"{counts[role]} {ROLE_NAMES[role]}" for role in ROLES)


@dataclass(frozen=True)
class Overlap:
    """How far two role maps agree on the heads they both have; shares are from 0 to 1.

    `by_chance` is the share of equal roles to expect if both maps had dealt out their roles at random.
    """

    heads: int
    same_role: float
    by_chance: float
    same_role_and_concept: float
    table: Table

    def summary(self) -> str:
        role, chance, both = (100 * share for share in (self.same_role, self.by_chance, self.same_role_and_concept))
        agreed = f"{role:.1f}% have the same role (by chance {chance:.1f}%), {both:.1f}% the same role and concept"
        return f"of {self.heads} heads, {agreed}"


def overlap(a: RoleMap, b: RoleMap) -> Overlap:
    """Compares two role maps head by head."""
    both = sorted(set(a.roles) & set(b.roles))
    if not both:
        raise DearError("The two role maps have no head in common; compare maps of the same layers.")
    table = Table(["layer", "head", "role", "concept", "other role", "other concept", "same"])
    same_role = same_both = 0
    for at in both:
        role, concept = a[at].role == b[at].role, a[at].concept == b[at].concept
        same_role += role
        same_both += role and concept
        same = "role and concept" if role and concept else "role" if role else "concept" if concept else None
        table.add(*at, ROLE_NAMES[a[at].role], a[at].concept, ROLE_NAMES[b[at].role], b[at].concept, same)
    counts = [Counter(role_map[at].role for at in both) for role_map in (a, b)]
    by_chance = sum(counts[0][role] * counts[1][role] for role in ROLES) / len(both) ** 2
    return Overlap(len(both), same_role / len(both), by_chance, same_both / len(both), table)
