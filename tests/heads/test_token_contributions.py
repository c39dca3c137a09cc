"""Contributions of heads sum to the feature in every family, and each is what its definition says."""

import pytest
import torch
from torch.nn import functional as F

from dear.heads.contributions import HeadContributions, decompose
from dear.heads.token_contributions import TokenContributions, decompose_tokens
from small_models import STEMS, VISION, small

FAMILIES = [name for name in VISION if name != "plain"]


def pixels_for(backbone) -> torch.Tensor:
    return torch.randn(2, 3, *backbone.image.image_size, dtype=torch.float64, generator=torch.manual_seed(1))


@pytest.mark.parametrize("family", [*FAMILIES, "MobileCLIP-B"])
def test_the_parts_sum_to_the_normalised_feature(family: str) -> None:
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
