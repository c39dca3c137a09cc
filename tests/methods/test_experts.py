"""Identities in the maths of expert tokens."""

import pytest
import torch
from dear_cases import role_map
from naive_experts import images, make, naive_means
from torch.nn import functional as F

from dear.core.errors import DearError
from dear.heads.head_role import HeadRole


def test_tokens_start_at_the_mean_cls_state(tiny) -> None:
    experts = make(tiny, token_std=0.0, moved=False)
    start, _ = naive_means(experts, images(5, seed=1))
    torch.testing.assert_close(experts.tokens, start.expand_as(experts.tokens), rtol=0, atol=1e-10)


def test_the_class_feature_is_frozen_clips_bit_for_bit(tiny) -> None:
    experts, pixels = make(tiny, torch.float32), images(4, torch.float32)
    tower = experts.backbone.image
    clip = F.normalize(tower.project(tower.cls_state(tower.layer_input(pixels, 3))), dim=-1)
    features = experts.encode_image(experts.layer_input(pixels))
    assert torch.equal(features[:, 0], clip)
    text = experts.encode_text(experts.classes)
    assert torch.equal(experts.logits(features, text, "decoupled"), experts.backbone.temperature * clip @ text.T)


@pytest.mark.parametrize("which", range(4))
def test_a_token_never_changes_with_what_other_tokens_do(tiny, which) -> None:
    experts, pixels = make(tiny, tokens_per_attribute=2), images(2)
    before = experts.encode_image(experts.layer_input(pixels))
    with torch.no_grad():
        own = slice(2 * which, 2 * which + 2)
        kept = experts.tokens[own].clone()
        experts.tokens += torch.randn_like(experts.tokens)
        experts.tokens[own] = kept
    after = experts.encode_image(experts.layer_input(pixels))
    moved = (after - before).abs().amax((0, 2))
    assert moved[1 + which] < 1e-12
    assert all(moved[1 + other] > 1e-6 for other in range(4) if other != which)


def test_features_of_an_image_do_not_depend_on_the_batch(tiny) -> None:
    """Neither the batch nor its order matters."""
    experts, pixels = make(tiny), images(5)
    together = experts.encode_image(experts.layer_input(pixels))
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(experts.encode_image(experts.layer_input(pixels[order])), together[order])
    torch.testing.assert_close(experts.encode_image(experts.layer_input(pixels[2:3])), together[2:3])


def test_heads_without_a_core_attribute_do_not_reach_the_tokens(tiny) -> None:
    """A change of values in other heads leaves attribute features as they are; in core-attribute heads it does not."""
    experts, pixels = make(tiny, first_layer=4, rest=False), images(3)
    attn = experts.backbone.image.blocks[3].attn
    before = experts.encode_image(experts.layer_input(pixels))
    experts_there = [h for h in range(4) if experts.roles[4, h].role == "core_attribute"]
    assert 0 < len(experts_there) < 4
    for head in range(4):
        rows = slice(2 * 48 + 12 * head, 2 * 48 + 12 * head + 12)
        with torch.no_grad():
            kept = attn.in_proj_weight[rows].clone()
            attn.in_proj_weight[rows] += 1
        moved = (experts.encode_image(experts.layer_input(pixels)) - before)[:, 1:].abs().max()
        assert moved > 1e-6 if head in experts_there else moved == 0
        with torch.no_grad():
            attn.in_proj_weight[rows] = kept


def test_attributes_without_a_head_get_no_token(tiny) -> None:
    roles = [HeadRole("core_attribute", "shape"), *[HeadRole("mixed")] * 3]
    assert make(tiny, roles=role_map(roles=roles)).components == ("cls", "shape", "rest")
    assert make(tiny, roles=role_map(roles=roles), rest=False).components == ("cls", "shape")
    with pytest.raises(DearError, match="No head from layer 3 on has a core attribute"):
        make(tiny, roles=role_map().all_mixed())


def test_cached_keys_and_values_give_the_same_loss(tiny) -> None:
    experts, labels = make(tiny), torch.tensor([0, 1])
    tower = experts.backbone.image
    cached = tower.cached_kv(tower.layer_input(images(2), experts.first_layer), experts.masks)
    losses = [experts.loss(experts.layer_input(given), labels).total for given in (cached, images(2))]
    assert torch.equal(*losses)
