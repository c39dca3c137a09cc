"""From shares to roles: which heads are the heads for an attribute, and how sure that is."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import torch
from torch import Tensor

from dear.core.names import CORE_ATTRIBUTES
from dear.heads.entropy import concept_entropy, quantile_roles
from dear.heads.head_role import CORE_ATTRIBUTE, GENERALIZATION, MIXED, OTHER_SPECIALIZED, HeadRole
from dear.heads.role_map import Head
from dear.heads.shares import GROUPS, HeadMoments

RESAMPLES = 100
SURE = 0.7  # share of resamples that must agree on a specialised head's attribute
EVERY = 8  # at most every eighth head is a head for one attribute
GENERAL = 0.2  # share of heads, those with the highest entropy, that may be generalization: as in the paper


def lifts(shares: Tensor) -> Tensor:
    """Shares [attributes, layers, heads] divided by their mean over heads; zero where no head has any."""
    mean = shares.mean((1, 2), keepdim=True)
    return torch.where(mean > 0, shares / mean, torch.zeros_like(shares))


def dominant(shares: Tensor) -> Tensor:
    """The attribute in which a head ranks highest among all heads, [attributes, layers, heads] -> [layers, heads].

    Ranks, not lifts: objects move every head of CLIP and color only few, so that many heads have a large lift for color
    and none has one for objects. Of equal ranks the one with the larger lift counts.
    """
    rows = shares.flatten(1)
    below = (rows[:, None, :] < rows[:, :, None]).sum(-1).view_as(shares)  # number of heads with a smaller share
    lift = lifts(shares)
    return (below + lift / (1 + lift)).argmax(0)


def sureness(measured: HeadMoments, resamples: int = RESAMPLES) -> Tensor:
    """Share of resamples in which a head has the same dominant attribute as in all pictures, [layers, heads].

    A resample is a random half of the pictures without replacement: it varies as much as a bootstrap sample, but
    contains no picture twice, which would look like agreement within a label.
    """
    whole = dominant(measured.shares())
    rng = Random("roles")
    halves = [sorted(rng.sample(range(GROUPS), GROUPS // 2)) for _ in range(resamples)]
    return torch.stack([dominant(measured.shares(half)) == whole for half in halves]).double().mean(0)


def judge_shares(
    measured: HeadMoments, core: Sequence[str] = CORE_ATTRIBUTES, quantile: float | None = None
) -> dict[Head, HeadRole]:
    """The role of every head, with the evidence for it.

    A head is about the attribute in which it ranks highest (`dominant`). It is specialised if that is sure, its share
    is above the mean of all heads, and it is among the best of the sure heads about the attribute, at most every
    eighth head. With a `quantile`, it is specialised if it is sure and among the heads with the lowest entropy. Any
    other head is generalization if its entropy is among the highest, else mixed.
    """
    concepts, shares = list(measured.moments), measured.shares()
    lift, top, sure = lifts(shares), dominant(shares), sureness(measured)
    heads: dict[Head, HeadRole] = {}
    for row, layer in enumerate(measured.layers):
        for head in range(shares.shape[2]):
            own_lifts = lift[:, row, head]
            total = own_lifts.sum().item()
            distribution = tuple((own_lifts / total).tolist()) if total else (0.0,) * len(concepts)
            heads[layer, head] = HeadRole(
                MIXED,
                concepts[int(top[row, head])] if total else None,
                concept_entropy(distribution),
                distribution,
                shares=tuple(shares[:, row, head].tolist()),
                sure=sure[row, head].item(),
            )
    concept_of = {at: head.concept for at, head in heads.items()}
    entropies = {at: head.entropy or 0.0 for at, head in heads.items()}
    by_entropy = quantile_roles(entropies, concept_of, core, quantile or GENERAL)
    special = {at for at, role in by_entropy.items() if role in (CORE_ATTRIBUTE, OTHER_SPECIALIZED)}
    if quantile is None:
        special = _best_heads(heads, concepts, shares.mean((1, 2)).tolist())

    def role_of(at: Head, head: HeadRole) -> str:
        if at in special and (head.sure or 0) >= SURE:
            return CORE_ATTRIBUTE if head.concept in core else OTHER_SPECIALIZED
        return GENERALIZATION if by_entropy[at] == GENERALIZATION else MIXED

    return {at: replace(head, role=role_of(at, head)) for at, head in heads.items()}


def _best_heads(heads: Mapping[Head, HeadRole], concepts: Sequence[str], mean: Sequence[float]) -> set[Head]:
    """Per attribute, the sure heads with the largest shares, if these are above the mean over heads.

    A head that is not sure takes no place of a sure one.
    """
    sure = {at: head for at, head in heads.items() if head.shares and (head.sure or 0) >= SURE}
    chosen: set[Head] = set()
    for k, concept in enumerate(concepts):
        shares = {at: head.shares[k] for at, head in sure.items() if head.concept == concept and head.shares}
        best = sorted(shares, key=lambda at: (-shares[at], at))[: math.ceil(len(heads) / EVERY)]
        chosen |= {at for at in best if shares[at] > mean[k]}
    return chosen
