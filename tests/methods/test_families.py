"""Methods on towers without a plain CLS: each takes a step, and what it computes is the naive form."""

import pytest
import torch
from torch.nn import functional as F

from dear.clip import Backbone
from dear.core.errors import DearError
from dear.methods.base import Method
from dear.methods.optional import views_of
from dear.methods.registry import find_method, methods_for
from dear.methods.shared.attention_maps import read_attention
from small_models import each_role, small

FAMILIES = ["SigLIP", "PE-Core", "CLIPA", "EVA02-B", "CoCa"]
CLASSES = ["cat", "polar bear", "dog"]
pytestmark = pytest.mark.usefixtures("few_rounds")


class Images:
    """Two labelled pictures of each class."""

    classes, template, shots = tuple(CLASSES), "a photo of a {}.", 2

    def __init__(self, backbone: Backbone) -> None:
        torch.manual_seed(3)
        self.pixels = torch.randn(6, 3, *backbone.image.image_size, dtype=torch.float64)
        self.labels = torch.tensor([0, 1, 2, 0, 1, 2])

    def train(self):
        yield self.pixels, self.labels

    val = train


def make(name: str, backbone: Backbone, tmp_path) -> Method:
    each_role(backbone).save(tmp_path / "roles.json")
    kind = find_method(name)
    settings = {"roles": str(tmp_path / "roles.json"), "first_layer": 2, "text_tokens": 2}
    torch.manual_seed(4)
    method = kind(backbone, kind.Config.pick(settings)).double()
    method.set_classes(CLASSES, "a photo of a {}.")
    return method


@pytest.mark.parametrize("family", FAMILIES)
def test_every_method_takes_a_step(family: str, tmp_path) -> None:
    backbone = small(family)
    images = Images(backbone)
    for name in methods_for("full", "full"):
        if name == "promptkd":  # it has a teacher: a run of its own
            continue
        if name == "head-gains" and backbone.image.why_no_sum:
            with pytest.raises(DearError, match="take --method prolip or gda in place of head-gains"):
                make(name, backbone, tmp_path)
            continue
        method = make(name, backbone, tmp_path)
        method.before_training(images)
        entry = method.train().layer_input(images.pixels.repeat(len(views_of(method)), 1, 1, 1))
        loss = method.loss(entry, images.labels)
        assert loss.total.isfinite(), name
        trained = [parameter for parameter in method.parameters() if parameter.requires_grad]
        if trained:
            gradients = torch.autograd.grad(loss.total, trained, allow_unused=True)
            assert any(g is not None and g.abs().sum() > 0 for g in gradients), name
        with torch.no_grad():
            seen = method.eval().attention_maps(images.pixels[:2])
        for values in seen.values():
            assert values.shape == (2, *backbone.image.grid), name
            assert 0 < values.sum() < 2.001, name


@pytest.mark.parametrize("family", FAMILIES)
def test_low_rank_terms_are_other_weights(family: str, tmp_path) -> None:
    """CLIP-LoRA's image side is OpenCLIP's own forward on weights with the terms added."""
    backbone = small(family)
    images = Images(backbone)
    method = make("clip-lora", backbone, tmp_path)
    terms = method.image_terms
    with torch.no_grad():
        terms.up.normal_(std=0.3)
        expected = method.eval().encode_image(method.layer_input(images.pixels))[:, 0]
        scale, visual = terms.scale, backbone.model.visual
        for layer, block in enumerate(
            visual.trunk.blocks if hasattr(visual, "trunk") else visual.transformer.resblocks
        ):
            added = [scale * terms.up[layer, part] @ terms.down[layer, part] for part in range(3)]
            attn = block.attn
            if hasattr(attn, "in_proj_weight"):
                attn.in_proj_weight += torch.cat(added)
            elif attn.qkv is not None:
                attn.qkv.weight += torch.cat(added)
            else:
                for linear, term in zip((attn.q_proj, attn.k_proj, attn.v_proj), added, strict=True):
                    linear.weight += term
        merged = F.normalize(backbone.model.encode_image(images.pixels), dim=-1)
    torch.testing.assert_close(expected, merged, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_frozen_parts_stay_open_clips(family: str, tmp_path) -> None:
    """The class feature of experts and of zero-shot is OpenCLIP's; ProLIP starts from it."""
    backbone = small(family)
    images = Images(backbone)
    expected = F.normalize(backbone.model.encode_image(images.pixels), dim=-1)
    for name in ("zero-shot", "experts", "prolip"):
        method = make(name, backbone, tmp_path).eval()
        with torch.no_grad():
            got = method.encode_image(method.layer_input(images.pixels))[:, 0]
        torch.testing.assert_close(got, expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_reads_the_feature_looks_somewhere(family: str, tmp_path) -> None:
    backbone = small(family)
    tower, pixels = backbone.image, Images(backbone).pixels
    entry = tower.layer_input(pixels, tower.layers)
    seen = read_attention(entry, tower.run_layer(entry))
    assert seen.shape == (6, tower.originals - tower.prefix)
    assert bool((seen.sum(1) <= 1 + 1e-9).all())
    whole = make("zero-shot", backbone, tmp_path).attention_maps(pixels)["cls"].flatten(1)
    torch.testing.assert_close(whole[whole > 0], seen[whole > 0], atol=1e-9, rtol=1e-9)
