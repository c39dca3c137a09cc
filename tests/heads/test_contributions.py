"""The parts of an image feature: they sum to it exactly, and each is what the formula says."""

import pytest
import torch
from torch.nn import functional as F

from dear.clip.image import last_third
from dear.core.errors import DearError
from dear.heads.contributions import HeadContributions, decompose

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
        outputs.append((block, textbook_heads(block.attn, block.ln_1(cls[0]))))
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


def textbook_heads(attn, x: torch.Tensor) -> list[torch.Tensor]:
    """Output of each head at CLS, from x [tokens, width]: a list of [head_dim]."""
    q, k, v = (x @ w.T + b for w, b in zip(attn.in_proj_weight.chunk(3), attn.in_proj_bias.chunk(3), strict=True))
    size = attn.embed_dim // attn.num_heads
    parts = [slice(h * size, (h + 1) * size) for h in range(attn.num_heads)]
    return [(q[0, p] @ k[:, p].T / size**0.5).softmax(-1) @ v[:, p] for p in parts]


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
