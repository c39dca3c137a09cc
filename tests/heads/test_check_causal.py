"""Mean-ablation against the naive loop, and the causal test on a backbone that knows nothing."""

import json
from random import Random

import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from dear.core.errors import DearError
from dear.heads.check_causal import causal_check, features_without, mean_outputs
from dear.heads.check_figures import plot_check
from dear.heads.checks import random_heads
from dear.heads.head_role import HeadRole
from dear.heads.role_map import RoleMap

CONCEPTS = ("color", "shape", "texture", "object", "location", "animal")
FIRST = 3


@pytest.fixture
def prepared(tiny):
    """A backbone in float64, states after layer 2 of five pictures, and the heads' mean outputs."""
    backbone = tiny()
    backbone.model.double()
    pixels = torch.randn(5, 3, 32, 32, dtype=torch.float64)
    states = backbone.image.trunk(pixels, FIRST - 1)
    return backbone, pixels, states, mean_outputs(backbone, states, FIRST)


def naive_features(backbone, states, heads) -> torch.Tensor:
    """Layer by layer, picture by picture, head by head, token by token; means taken from an untouched run."""
    blocks = backbone.image.blocks[FIRST - 1 :]
    clean, changed = list(states), list(states)
    for layer, block in enumerate(blocks, FIRST):
        size = block.attn.embed_dim // block.attn.num_heads
        normal = [textbook_outputs(block.attn, block.ln_1(x)) for x in clean]
        mean = torch.stack(normal).mean(0)
        for i in range(len(states)):
            out = textbook_outputs(block.attn, block.ln_1(changed[i]))
            for at, head in heads:
                if at == layer:
                    out[:, head * size : (head + 1) * size] = mean[:, head * size : (head + 1) * size]
            for x, o in ((clean, normal[i]), (changed, out)):
                x[i] = x[i] + block.attn.out_proj(o)
                x[i] = x[i] + block.mlp(block.ln_2(x[i]))
    return F.normalize(backbone.image.project(torch.stack(changed)[:, 0]), dim=-1)


def textbook_outputs(attn, x: torch.Tensor) -> torch.Tensor:
    """x [tokens, width] -> the heads' outputs side by side, [tokens, width]."""
    q, k, v = (x @ w.T + b for w, b in zip(attn.in_proj_weight.chunk(3), attn.in_proj_bias.chunk(3), strict=True))
    size = attn.embed_dim // attn.num_heads
    parts = [slice(h * size, (h + 1) * size) for h in range(attn.num_heads)]
    return torch.cat([(q[:, p] @ k[:, p].T / size**0.5).softmax(-1) @ v[:, p] for p in parts], -1)


@pytest.mark.parametrize("heads", [[], [(3, 1)], [(4, 0), (4, 3)], [(3, 0), (3, 2), (4, 1)]])
def test_mean_ablation_equals_the_naive_loop(prepared, heads) -> None:
    backbone, _, states, means = prepared
    fast = features_without(backbone, states, FIRST, heads, means)
    torch.testing.assert_close(fast, naive_features(backbone, states, heads), atol=1e-12, rtol=0)


def test_without_none_it_is_the_model_and_without_all_the_patches_are_unseen(prepared) -> None:
    backbone, pixels, states, means = prepared
    whole = F.normalize(backbone.image.encode(pixels), dim=-1)
    torch.testing.assert_close(features_without(backbone, states, FIRST, [], means), whole, atol=1e-12, rtol=0)
    everything = [(layer, head) for layer in (3, 4) for head in range(4)]
    blind = features_without(backbone, states, FIRST, everything, means)
    states[:, 1:] += torch.randn_like(states[:, 1:])
    torch.testing.assert_close(features_without(backbone, states, FIRST, everything, means), blind)
    assert not torch.allclose(features_without(backbone, states, FIRST, [], means), whole)


def test_random_heads_are_of_the_same_layers_and_number() -> None:
    like = [(7, 0), (7, 5), (9, 2)]
    drawn = [random_heads(like, 8, Random(seed)) for seed in range(50)]
    assert all([layer for layer, _ in heads] == [7, 7, 9] and len(set(heads)) == 3 for heads in drawn)
    assert {head for heads in drawn for _, head in heads} == set(range(8))


def role_map(backbone, concepts) -> RoleMap:
    roles = {(4, head): HeadRole("mixed", concept) for head, concept in enumerate(concepts)}
    return RoleMap(backbone.identity.to_json(), (4,), 4, CONCEPTS, CONCEPTS[:5], roles)


def test_the_matrix_of_concepts_and_attributes(tiny, tmp_path) -> None:
    backbone = tiny()
    result = causal_check(backbone, role_map(backbone, ["color", "color", "animal", None]), pictures=48, draws=3)
    assert [(g.attribute, g.heads) for g in result.groups] == [("color", ((4, 0), (4, 1))), ("animal", ((4, 2),))]
    assert set(result.pictures.values()) == {48}
    assert list(result.whole) == list(CONCEPTS[:5])
    assert all(set(g.values) == set(g.random_mean) == set(g.random_std) == set(result.whole) for g in result.groups)
    assert json.loads(json.dumps(result.to_json()))["groups"][0]["heads"] == [[4, 0], [4, 1]]
    assert len(result.table().rows) == 2
    assert "There is no head for shape, texture, object, location." in result.verdict()
    color = result.groups[0]
    on_color = color.values["color"] - color.random_mean["color"]
    assert f"Beyond random heads, their own attribute loses {on_color:.1f} points" in result.verdict()
    plot_check(result, tmp_path / "causal.png")
    assert Image.open(tmp_path / "causal.png").width > 800


def test_the_same_check_gives_the_same_numbers_and_others_are_refused(tiny) -> None:
    backbone = tiny()
    some = role_map(backbone, ["color", "shape", None, None])
    assert causal_check(backbone, some, 32, 2) == causal_check(backbone, some, 32, 2)
    with pytest.raises(DearError, match="another backbone"):
        causal_check(tiny(seed=1), some, 32, 2)
    with pytest.raises(DearError, match="nothing to check"):
        causal_check(backbone, role_map(backbone, [None] * 4), 32, 2)
