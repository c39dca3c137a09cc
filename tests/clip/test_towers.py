"""Towers without learned tokens equal OpenCLIP's; every shortcut equals the naive form."""

import pytest
import torch
from torch.nn import functional as F

import naive
from dear.clip import LearnedTokens, load_backbone, wrap
from dear.clip.attention import QueryGroup, attend, attention_weights, finish_block, merge_heads
from dear.clip.layer_input import LayerInput
from dear.clip.modules import has_plain_blocks

TEXTS = ["a photo of a cat.", "a photo of a very small dog, a type of pet.", "a photo of a cat and a bird", "x"]


def test_features_of_a_real_name_equal_open_clip() -> None:
    """Small models of every kind: test_families, test_text_towers; the other activation: test_transformers."""
    backbone = load_backbone("ViT-S-32-alt", random_weights=True)
    torch.manual_seed(0)
    pixels = torch.randn(2, 3, *backbone.image.image_size)
    with torch.no_grad():
        expected_image = F.normalize(backbone.model.encode_image(pixels), dim=-1)
        expected_text = F.normalize(backbone.model.encode_text(backbone.text.tokenizer(TEXTS)), dim=-1)
        torch.testing.assert_close(
            F.normalize(backbone.image.encode(pixels), dim=-1), expected_image, atol=1e-5, rtol=0
        )
        torch.testing.assert_close(F.normalize(backbone.text.encode(TEXTS), dim=-1), expected_text, atol=1e-5, rtol=0)


@pytest.mark.parametrize("additive", [True, False])
def test_head_masks_equal_the_loop_over_heads(tiny, additive: bool) -> None:
    """Two groups of queries, each with one mask for all its queries, [1, heads, 1, keys]."""
    backbone = tiny()
    backbone.model.double()
    tower, layer = backbone.image, 2
    block, x = tower.blocks[layer - 1], torch.randn(2, 7, tower.width, dtype=torch.float64)
    of_first, of_rest = (torch.ones(1, tower.heads, 1, 7, dtype=torch.bool) for _ in range(2))
    of_first[0, 0, 0, 5:] = of_first[0, 2, 0, 6] = of_rest[0, 1, 0, :5] = of_rest[0, 3, 0, 6] = False
    seen = torch.cat([of_first[0].expand(-1, 5, -1), of_rest[0].expand(-1, 2, -1)], dim=1)
    if additive:
        of_first, of_rest = (
            torch.zeros(m.shape, dtype=x.dtype).masked_fill(~m, -torch.inf) for m in (of_first, of_rest)
        )
    entry = LayerInput(tower, layer, x)
    heads = attend(entry.q, *entry.kv, [QueryGroup(5, of_first), QueryGroup(2, of_rest)])
    out = finish_block(block, x, merge_heads(heads))
    for i in range(2):
        torch.testing.assert_close(out[i], naive.block(block, x[i], seen), atol=1e-10, rtol=1e-10)


def test_attention_weights_are_those_that_attention_uses(tiny) -> None:
    tower = tiny().image
    entry = LayerInput(tower, 1, torch.randn(2, 7, tower.width))
    mask = torch.ones(1, tower.heads, 1, 7, dtype=torch.bool)
    mask[0, 1, 0, 2:5] = False
    keys, values = entry.kv
    weights = attention_weights(entry.q, keys, mask)
    torch.testing.assert_close(weights @ values, attend(entry.q, keys, values, [QueryGroup(7, mask)]))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, tower.heads, 7))


def test_replaced_tokens_are_keys_and_values_only(tiny, monkeypatch) -> None:
    """No layer computes queries of tokens that the next one replaces, and the last one computes CLS alone."""
    import dear.clip.image as module

    tower, asked = tiny().image, []
    plain = module.attend
    monkeypatch.setattr(module, "attend", lambda q, *rest: asked.append(q.shape[2]) or plain(q, *rest))
    raw = {layer: torch.zeros(2, tower.width) for layer in (1, 2, 3)}
    entry = tower.layer_input(torch.zeros(1, 3, 32, 32), 1)
    tower.with_tokens(entry, LearnedTokens(raw), read_tokens=False)
    assert asked == [17, 17, 19, 1]  # layer 3's tokens are carried into layer 4 as they came out


class Attention(torch.nn.Module):
    """The interface of OpenCLIP 4's own attention, which takes the place of torch's in its blocks."""

    def __init__(self, other: torch.nn.MultiheadAttention) -> None:
        super().__init__()
        self.num_heads, self.head_dim = other.num_heads, other.embed_dim // other.num_heads
        self.in_proj_weight, self.in_proj_bias, self.out_proj = other.in_proj_weight, other.in_proj_bias, other.out_proj
        self.ln_q, self.ln_k, self.ln_inner = (torch.nn.Identity() for _ in range(3))
        self.logit_scale = self.head_scale = None
        self._other = [other]  # its forward, for the model's own pass

    def forward(self, *inputs, **options):
        return self._other[0](*inputs, **options)


@pytest.mark.parametrize("extra", [None, "ln_q", "head_scale"])
def test_blocks_of_open_clip_4_are_known(tiny, extra: str | None) -> None:
    """Blocks without optional parts give the same features; with a norm or a scale, the tower is called as a whole."""
    backbone = tiny()
    pixels = torch.randn(2, 3, 32, 32)
    images, texts = backbone.image.encode(pixels), backbone.text.encode(TEXTS)
    for blocks in (backbone.model.visual.transformer.resblocks, backbone.model.transformer.resblocks):
        for block in blocks:
            block.attn = Attention(block.attn)
            if extra:
                setattr(
                    block.attn, extra, torch.nn.LayerNorm(12) if extra == "ln_q" else torch.nn.Parameter(torch.ones(1))
                )
    if extra:
        assert not has_plain_blocks(backbone.model.visual.transformer.resblocks)
        return
    newer = wrap(backbone.model, backbone.text.tokenizer, "newer")
    assert (newer.image.tier, newer.text.tier) == ("full", "full")
    torch.testing.assert_close(newer.image.encode(pixels), images)
    torch.testing.assert_close(newer.text.encode(TEXTS), texts)
