"""Concept Entropy against known values, and the quantile rule with every tie and empty case."""

import math
import random
from collections import Counter

import numpy as np
import pytest

from dear.core.errors import DearError
from dear.heads.head_role import Phrase
from dear.heads.role_map import RoleMap
from dear.heads.rules import (
    CORE_SETS,
    concept_distribution,
    concept_entropy,
    dominant_concept,
    entropy_thresholds,
    judge_heads,
)

CONCEPTS = RoleMap.preset("paper").concepts


def phrases(*concepts):
    return [Phrase(f"phrase {i}", 0.1, concept) for i, concept in enumerate(concepts)]


def test_distribution_and_entropy_of_known_cases():
    shares = concept_distribution(["color"] * 10 + ["shape"] * 5 + ["action"] * 5, CONCEPTS)
    assert dict(zip(CONCEPTS, shares, strict=True))["color"] == 0.5
    assert sum(shares) == 1
    assert concept_entropy(shares) == pytest.approx(1.5 * math.log(2))  # 1.5 bits
    assert concept_entropy(concept_distribution(["text"] * 20, CONCEPTS)) == 0
    assert concept_entropy([1 / 12] * 12) == pytest.approx(math.log(12))


def test_entropy_does_not_depend_on_the_order_of_concepts_to_the_last_bit():
    shares = [count / 20 for count in (7, 5, 3, 2, 1, 1, 1)] + [0.0] * 5
    rng = random.Random(0)
    assert len({concept_entropy(rng.sample(shares, len(shares))) for _ in range(200)}) == 1


def test_without_phrases_nothing_says_that_a_head_is_specialised():
    shares = concept_distribution([], CONCEPTS)
    assert set(shares) == {0.0}
    assert concept_entropy(shares) == math.log(12)
    assert dominant_concept([]) is None


def test_the_better_phrase_decides_between_equally_common_concepts():
    assert dominant_concept(["style", "color", "color", "shape", "shape"]) == "color"
    assert dominant_concept(["style", "shape", "color", "color", "shape"]) == "shape"


@pytest.mark.parametrize("quantile", [0.1, 0.2, 0.3, 0.4, 0.5])
def test_the_quantiles_hold_as_many_heads_as_they_say(quantile):
    entropies = np.random.default_rng(0).permutation(np.linspace(0.1, 2.3, 50)).tolist()
    low, high = entropy_thresholds(entropies, quantile)
    assert sum(h <= low for h in entropies) == sum(h >= high for h in entropies) == round(50 * quantile)


def test_roles_by_hand():
    heads = {
        (1, 0): phrases(*["color"] * 4),  # entropy 0, core
        (1, 1): phrases(*["animal"] * 4),  # entropy 0, not core
        (2, 0): phrases("color", "color", "color", "shape"),
        (2, 1): phrases("color", "color", "shape", "shape"),
        (3, 0): phrases("color", "color", "shape", "text"),
        (3, 1): phrases("style", "text", "shape", "number"),
    }
    roles = judge_heads(heads, CONCEPTS, quantile=1 / 3)
    assert [roles[head].role for head in heads] == [
        "core_attribute", "other_specialized", "mixed", "mixed", "generalization", "generalization",
    ]  # fmt: skip
    assert [roles[head].concept for head in heads] == ["color", "animal", "color", "color", "color", "style"]
    assert roles[2, 1].entropy == pytest.approx(math.log(2))
    assert roles[3, 1].phrases == tuple(heads[3, 1])


def test_roles_do_not_depend_on_the_order_of_heads_and_ties_are_treated_alike():
    rng = random.Random(1)
    heads = {(9, h): phrases(*rng.choices(CONCEPTS[:4], k=6)) for h in range(40)}
    roles = judge_heads(heads, CONCEPTS)
    assert judge_heads(dict(rng.sample(list(heads.items()), 40)), CONCEPTS) == roles
    kinds = {}
    for head_role in roles.values():
        kind = "specialised" if head_role.role in ("core_attribute", "other_specialized") else head_role.role
        kinds.setdefault(head_role.entropy, set()).add(kind)
    assert all(len(kind) == 1 for kind in kinds.values())
    assert Counter(head_role.role for head_role in roles.values())["generalization"] >= 8  # ties may add to 20% of 40


def test_heads_that_are_all_alike_and_few_heads_are_mixed():
    alike = {(9, h): phrases("color", "shape") for h in range(10)}
    assert {head_role.role for head_role in judge_heads(alike, CONCEPTS).values()} == {"mixed"}
    two = {(9, 0): phrases("color"), (9, 1): phrases("color", "shape")}
    assert {head_role.role for head_role in judge_heads(two, CONCEPTS).values()} == {"mixed"}  # 20% of two is none
    assert judge_heads({}, CONCEPTS) == {}


def test_a_head_without_phrases_is_never_specialised():
    heads = {(9, h): phrases(*["color"] * 3, *["shape"] * h) for h in range(9)} | {(9, 9): []}
    dead = judge_heads(heads, CONCEPTS)[9, 9]
    assert (dead.role, dead.concept, dead.entropy) == ("generalization", None, math.log(12))


def test_entropy_over_the_core_only():
    heads = {
        (9, 0): phrases("color", "animal", "animal"),  # one core phrase: entropy 0 over the core
        (9, 1): phrases("animal", "animal", "animal"),  # none: the largest entropy
        (9, 2): phrases("color", "shape", "shape"),
        (9, 3): phrases("color", "shape", "texture"),
    }
    roles = judge_heads(heads, CONCEPTS, quantile=0.25, over_core=True)
    assert [roles[9, h].role for h in range(4)] == ["other_specialized", "generalization", "mixed", "mixed"]
    assert roles[9, 1].entropy == math.log(5)
    assert roles[9, 3].entropy == pytest.approx(math.log(3))


def test_the_core_decides_which_specialists_get_a_token():
    heads = {
        (9, h): phrases(*concepts) for h, concepts in enumerate([["human"], ["color"], ["location"], CONCEPTS[:3]])
    }
    core_heads = {
        len(core): [h for h in range(4) if judge_heads(heads, CONCEPTS, core)[9, h].role == "core_attribute"]
        for core in CORE_SETS.values()
    }
    assert core_heads == {3: [2], 5: [1, 2], 7: [0, 1, 2]}


@pytest.mark.parametrize("quantile", [0, -0.1, 0.51, 20, math.nan])
def test_bad_input_is_refused(quantile):
    with pytest.raises(DearError, match=r"up to 0\.5"):
        judge_heads({(9, 0): phrases("color")}, CONCEPTS, quantile=quantile)
    with pytest.raises(DearError, match="sound"):
        judge_heads({(9, 0): phrases("sound")}, CONCEPTS)
    with pytest.raises(DearError, match="sound"):
        judge_heads({(9, 0): phrases("color")}, CONCEPTS, core=("color", "sound"))
