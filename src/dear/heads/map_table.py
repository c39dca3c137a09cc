"""A role map as a table (the paper's Table 2), and as the record that its picture and its pages draw."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dear.core.errors import DearError
from dear.core.figure import color_of
from dear.core.table import Table
from dear.heads.head_role import CORE_ATTRIBUTE, GENERALIZATION, MIXED, OTHER_SPECIALIZED, ROLES, HeadRole
from dear.heads.role_map import Head, RoleMap

ROLE_NAMES = {role: role.replace("_", " ") for role in ROLES}
# One shape per role, so that a picture is clear without colour, too.
ROLE_MARKS = {CORE_ATTRIBUTE: "★", OTHER_SPECIALIZED: "■", GENERALIZATION: "○", MIXED: "◐"}


def color_strength(head: HeadRole, role_map: RoleMap) -> float:
    """Saturation of a head's colour, from 0 to 1: high for low entropy, and low for the highest entropy of the map.

    By pictures: the surer the stronger, and weak for a head that is not specialised.
    """
    if head.sure is not None:
        return head.sure * (0.95 if head.role in (CORE_ATTRIBUTE, OTHER_SPECIALIZED) else 0.3)
    if head.entropy is None:
        return 0.35 if head.concept is None else 0.9
    entropies = [other.entropy for other in role_map.roles.values() if other.entropy is not None]
    low, high = min(entropies), max(entropies)
    return 1 - 0.85 * (head.entropy - low) / (high - low) if high > low else 0.9


# --- the record ------------------------------------------------------------------------------------------


def map_record(role_map: RoleMap) -> dict[str, Any]:
    """The map with all that it has about each head, as JSON values: what its picture and its pages show."""
    lifts = head_lifts(role_map)
    return {
        "layers": list(role_map.layers),
        "heads": role_map.heads,
        "core": list(role_map.core),
        "summary": role_summary(role_map),
        "origin": _origin(role_map),
        "legend": _cell_legend(role_map),
        "roles": {role: {"name": ROLE_NAMES[role], "mark": ROLE_MARKS[role]} for role in ROLES},
        "cells": [_head_record(role_map, at, lifts.get(at)) for at in role_map.roles],
    }


def _head_record(role_map: RoleMap, at: Head, lifts: Sequence[float] | None) -> dict[str, Any]:
    """One head. `number` is the lift of its concept, or its entropy.

    `distribution` has each concept's share of the head's variance with its lift, or else its share of the phrases.
    """
    head, concepts = role_map[at], role_map.concepts
    number = "" if head.entropy is None else f"{head.entropy:.2f}"
    if lifts and head.concept is not None:
        number = f"{lifts[concepts.index(head.concept)]:.1f}x"
    known: Sequence[float | None] = lifts or [None] * len(concepts)
    rows = zip(concepts, head.shares or head.distribution or [0.0] * len(concepts), known, strict=True)
    return {
        "layer": at[0],
        "head": at[1],
        "role": head.role,
        "concept": head.concept,
        "color": color_of(head.concept),
        "strength": round(color_strength(head, role_map), 3),
        "entropy": head.entropy,
        "sure": head.sure,
        "number": number,
        "distribution": [{"concept": c, "share": s, "lift": lift, "color": color_of(c)} for c, s, lift in rows if s],
        "phrases": [{**asdict(phrase), "color": color_of(phrase.concept)} for phrase in head.phrases],
    }


def _origin(role_map: RoleMap) -> str:
    """The pictures that the map was made from, in one line, if it names them."""
    origin = role_map.origin
    made_by = f"found by {origin.get('made_by', 'dear')} on"
    if images := origin.get("images"):
        return f"{made_by} {images.get('used')} images of {images.get('source')}"
    if probes := origin.get("probes"):
        pictures = [f"{probe['used']} {probe['kind']} of {probe['source']}" for probe in probes]
        return f"{made_by} {', '.join(pictures)}"
    return str(origin.get("source", ""))


def _cell_legend(role_map: RoleMap) -> str:
    """The meaning of the numbers and colours of the heads; empty for a map without evidence."""
    if any(head.shares for head in role_map.roles.values()):
        return "number: share of variance over the mean head's; strong colour: specialised, the surer the stronger"
    if any(head.entropy is not None for head in role_map.roles.values()):
        return "number: Concept Entropy in nats; strong colour: low entropy"
    return ""


def head_lifts(role_map: RoleMap) -> dict[Head, tuple[float, ...]]:
    """Shares of each head divided by those of the mean head, one per concept; only heads judged by pictures."""
    rows = {at: head.shares for at, head in role_map.roles.items() if head.shares is not None}
    means = [sum(column) / len(rows) for column in zip(*rows.values(), strict=True)]
    return {
        at: tuple(s / mean if mean else 0.0 for s, mean in zip(row, means, strict=True)) for at, row in rows.items()
    }


# --- the table, and what the map rests on ----------------------------------------------------------------


def role_table(role_map: RoleMap, phrases: int = 3) -> Table:
    """One row per head: layer, head, role, concept, entropy in nats, and the evidence.

    By pictures that is how sure the concept is (share of resamples) and the lift of every concept, by phrases the best
    `phrases`.
    """
    lifts = head_lifts(role_map)
    evidence = ["sure", *role_map.concepts] if lifts else ["top phrases"]
    table = Table(["layer", "head", "role", "concept", "entropy", *evidence])
    for at, head in role_map.roles.items():
        entropy = None if head.entropy is None else f"{head.entropy:.2f}"
        cells: list[object] = ["; ".join(phrase.text for phrase in head.phrases[:phrases]) or None]
        if lifts:
            sure = None if head.sure is None else f"{100 * head.sure:.0f}%"
            no_lifts: list[object] = [None] * len(role_map.concepts)
            cells = [sure, *([f"{lift:.1f}x" for lift in lifts[at]] if at in lifts else no_lifts)]
        table.add(*at, ROLE_NAMES[head.role], head.concept, entropy, *cells)
    return table


def table_legend(role_map: RoleMap) -> str:
    """One line that explains the evidence in `role_table`; empty where it needs no explanation."""
    if not head_lifts(role_map):
        return ""
    return (
        "2.0x: the attribute explains twice as much of the head's variance as of the mean head's; concept: the "
        "attribute in which the head ranks highest among all heads; sure: share of resamples that agree"
    )


def map_title(role_map: RoleMap) -> str:
    """Name and weights of the backbone, as far as the map has them."""
    names = [role_map.backbone.get(key) for key in ("model", "pretrained")]
    return " / ".join(name for name in names if name) or "role map"


def role_summary(role_map: RoleMap) -> str:
    """The number of heads per role, in one line."""
    counts = Counter(head.role for head in role_map.roles.values())
    return ", ".join(f"{counts[role]} {ROLE_NAMES[role]}" for role in ROLES)


def evidence_lines(role_map: RoleMap) -> list[str]:
    """The pictures that the map was made from, and its note, one line each."""
    origin = role_map.origin
    lines = [origin["note"]] if origin.get("note") else []
    for probe in origin.get("probes", ()):
        lines.append(f"{', '.join(probe['attributes'])}: {probe['used']} {probe['kind']} of {probe['source']}")
    if images := origin.get("images"):
        skipped = len(origin.get("skipped_images", ()))
        lines.append(f"judged by {images.get('used')} images of {images.get('source')}; {skipped} could not be read")
    return lines


def field_lines(fields: Mapping[str, Any]) -> list[str]:
    """Fields of an identity or an origin as "name: value"; missing values are left out."""
    values = {name: value for name, value in fields.items() if value is not None}
    return [f"{name}: {value if isinstance(value, str) else json.dumps(value)}" for name, value in values.items()]


# --- two maps --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Overlap:
    """Agreement of two role maps on the heads that both have; shares are from 0 to 1.

    `by_chance` is the share of equal roles that is expected if both maps assigned their roles at random.
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
    both = [at for at in a.roles if at in b.roles]
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
