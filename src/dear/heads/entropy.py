"""Concept Entropy and the quantile rule (Eq. 2-4): from the concepts of a head's phrases to the head's role.

All ties and empty cases are decided here, independent of the order of heads:
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

from dear.core.errors import DearError
from dear.core.names import CORE_ATTRIBUTES
from dear.heads.head_role import CORE_ATTRIBUTE, GENERALIZATION, MIXED, OTHER_SPECIALIZED, HeadRole, Phrase
from dear.heads.role_map import Head, RoleMap

# The paper names only five; the sets of 3 and 7 are our choice: the core concepts with most heads in its Table 2, and
# the five with the two commonest concepts of its other specialised heads.
CORE_SETS = {
    3: ("texture", "object", "location"),
    5: CORE_ATTRIBUTES,
    7: (*CORE_ATTRIBUTES, "human", "text"),
}


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


def rejudge(role_map: RoleMap, quantile: float) -> RoleMap:
    """The same heads and evidence, judged with another quantile of the entropy."""
    entropies = {head: role.entropy for head, role in role_map.roles.items() if role.entropy is not None}
    if missing := [head for head in role_map.roles if head not in entropies]:
        raise DearError(
            f"Head {missing[0][1]} of layer {missing[0][0]} has no entropy in this role map, so another quantile "
            "cannot be tried: make a map with `dear roles`."
        )
    dominant = {head: role.concept for head, role in role_map.roles.items()}
    roles = quantile_roles(entropies, dominant, role_map.core, quantile)
    judged = {head: replace(role, role=roles[head]) for head, role in role_map.roles.items()}
    return replace(role_map, roles=judged, origin={**role_map.origin, "quantile": quantile})


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
