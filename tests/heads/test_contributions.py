"""Contributions of heads and the other terms sum to the feature in every family, and each follows its formula."""

import pytest
import torch
from torch.nn import functional as F

import naive
from dear.clip.image import last_third
from dear.core.errors import DearError
from dear.heads.contributions import HeadContributions, decompose
from dear.heads.token_contributions import TokenContributions, decompose_tokens
from small_models import STEMS, VISION, small

BACKBONES = {
    "plain": {},
    "quick_gelu": {"quick_gelu": True},
    "layer_scale": {"ls_init_value": 0.3},  # as ViT-M-16-alt has it
    "wide_heads": {"head_width": 24, "patch_size": 16, "layers": 3},
    "no_ln_pre": {"no_ln_pre": True},
}


@pytest.fixture(params=BACKBONES)
def backbone(request, tiny):
    backbone = tiny(**BACKBONES[request.param])
    backbone.model.double()
    for name, parameter in backbone.model.named_parameters():
        if name.endswith("gamma"):
            parameter.uniform_(0.1, 0.9)  # a scale of its own for each channel
    return backbone


def some_pixels(images: int = 3) -> torch.Tensor:
    return torch.randn(images, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_the_parts_sum_to_the_normalised_feature(backbone) -> None:
    parts = decompose(backbone, some_pixels())
    expected = F.normalize(backbone.model.encode_image(some_pixels()), dim=-1)
    torch.testing.assert_close(parts.feature(), expected, atol=1e-12, rtol=0)
    layers, heads = backbone.image.layers, backbone.image.heads
    assert parts.heads.shape == (3, layers, heads, 24)
    assert parts.mlps.shape == (3, layers, 24)


def test_each_head_is_what_the_formula_says(backbone) -> None:
    """Method 1.1 written out for one image, head by head, with textbook attention."""
    visual, pixels = backbone.image.visual, some_pixels(1)
    cls, outputs = visual._embeds(pixels), []
    for block in visual.transformer.resblocks:
        outputs.append((block, [head[0, 0] for head in naive.head_outputs(block.attn, block.ln_1(cls))]))
        cls = block(cls)
    state = cls[0, 0]
    norm = visual.ln_post
    std = (state.var(correction=0) + norm.eps).sqrt()
    length = (norm(state) @ visual.proj).norm()
    heads = len(outputs[0][1])
    terms = (2 * len(outputs) + 1) * heads  # as in the published code: a layer's share, split among its heads
    contributions = decompose(backbone, pixels).heads[0]
    for layer, (block, of_heads) in enumerate(outputs):
        for h, out in enumerate(of_heads):
            columns = block.attn.out_proj.weight[:, h * len(out) : (h + 1) * len(out)]
            written = block.ls_1(columns @ out + block.attn.out_proj.bias / heads)
            folded = (written - state.mean() / terms) * norm.weight / std + norm.bias / terms
            torch.testing.assert_close(contributions[layer, h], folded @ visual.proj / length, atol=1e-12, rtol=0)


@pytest.mark.parametrize("first", [1, 2, 3])
def test_the_late_heads_alone_are_the_same(backbone, first: int) -> None:
    late = HeadContributions(backbone, first).contributions(some_pixels())
    torch.testing.assert_close(late, decompose(backbone, some_pixels()).heads[:, first - 1 :], atol=1e-12, rtol=0)


def test_the_last_third_is_the_default(tiny) -> None:
    assert [last_third(n) for n in (1, 2, 3, 4, 9, 12, 24)] == [1, 2, 3, 4, 7, 9, 17]
    assert HeadContributions(tiny()).contributions(torch.randn(2, 3, 32, 32)).shape == (2, 1, 4, 24)


@pytest.mark.parametrize("layer", [0, 5])
def test_a_layer_that_is_not_there_is_refused(tiny, layer: int) -> None:
    with pytest.raises(DearError, match="layers 1 to 4"):
        HeadContributions(tiny(), layer)


FAMILIES = [name for name in VISION if name != "plain"]


def pixels_for(backbone) -> torch.Tensor:
    return torch.randn(2, 3, *backbone.image.image_size, dtype=torch.float64, generator=torch.manual_seed(1))


@pytest.mark.parametrize("family", [*FAMILIES, "MobileCLIP-B"])
def test_the_parts_of_every_family_sum_to_its_feature(family: str) -> None:
    assert "MobileCLIP-B" in STEMS
    backbone = small(family)
    pixels = pixels_for(backbone)
    expected = F.normalize(backbone.model.encode_image(pixels), dim=-1)
    parts = decompose(backbone, pixels)
    torch.testing.assert_close(parts.feature(), expected, atol=1e-12, rtol=0)
    assert (parts.pool_mlp is not None) == (backbone.image.read == "probe" and family != "CoCa")
    if backbone.image.read == "probe":
        shared = decompose_tokens(backbone, pixels, "gate")
        assert shared.pool_mlp is None
        torch.testing.assert_close(shared.feature(), expected, atol=1e-12, rtol=0)
    late = HeadContributions(backbone, 2).contributions(pixels)
    torch.testing.assert_close(late, parts.heads[:, 1:], atol=1e-12, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_codes_are_the_contributions_themselves(family: str) -> None:
    backbone = small(family)
    reader, pixels = HeadContributions(backbone, 3), pixels_for(backbone)
    assert isinstance(reader, TokenContributions)
    codes, feature = reader.codes_and_feature(pixels)
    torch.testing.assert_close(feature, F.normalize(backbone.model.encode_image(pixels), dim=-1))
    some = reader.sum_of([(3, 0), (3, 2)], codes)
    torch.testing.assert_close(some, codes[:, 0, 0] + codes[:, 0, 2])
    torch.testing.assert_close(torch.einsum("nlhc,lhcd->nlhd", codes, reader.maps), codes)
    _, outputs = reader.coordinates_and_outputs(pixels)
    assert (outputs is None) == bool(backbone.image.why_no_sum)
    assert 1 <= reader.rank(codes[:, 0, 0].T @ codes[:, 0, 0]) <= backbone.dim


def test_a_siglip_head_by_the_formula() -> None:
    """p = const + sum_k sum_j O_j V_j [gamma sum_t (alpha_jt / sigma_t) c(x_kt)], written out for one head."""
    backbone = small("SigLIP")
    vit, pixels, head = backbone.model.visual.trunk, pixels_for(backbone)[:1], 1
    x = vit._pos_embed(vit.patch_embed(pixels))
    for block in vit.blocks[:-1]:
        x = block(x)
    block = vit.blocks[-1]
    q, k, v = (part.chunk(4, -1)[head][0] for part in block.attn.qkv(block.norm1(x)).chunk(3, -1))
    out = (q @ k.T / q.shape[-1] ** 0.5).softmax(-1) @ v  # [tokens, head_dim]
    columns = block.attn.proj.weight[:, head * 12 : (head + 1) * 12]
    written = out @ columns.T + block.attn.proj.bias / 4
    states = block(x)[0]
    sigma = (states.var(-1, correction=0) + vit.norm.eps).sqrt()
    pool, total = vit.attn_pool, torch.zeros(48, dtype=torch.float64)
    query, keys = pool.q(pool.latent)[0, 0], pool.kv(vit.norm(states))[:, :48]
    for j in range(pool.num_heads):
        part = slice(j * 12, (j + 1) * 12)
        alpha = (keys[:, part] @ query[part] / 12**0.5).softmax(0)
        centred = written - written.mean(-1, keepdim=True)
        summed = vit.norm.weight * ((alpha / sigma)[:, None] * centred).sum(0)
        total += pool.proj.weight[:, part] @ (pool.kv.weight[48:][part] @ summed)
    expected = total / backbone.model.encode_image(pixels).norm()
    torch.testing.assert_close(decompose(backbone, pixels).heads[0, -1, head], expected, atol=1e-12, rtol=0)
