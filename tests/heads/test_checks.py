"""Checks of role maps equal naive loops: mean ablation, search by heads, and the loss of layers."""

import json
from random import Random

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

import naive
from dear.clip import Backbone
from dear.core.errors import DearError
from dear.data.dataset import Dataset, Example
from dear.heads.check_causal import causal_check, features_without, mean_outputs
from dear.heads.check_layers import LayerLosses, layer_losses
from dear.heads.check_search import NEAREST, check_by_search
from dear.heads.checks import random_heads
from dear.heads.contributions import decompose
from dear.heads.figures import plot_check
from dear.heads.head_role import HeadRole
from dear.heads.pictures import PictureList, Probe, drawn_probe
from dear.heads.role_map import RoleMap
from dear.heads.shares import mean_colors

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
        normal = [torch.cat(naive.head_outputs(block.attn, block.ln_1(x)), -1) for x in clean]
        mean = torch.stack(normal).mean(0)
        for i in range(len(states)):
            out = torch.cat(naive.head_outputs(block.attn, block.ln_1(changed[i])), -1)
            for at, head in heads:
                if at == layer:
                    out[:, head * size : (head + 1) * size] = mean[:, head * size : (head + 1) * size]
            for x, o in ((clean, normal[i]), (changed, out)):
                x[i] = x[i] + block.attn.out_proj(o)
                x[i] = x[i] + block.mlp(block.ln_2(x[i]))
    return F.normalize(backbone.image.project(torch.stack(changed)[:, 0]), dim=-1)


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


SEARCHED = ("color", "shape")


def core_map(backbone: Backbone, concepts: list[str | None]) -> RoleMap:
    heads = [HeadRole("core_attribute", c) if c else HeadRole("mixed") for c in concepts]
    roles = {(layer, h): heads[h] for layer in (3, 4) for h in range(4)}
    return RoleMap(backbone.identity.to_json(), (3, 4), 4, SEARCHED, SEARCHED, roles)


def as_photos(probe: Probe) -> Probe:
    """The same pictures with their shape, and color by pixels."""
    pictures = PictureList("photos", probe.pictures.pictures, probe.pictures.names)
    return Probe(pictures, {"shape": probe.labels["shape"]}, by_pixels=True)


def test_search_is_that_of_a_naive_loop(tiny, tmp_path) -> None:
    backbone = tiny()
    probe = as_photos(drawn_probe(SEARCHED, 40, 32, held_out=True))
    result = check_by_search(backbone, core_map(backbone, ["color", "shape", "shape", None]), [probe], draws=3)
    images = [picture.open() for picture in probe.pictures.pictures]
    pixels = torch.stack([backbone.preprocess(image) for image in images])
    terms = decompose(backbone, pixels)
    colors = mean_colors(pixels * 0.25 + 0.5)[:, 1:].numpy()
    labels = probe.labels["shape"]

    def by_hand(features: np.ndarray) -> tuple[float, float]:
        distances, same = [], []
        for i, query in enumerate(features):
            others = [j for j in range(len(features)) if j != i]
            cosine = {j: query @ features[j] / np.linalg.norm(query) / np.linalg.norm(features[j]) for j in others}
            for j in sorted(others, key=lambda j: -cosine[j])[:NEAREST]:
                distances.append(np.linalg.norm(colors[i] - colors[j]))
                same.append(100 * (labels[i] == labels[j]))
        return float(np.mean(distances)), float(np.mean(same))

    written = terms.heads[:, 2:, 1:3].sum((1, 2)).numpy()  # the shape heads 1 and 2 of layers 3 and 4
    shape = result.groups[1]
    assert shape.heads == ((3, 1), (3, 2), (4, 1), (4, 2))
    assert list(shape.values.values()) == pytest.approx(by_hand(written - written.mean(0)), abs=1e-3)
    whole = terms.feature().numpy()
    assert list(result.whole.values()) == pytest.approx(by_hand(whole - whole.mean(0)), abs=1e-3)
    assert result.by_distance == ("color",)
    assert result.pictures == {"color": 40, "shape": 40}

    assert json.loads(json.dumps(result.to_json()))["groups"][1]["heads"] == [[3, 1], [3, 2], [4, 1], [4, 2]]
    assert len(result.table().rows) == 3
    plot_check(result, tmp_path / "check.png")
    assert Image.open(tmp_path / "check.png").width > 600


def test_a_verdict_says_what_is_found_and_what_has_no_expert(tiny) -> None:
    backbone = tiny()
    probe = drawn_probe(SEARCHED, 40, 32)
    result = check_by_search(backbone, core_map(backbone, ["color", None, None, None]), [probe], draws=2)
    assert "There is no head for shape." in result.verdict()
    assert "ahead of the heads for any other attribute: color (1 of 2)" in result.verdict()
    assert result.by_distance == ()  # drawn colors have names
    color = result.groups[0]
    assert result.gain(color, "color", {"color": color.values["color"] - 5}) == pytest.approx(5)
    with pytest.raises(DearError, match="nothing to check"):
        check_by_search(backbone, core_map(backbone, [None] * 4), [probe])
    with pytest.raises(DearError, match="another backbone"):
        check_by_search(tiny(seed=1), core_map(backbone, ["color", None, None, None]), [probe])
    with pytest.raises(DearError, match="a search needs more"):
        check_by_search(backbone, core_map(backbone, ["color", None, None, None]), [drawn_probe(SEARCHED, 9, 32)])


def test_layers_by_naive_sums(tiny) -> None:
    backbone = tiny()
    probe = drawn_probe(("shape",), 30, 32)
    pictures, labels = probe.pictures.pictures, probe.labels["shape"]
    pixels = torch.stack([backbone.preprocess(picture.open()) for picture in pictures])
    terms = decompose(backbone, pixels)
    whole = terms.feature()
    examples = tuple(Example(p, label) for p, label in zip(pictures, labels, strict=True))
    dataset = Dataset("shapes", tuple(str(i) for i in range(12)), "a {}.", (), (), examples)
    text = F.normalize(backbone.text.encode(dataset.prompts), dim=-1)
    by_nearness, by_accuracy = layer_losses(backbone, pictures), layer_losses(backbone, [], dataset)
    for layer in range(1, 5):
        for gone, near, right in (
            ([layer], by_nearness.alone, by_accuracy.alone),
            (list(range(1, layer + 1)), by_nearness.up_to, by_accuracy.up_to),
        ):
            heads = terms.heads.clone()
            for one in gone:
                heads[:, one - 1] = heads[:, one - 1].mean(0)
            changed = terms.embedding + heads.sum((1, 2)) + terms.mlps.sum(1)
            cosine = F.cosine_similarity(changed - changed.mean(0), whole - whole.mean(0), dim=-1).mean()
            assert near[layer - 1] == pytest.approx(100 * cosine.item(), abs=1e-3)
            hits = (changed @ text.T).argmax(1) == torch.tensor(labels)
            assert right[layer - 1] == pytest.approx(100 * hits.double().mean().item(), abs=1e-6)
    assert by_nearness.whole == pytest.approx(100, abs=1e-3)
    assert len(by_accuracy.table().rows) == 4
    with pytest.raises(DearError, match="by 1 images"):
        layer_losses(backbone, pictures[:1])


@pytest.mark.parametrize(
    ("up_to", "first"), [((99, 95, 91, 50), 4), ((80, 95, 95, 50), 1), ((99, 80, 95, 50), 2), ((99, 99, 99, 99), 4)]
)
def test_j_is_the_last_layer_before_which_all_can_go(up_to, first) -> None:
    losses = LayerLosses("x", 9, 100.0, up_to, up_to)
    assert losses.first_layer == first
    assert f"J = {first}" in losses.verdict()
