"""From shares to roles: which heads are experts in an attribute, and how sure that is."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dear.clip import Backbone
from dear.core.errors import DearError
from dear.core.version import __version__
from dear.heads.by_pictures import RESAMPLES, HeadMoments, dominant, lifts, measure, sureness
from dear.heads.entropy import CORE_5, concept_entropy, entropy_thresholds, quantile_roles
from dear.heads.head_role import CORE_ATTRIBUTE, GENERALIZATION, MIXED, OTHER_SPECIALIZED, HeadRole
from dear.heads.probes import Probe
from dear.heads.role_map import Head, RoleMap
from dear.parallel.cluster import Cluster

SURE = 0.7
EXPERTS = 8  # an attribute has at most every eighth head as an expert
GENERAL = 0.2  # share of heads with the highest entropy: as in the paper


def roles_by_pictures(
    backbone: Backbone,
    probes: Sequence[Probe],
    *,
    first_layer: int | None = None,
    core: Sequence[str] = CORE_5,
    quantile: float | None = None,
    cluster: Cluster | None = None,
) -> RoleMap:
    """Judges every head from `first_layer` on (default: the last third); `judge_shares` explains the rule."""
    if quantile is not None:
        entropy_thresholds([], quantile)  # refuses a bad one now, not after the pass
    told = {attribute for probe in probes for attribute in probe.attributes}
    if missing := [attribute for attribute in core if attribute not in told]:
        raise DearError(f"No probe tells about {missing[0]}: add one with --probe {missing[0]}=DATA.")
    measured = measure(backbone, probes, first_layer, cluster)
    origin: dict[str, Any] = {
        "made_by": f"dear {__version__}",
        "by": "pictures",
        "probes": [probe.about(count > 0) for probe, count in zip(probes, measured.colored, strict=True)],
        "skipped_images": measured.skipped,
        "resamples": RESAMPLES,
        "rule": "experts" if quantile is None else "quantile",
    }
    if quantile is not None:
        origin["quantile"] = quantile
    roles = judge_shares(measured, core, quantile)
    identity, tower = backbone.identity.to_json(), backbone.image
    return RoleMap(identity, measured.layers, tower.heads, tuple(measured.moments), tuple(core), roles, origin)


def judge_shares(
    measured: HeadMoments, core: Sequence[str] = CORE_5, quantile: float | None = None
) -> dict[Head, HeadRole]:
    """The role of every head, with the evidence for it.

    A head is about the attribute in which it ranks highest (`dominant`). It is specialised if it is sure, its share is
    above the mean of all heads, and it is among the best of the sure ones that are about the attribute, every eighth
    head at most. With a `quantile`: if it is sure and among the heads with the lowest entropy. What is not specialised
    is generalization if its entropy is among the highest, else mixed.
    """
    concepts, shares = list(measured.moments), measured.shares()
    lift, about, sure = lifts(shares), dominant(shares), sureness(measured)
    found: dict[Head, HeadRole] = {}
    for row, layer in enumerate(measured.layers):
        for head in range(shares.shape[2]):
            mine, at = lift[:, row, head], int(about[row, head])
            total = mine.sum().item()
            distribution = tuple((mine / total).tolist()) if total else (0.0,) * len(concepts)
            found[layer, head] = HeadRole(
                MIXED, concepts[at] if total else None, concept_entropy(distribution), distribution,
                shares=tuple(shares[:, row, head].tolist()), sure=sure[row, head].item(),
            )  # fmt: skip
    concept_of = {at: role.concept for at, role in found.items()}
    ends = quantile_roles({at: r.entropy or 0.0 for at, r in found.items()}, concept_of, core, quantile or GENERAL)
    special = {at for at, role in ends.items() if role in (CORE_ATTRIBUTE, OTHER_SPECIALIZED)}
    if quantile is None:
        special = _clearest(found, concepts, shares.mean((1, 2)).tolist())

    def role_of(at: Head, head: HeadRole) -> str:
        if at in special and (head.sure or 0) >= SURE:
            return CORE_ATTRIBUTE if head.concept in core else OTHER_SPECIALIZED
        return GENERALIZATION if ends[at] == GENERALIZATION else MIXED

    return {at: replace(head, role=role_of(at, head)) for at, head in found.items()}


def _clearest(found: Mapping[Head, HeadRole], concepts: Sequence[str], mean: Sequence[float]) -> set[Head]:
    """Of the heads that are surely about an attribute, those with most of it, if it is more than heads have on the
    mean. One that is not sure takes no other's place."""
    sure = {at: head for at, head in found.items() if head.shares and (head.sure or 0) >= SURE}
    chosen: set[Head] = set()
    for k, concept in enumerate(concepts):
        shares = {at: head.shares[k] for at, head in sure.items() if head.concept == concept and head.shares}
        best = sorted(shares, key=lambda at: (-shares[at], at))[: math.ceil(len(found) / EXPERTS)]
        chosen |= {at for at in best if shares[at] > mean[k]}
    return chosen
