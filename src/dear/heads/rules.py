"""Rules that turn evidence into roles: Concept Entropy with quantiles (Eq. 2-4), and shares by pictures.

All ties and empty cases of the quantile rule are decided here, independent of the order of heads:
- Heads with equal entropies are treated alike: a head tied with the last one inside a quantile is inside it, too. A
  head that is then in both the bottom and the top quantile (all entropies are equal) is mixed.
- Of concepts with equally many phrases, the one whose first phrase explains more variance is dominant.
- A head without a phrase to judge by (it writes the same for every image, or the entropy is over the core concepts and
  it has no phrase of these) has the largest possible entropy: there is no evidence that it is specialised.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import torch
from torch import Tensor

from dear.core.errors import DearError
from dear.core.names import CORE_ATTRIBUTES
from dear.heads.head_role import CORE_ATTRIBUTE, GENERALIZATION, MIXED, OTHER_SPECIALIZED, HeadRole, Phrase
from dear.heads.role_map import Head, RoleMap
from dear.heads.shares import PICTURE_GROUPS, HeadMoments

# The paper names only five; the sets of 3 and 7 are our choice: the core concepts with most heads in its Table 2, and
# the five with the two commonest concepts of its other specialised heads.
CORE_SETS = {
    3: ("texture", "object", "location"),
    5: CORE_ATTRIBUTES,
    7: (*CORE_ATTRIBUTES, "human", "text"),
}
RESAMPLES = 100
SURE = 0.7  # share of resamples that must agree on a specialised head's attribute
EVERY = 8  # at most every eighth head is a head for one attribute
GENERAL = 0.2  # share of heads, those with the highest entropy, that may be generalization: as in the paper


# --- from phrases ----------------------------------------------------------------------------------------


def concept_distribution(phrase_concepts: Sequence[str], concepts: Sequence[str]) -> tuple[float, ...]:
    """P_h(k), Eq. 3: the share of each of `concepts` in a head's phrases; all zero without phrases."""
    if unknown := set(phrase_concepts) - set(concepts):
        raise DearError(f"The phrases have unknown concepts: {', '.join(sorted(unknown))}.")
    counts = Counter(phrase_concepts)
    return tuple(counts[concept] / max(1, len(phrase_concepts)) for concept in concepts)


def concept_entropy(distribution: Sequence[float]) -> float:
    """H(h), Eq. 4, in nats: entropy of the shares scaled to sum to 1; log(number of concepts) if all are zero."""
    total = math.fsum(distribution)
    if total == 0:
        return math.log(len(distribution))
    # fsum rounds only once, so that heads with the same shares in another order are exactly equal
    return abs(math.fsum(-p / total * math.log(p / total) for p in distribution if p > 0))


def dominant_concept(phrase_concepts: Sequence[str]) -> str | None:
    """The commonest concept of phrases, which are sorted best first; None without phrases."""
    counts = Counter(phrase_concepts)  # max returns the first of equals
    return max(counts, key=lambda concept: counts[concept]) if counts else None


def entropy_thresholds(entropies: Sequence[float], quantile: float = 0.2) -> tuple[float, float]:
    """(low, high): heads with an entropy <= low are the bottom `quantile`, heads with one >= high the top.

    The number of heads is rounded half up; if it is zero, low is -inf and high is inf.
    """
    if not 0 < quantile <= 0.5:
        raise DearError(f"The quantile is {quantile}; give a share above 0 and up to 0.5.")
    size = math.floor(quantile * len(entropies) + 0.5)
    if size == 0:
        return -math.inf, math.inf
    ordered = sorted(entropies)
    return ordered[size - 1], ordered[-size]


def judge_heads(
    phrases: Mapping[Head, Sequence[Phrase]],
    concepts: Sequence[str],
    core: Sequence[str] = CORE_ATTRIBUTES,
    quantile: float = 0.2,
    over_core: bool = False,
) -> dict[Head, HeadRole]:
    """The role of every head from its phrases (best first), with the evidence for it.

    Bottom `quantile` of entropy: core attribute if the dominant concept is core, else other specialised. Top:
    generalization. Between: mixed. With `over_core` the entropy is over the core concepts only; distribution and
    dominant concept are always over all `concepts`, because otherwise no head could be "other specialised".
    """
    if missing := [concept for concept in core if concept not in concepts]:
        raise DearError(f"Core concepts must be among the concepts; {', '.join(missing)} is not.")
    labels = {head: [phrase.concept for phrase in of_head] for head, of_head in phrases.items()}
    shares = {head: concept_distribution(of_head, concepts) for head, of_head in labels.items()}
    entropies = {
        head: concept_entropy([p for p, c in zip(row, concepts, strict=True) if c in core or not over_core])
        for head, row in shares.items()
    }
    dominant = {head: dominant_concept(of_head) for head, of_head in labels.items()}
    roles = quantile_roles(entropies, dominant, core, quantile)
    return {
        head: HeadRole(roles[head], dominant[head], entropies[head], shares[head], tuple(phrases[head]))
        for head in phrases
    }


def quantile_roles(
    entropies: Mapping[Head, float], dominant: Mapping[Head, str | None], core: Sequence[str], quantile: float
) -> dict[Head, str]:
    """The bottom `quantile` of entropy is specialised, the top generalization, the rest mixed."""
    low, high = entropy_thresholds(list(entropies.values()), quantile)

    def role_of(entropy: float, concept: str | None) -> str:
        if entropy <= low and entropy < high:
            return CORE_ATTRIBUTE if concept in core else OTHER_SPECIALIZED
        return GENERALIZATION if entropy >= high and entropy > low else MIXED

    return {head: role_of(entropy, dominant[head]) for head, entropy in entropies.items()}


# --- from shares -----------------------------------------------------------------------------------------


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
    halves = [sorted(rng.sample(range(PICTURE_GROUPS), PICTURE_GROUPS // 2)) for _ in range(resamples)]
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


# --- maps judged again -----------------------------------------------------------------------------------


def rejudge(role_map: RoleMap, quantile: float) -> RoleMap:
    """Assigns the roles of a map again, from the same evidence, with another quantile of the entropy."""
    entropies = {head: role.entropy for head, role in role_map.roles.items() if role.entropy is not None}
    if missing := [head for head in role_map.roles if head not in entropies]:
        raise DearError(
            f"Head {missing[0][1]} of layer {missing[0][0]} has no entropy in this role map, so another quantile "
            "cannot be tried: make a map with `dear roles`."
        )
    dominant = {head: role.concept for head, role in role_map.roles.items()}
    roles = quantile_roles(entropies, dominant, role_map.core, quantile)
    return role_map.with_roles([(roles[head], dominant[head]) for head in role_map.roles], quantile=quantile)


def with_core(role_map: RoleMap, core: Sequence[str]) -> RoleMap:
    """Another set of core attributes: specialised heads become core or other by their concept; other roles stay."""
    if missing := [concept for concept in core if concept not in role_map.concepts]:
        raise DearError(f"This role map knows no concept {missing[0]!r}: make one that does with `dear roles`.")

    def role_of(head: HeadRole) -> str:
        if head.role not in (CORE_ATTRIBUTE, OTHER_SPECIALIZED):
            return head.role
        return CORE_ATTRIBUTE if head.concept in core else OTHER_SPECIALIZED

    roles = {at: replace(head, role=role_of(head)) for at, head in role_map.roles.items()}
    return replace(role_map, roles=roles, core=tuple(core))
