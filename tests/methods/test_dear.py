"""DeAR equals its naive form; each identity in the maths holds."""

from dataclasses import replace

import open_clip
import pytest
import torch
from dear_cases import CORE, PROMPTS, ROLES, make, role_map

import naive
from dear.clip import BackboneIdentity, wrap
from dear.clip.image import last_third
from dear.core.errors import DearError
from dear.heads.head_role import HeadRole
from dear.heads.role_map import RoleMap
from dear.methods.dear import Dear, DearConfig


@pytest.mark.parametrize("role", ROLES[:4], ids=lambda r: r.role)
@pytest.mark.parametrize("isolation", ["one_way", "two_way"])
@pytest.mark.parametrize("routing", ["open", "strict"])
def test_mask_of_each_role_is_its_truth_table(tiny, role, isolation, routing) -> None:
    tokens = [name for name in CORE for _ in range(2)]
    dear = make(tiny, isolation=isolation, routing=routing, tokens_per_attribute=2)
    original, attribute = dear.head_mask(role)
    table = naive.allowed_by_role(role.role, role.concept, tokens, 1, isolation, routing)
    assert torch.equal(torch.cat([original, attribute]), table)
    assert table.any(1).all(), "every query must see something"


def test_masks_stay_small_where_queries_agree(tiny) -> None:
    original, attribute = make(tiny).masks[3]
    assert original.shape == attribute.shape == (1, 4, 1, 20)
    assert make(tiny, routing="strict").masks[3][1].shape == (1, 4, 3, 20)


@pytest.mark.parametrize("isolation", ["one_way", "two_way"])
def test_with_every_head_isolated_the_class_feature_is_frozen_clips(tiny, isolation) -> None:
    dear = make(tiny, roles=role_map().all_generalization(), isolation=isolation)
    pixels = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    features = dear.encode_image(dear.layer_input(pixels))
    torch.testing.assert_close(
        features[:, 0], dear.backbone.image.frozen_feature(dear.layer_input(pixels)), rtol=0, atol=1e-12
    )
    clip = dear.backbone.model.encode_image(pixels, normalize=True)
    torch.testing.assert_close(features[:, 0], clip, rtol=0, atol=1e-12)
    assert torch.equal(features[:, 0], torch.nn.functional.normalize(dear.backbone.image.encode(pixels), dim=-1))
    varies = (features[0, 1:] - features[1, 1:]).abs().max()
    assert varies < 1e-12 if isolation == "two_way" else varies > 1e-3  # do attribute features depend on the image?


ISOLATED = [HeadRole("generalization"), HeadRole("other_specialized", "animal")]


@pytest.mark.parametrize("per", [1, 2])
@pytest.mark.parametrize("beta", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("routing", ["open", "strict"])
@pytest.mark.parametrize("isolation", ["one_way", "two_way"])
def test_with_every_head_isolated_the_cached_form_equals_the_full_and_the_naive_one(
    tiny, isolation, routing, beta, per
) -> None:
    settings = {"isolation": isolation, "routing": routing, "beta": beta, "tokens_per_attribute": per}
    dear = make(tiny, roles=role_map(roles=ISOLATED), **settings)
    pixels, labels = torch.randn(4, 3, 32, 32, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    kept, full = dear.layer_input(pixels), dear.backbone.image.layer_input(pixels, dear.first_layer)
    assert (kept.layer, full.layer) == (5, 3)
    torch.testing.assert_close(dear.encode_image(kept), dear.encode_image(full), rtol=0, atol=1e-10)
    naive_loss, _ = naive.loss(dear.backbone.model, dear.backbone.text.tokenizer, pixels, labels, PROMPTS, dear)
    losses = [dear.loss(kept, labels).total, dear.loss(full, labels).total, naive_loss]
    gradients = [torch.autograd.grad(loss, list(dear.parameters())) for loss in losses]
    for other in (1, 2):
        torch.testing.assert_close(losses[0], losses[other], rtol=0, atol=1e-10)
        for name, got, expected in zip(dict(dear.named_parameters()), gradients[0], gradients[other], strict=True):
            assert expected.abs().max() > 0, f"{name} gets no gradient: the comparison would say nothing"
            assert (got - expected).norm() / expected.norm() < 1e-10, f"the gradient of {name} differs"


def test_with_every_head_isolated_only_tokens_go_through_the_layers(tiny, monkeypatch) -> None:
    import dear.clip.image as module

    dear, asked, plain = make(tiny, roles=role_map(roles=ISOLATED)), [], module.attend
    monkeypatch.setattr(module, "attend", lambda q, *rest: asked.append(q.shape[2]) or plain(q, *rest))
    entry = dear.layer_input(torch.randn(2, 3, 32, 32, dtype=torch.float64))
    assert not any(tensor.requires_grad for tensor in entry.cached)
    asked.clear()
    dear.loss(entry, torch.tensor([0, 1]))
    assert asked == [3, 3]


@pytest.mark.parametrize("role", [HeadRole("mixed"), HeadRole("core_attribute", "color")], ids=lambda role: role.role)
def test_a_single_head_that_attends_to_a_token_is_enough_for_the_full_form(tiny, role) -> None:
    dear = make(tiny, roles=role_map(roles=[*[HeadRole("generalization")] * 7, role]))
    pixels = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    assert dear.masks.visible_heads is None
    assert dear.layer_input(pixels).layer == 3
    features = dear.encode_image(dear.layer_input(pixels))
    assert (features[:, 0] - dear.backbone.image.frozen_feature(dear.layer_input(pixels))).abs().max() > 1e-6


@pytest.mark.parametrize("routing", ["open", "strict"])
def test_attention_maps_of_the_cached_form_equal_those_of_the_full_one(tiny, routing) -> None:
    dear = make(tiny, roles=role_map(roles=ISOLATED), routing=routing)
    pixels = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    kept = dear.attention_maps(pixels)
    dear.masks.visible_heads = None  # as if learned tokens were seen
    for name, expected in dear.attention_maps(pixels).items():
        torch.testing.assert_close(kept[name], expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("loss", ["linear", "log"])
def test_fusion_loss_pushes_the_class_weight_up(tiny, loss) -> None:
    dear = make(tiny, spread=0.0, fusion_loss=loss)
    parts = dear.loss(dear.layer_input(torch.randn(2, 3, 32, 32, dtype=torch.float64)), torch.tensor([0, 1])).parts
    (gradient,) = torch.autograd.grad(parts["fusion"], dear.fusion)
    before = dear.fusion_weights()[0]
    with torch.no_grad():
        dear.fusion -= 0.1 * gradient
    assert dear.fusion_weights()[0] > before


def test_fusion_starts_at_its_setting(tiny) -> None:
    weights = make(tiny, spread=0.0, fusion_init=0.7).fusion_weights()
    torch.testing.assert_close(weights, torch.tensor([0.7, 0.1, 0.1, 0.1], dtype=torch.float64))


def test_only_declared_parameters_learn_and_the_backbone_keeps_its_bytes(tiny) -> None:
    dear = make(tiny, dtype=torch.float32)
    before = dear.backbone.identity.weights
    assert (
        set(dict(dear.named_parameters()))
        == {"tokens", "text_tokens", "projection", "fusion"}
        == set(dear.state_dict())
    )
    optimizer = torch.optim.AdamW(dear.parameters(), lr=0.1)
    loss = dear.loss(dear.layer_input(torch.randn(2, 3, 32, 32)), torch.tensor([0, 1])).total
    loss.backward()
    optimizer.step()
    assert all(p.grad is None for p in dear.backbone.model.parameters())
    assert replace(dear.backbone).identity.weights == before  # hashed anew


def test_decoupled_inference_is_the_class_feature_alone(tiny) -> None:
    dear = make(tiny)
    features = dear.encode_image(dear.layer_input(torch.randn(2, 3, 32, 32, dtype=torch.float64)))
    text = dear.encode_text(dear.classes)
    votes = dear.votes(features, text)
    torch.testing.assert_close(dear.logits(features, text, "decoupled"), votes[:, 0])
    fused = (dear.fusion_weights()[None, :, None] * votes).sum(1)
    torch.testing.assert_close(dear.logits(features, text), fused)


def test_depths_are_derived(tiny) -> None:
    assert [last_third(n) for n in (12, 24, 9, 4, 2)] == [9, 17, 7, 4, 2]
    dear = make(tiny, first_layer=None, roles=role_map(first=4))
    assert (dear.first_layer, dear.first_text_layer) == (4, 4)
    with pytest.raises(DearError, match="beyond the image tower: choose from 1 to 4"):
        make(tiny, first_layer=5, roles=role_map(first=4))
    with pytest.raises(DearError, match="no roles for layer 2"):
        make(tiny, first_layer=2, roles=role_map(first=3))


def test_about_four_hundred_thousand_parameters_on_vit_b_16(monkeypatch) -> None:
    """Counted on the architecture itself, built without memory."""
    config = open_clip.get_model_config("ViT-B-16-quickgelu")
    with torch.device("meta"):
        model = open_clip.CLIP(**config)
    open_clip.set_model_preprocess_cfg(model, {"size": 224, "mean": (0.5,) * 3, "std": (0.25,) * 3})
    backbone = wrap(model, open_clip.SimpleTokenizer(), "ViT-B-16-quickgelu")
    backbone.__dict__["identity"] = BackboneIdentity(  # no weights to hash
        "ViT-B-16-quickgelu", None, "quick_gelu", "", None, "", None, ""
    )
    monkeypatch.setattr(Dear, "build_masks", lambda self: None)  # these are no parameters
    roles = replace(RoleMap.preset("paper"), backbone={})
    dear = Dear(backbone, DearConfig(), roles)
    assert sum(parameter.numel() for parameter in dear.parameters()) == 399_622
