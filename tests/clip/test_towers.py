"""Without learned tokens the towers equal OpenCLIP's; every shortcut equals the naive form."""

import pytest
import torch
from torch.nn import functional as F

from dear.clip import LearnedTokens, load_backbone, wrap
from dear.clip.attention import QueryGroup, attend, attention_weights, finish_block, merge_heads
from dear.clip.layer_input import LayerInput
from dear.clip.masks import Masks
from dear.clip.modules import has_plain_blocks
from naive import attention, same_with_gradients

NAMES = ["ViT-S-32-alt", "ViT-B-32-quickgelu"]  # small models of every kind: test_families, test_text_towers
TEXTS = ["a photo of a cat.", "a photo of a very small dog, a type of pet.", "a photo of a cat and a bird", "x"]


@pytest.mark.parametrize("name", NAMES)
def test_features_equal_open_clip(name: str) -> None:
    backbone = load_backbone(name, random_weights=True)
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
        full = x[i] + attention(block.attn, block.ln_1(x[i]), seen)
        full = full + block.mlp(block.ln_2(full))
        torch.testing.assert_close(out[i], full, atol=1e-10, rtol=1e-10)


def test_attention_weights_are_those_that_attention_uses(tiny) -> None:
    tower = tiny().image
    entry = LayerInput(tower, 1, torch.randn(2, 7, tower.width))
    mask = torch.ones(1, tower.heads, 1, 7, dtype=torch.bool)
    mask[0, 1, 0, 2:5] = False
    keys, values = entry.kv
    weights = attention_weights(entry.q, keys, mask)
    torch.testing.assert_close(weights @ values, attend(entry.q, keys, values, [QueryGroup(7, mask)]))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, tower.heads, 7))


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


LIVES = {
    "mixed": ((3, 4), 0.4), "carried": ((3,), 1.0), "beta 0": ((3, 4), 0.0), "replaced": ((1, 2, 3, 4), 1.0),
    "replaced, then carried": ((1, 2), 1.0), "mixed, then carried": ((1, 2, 3), 0.99), "a gap": ((1, 4), 1.0),
}  # fmt: skip


@pytest.mark.parametrize("read_tokens", [True, False])
@pytest.mark.parametrize("life", LIVES)
def test_image_tokens_equal_the_naive_form(tiny, life: str, read_tokens: bool) -> None:
    """Full sequences, all queries, all layers; masks by kind of query: patches do not attend to the first token."""
    backbone = tiny()
    backbone.model.double()
    tower, (layers, beta) = backbone.image, LIVES[life]
    raw = {layer: randn(2, tower.width) for layer in layers}
    first, pixels = layers[0], torch.randn(3, 3, 32, 32, dtype=torch.float64)
    start = tower.trunk(pixels, first - 1)
    originals = start.shape[1]
    allowed = torch.ones(originals + 2, originals + 2, dtype=torch.bool)
    allowed[1:originals, originals] = False
    masks = (allowed[:originals][None, None], allowed[originals:][None, None])
    forbidden = torch.zeros(allowed.shape, dtype=torch.float64).masked_fill(~allowed, -torch.inf)
    cls, added = tower.with_tokens(
        LayerInput(tower, first, start),
        LearnedTokens(raw, beta),
        Masks(dict.fromkeys(range(first, 5), masks), tower.heads, originals),
        read_tokens,
    )
    x, carried = start, raw[first].expand(3, -1, -1)
    for layer in range(first, 5):
        if layer > first and layer in raw:
            carried = beta * raw[layer] + (1 - beta) * carried
        x = tower.blocks[layer - 1](torch.cat([x, carried], 1), attn_mask=forbidden)
        x, carried = x[:, :-2], x[:, -2:]
    assert (added is None) == (not read_tokens)
    fast, plain = [cls], [x[:, 0]]
    if added is not None:
        fast, plain = [*fast, added.flatten(1)], [*plain, carried.flatten(1)]
    same_with_gradients(torch.cat(fast, 1), torch.cat(plain, 1), raw)


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
