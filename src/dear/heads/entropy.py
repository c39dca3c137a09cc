"""Concept Entropy and the quantile rule (Eq. 2-4): from the concepts of a head's phrases to the head's role.

Every tie and empty case is decided here, and none by the order in which heads are given:
- Equal entropies get equal treatment: all heads tied with the last one inside a quantile are inside it too. A
  head that is then in both the bottom and the top (all entropies alike) is mixed.
- Between concepts with equally many phrases, the one whose first phrase explains more variance is dominant.
- A head without a phrase to judge by (it writes the same for every image, or the entropy is over the core and
  no phrase falls in it) has the largest entropy there is: nothing says that it is specialised.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dear.core.errors import DearError
from dear.heads.head_role import CORE_ATTRIBUTE, GENERALIZATION, MIXED, OTHER_SPECIALIZED, HeadRole, Phrase
from dear.heads.role_map import Head, RoleMap

# The paper names only its five; 3 and 7 are our reading: the core concepts with most heads in its Table 2,
# and the five with the two that most of its other specialised heads have.
CORE_3 = ("texture", "object", "location")
CORE_5 = ("color", "shape", "texture", "object", "location")
CORE_7 = (*CORE_5, "human", "text")


def concept_distribution(phrase_concepts: Sequence[str], concepts: Sequence[str]) -> tuple[float, ...]:
    """P_h(k), Eq. 3: the share of a head's phrases in each of `concepts`; all zero without phrases."""
    if unknown := set(phrase_concepts) - set(concepts):
        raise DearError(f"The phrases have concepts that are not in the list: {', '.join(sorted(unknown))}.")
    counts = Counter(phrase_concepts)
    return tuple(counts[concept] / max(1, len(phrase_concepts)) for concept in concepts)


def concept_entropy(distribution: Sequence[float]) -> float:
    """H(h), Eq. 4, in nats: of the shares scaled to sum to 1, and log(number of concepts) if all are zero."""
    total = math.fsum(distribution)
    if total == 0:
        return math.log(len(distribution))
    # fsum rounds once, so heads with the same shares in another order tie exactly
    return abs(math.fsum(-p / total * math.log(p / total) for p in distribution if p > 0))


def dominant_concept(phrase_concepts: Sequence[str]) -> str | None:
    """The commonest concept of phrases given best first; None without phrases."""
    counts = Counter(phrase_concepts)  # of equals, max keeps the first that it met
    return max(counts, key=lambda concept: counts[concept]) if counts else None


def entropy_thresholds(entropies: Sequence[float], quantile: float = 0.2) -> tuple[float, float]:
    """(low, high): entropies <= low are the bottom `quantile` of heads, those >= high the top.

    The number of heads is rounded half up; where that is none, low is -inf and high is inf.
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
    core: Sequence[str] = CORE_5,
    quantile: float = 0.2,
    over_core: bool = False,
) -> dict[Head, HeadRole]:
    """The role of every head from its phrases (best first), with the evidence for it.

    Bottom `quantile` of entropy: core attribute if the dominant concept is core, else other specialised. Top:
    generalization. Between: mixed. `over_core` takes the entropy over the core concepts only; the
    distribution and the dominant concept are always over all `concepts`: without the others there could be no
    "other specialised".
    """
    if missing := [concept for concept in core if concept not in concepts]:
        raise DearError(f"Core concepts must be among the concepts; {', '.join(missing)} is not.")
    labels = {head: [phrase.concept for phrase in found] for head, found in phrases.items()}
    shares = {head: concept_distribution(found, concepts) for head, found in labels.items()}
    entropies = {
        head: concept_entropy([p for p, c in zip(row, concepts, strict=True) if c in core or not over_core])
        for head, row in shares.items()
    }
    dominant = {head: dominant_concept(found) for head, found in labels.items()}
    roles = quantile_roles(entropies, dominant, core, quantile)
    return {
        head: HeadRole(roles[head], dominant[head], entropies[head], shares[head], tuple(phrases[head]))
        for head in phrases
    }


def quantile_roles(
    entropies: Mapping[Head, float], dominant: Mapping[Head, str | None], core: Sequence[str], quantile: float
) -> dict[Head, str]:
    """The bottom `quantile` of entropy is specialised, the top generalization, what is between is mixed."""
    low, high = entropy_thresholds(list(entropies.values()), quantile)

    def role_of(entropy: float, concept: str | None) -> str:
        if entropy <= low and entropy < high:
            return CORE_ATTRIBUTE if concept in core else OTHER_SPECIALIZED
        return GENERALIZATION if entropy >= high and entropy > low else MIXED

    return {head: role_of(entropy, dominant[head]) for head, entropy in entropies.items()}


def rejudge(role_map: RoleMap, quantile: float) -> RoleMap:
    """The same heads and evidence, judged by another share of heads at either end of the entropy."""
    entropies = {head: role.entropy for head, role in role_map.roles.items() if role.entropy is not None}
    if bare := [head for head in role_map.roles if head not in entropies]:
        raise DearError(
            f"Head {bare[0][1]} of layer {bare[0][0]} has no entropy in this role map, so another quantile cannot be "
            "tried: make a map with `dear roles`."
        )
    dominant = {head: role.concept for head, role in role_map.roles.items()}
    given = quantile_roles(entropies, dominant, role_map.core, quantile)
    judged = {head: replace(role, role=given[head]) for head, role in role_map.roles.items()}
    return replace(role_map, roles=judged, origin={**role_map.origin, "quantile": quantile})


def with_core(role_map: RoleMap, core: Sequence[str]) -> RoleMap:
    """Another set of core attributes: specialised heads become core or other by their concept, the rest stay."""
    if missing := [concept for concept in core if concept not in role_map.concepts]:
        raise DearError(f"This role map knows no concept {missing[0]!r}: make one that does with `dear roles`.")

    def role_of(head: HeadRole) -> str:
        if head.role not in (CORE_ATTRIBUTE, OTHER_SPECIALIZED):
            return head.role
        return CORE_ATTRIBUTE if head.concept in core else OTHER_SPECIALIZED

    roles = {at: replace(head, role=role_of(head)) for at, head in role_map.roles.items()}
    return replace(role_map, roles=roles, core=tuple(core))
