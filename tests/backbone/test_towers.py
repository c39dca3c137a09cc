"""With nothing inserted the towers are OpenCLIP's own; every shortcut equals the plain way."""

import pytest
import torch
from torch.nn import functional as F

from dear.backbone import LearnedTokens, load_backbone
from dear.backbone.attention import QueryGroup, attend, attention_weights, finish_block, merge_heads
from dear.errors import DearError

NAMES = [
    "ViT-S-32-alt",
    "ViT-S-16-alt",
    "ViT-M-16-alt",
    "ViT-M-32",
    "ViT-S-16",
    "ViT-B-32-quickgelu",
    "ViT-B-32-256",
]
TEXTS = [
    "a photo of a cat.",
    "a photo of a very small dog, a type of pet.",
    "a photo of a cat and a bird",
    "x",
]
CLASSES = [f"a photo of a {name}, a type of thing." for name in ("cat", "polar bear", "red-haired ape", "dog")]


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


def test_trunk_and_rest_equal_the_whole(tiny) -> None:
    backbone = tiny()
    backbone.model.double()
    pixels = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    for split in range(4):
        states = backbone.image.trunk(pixels, split)
        whole = backbone.model.encode_image(pixels)
        cls = backbone.image.read_cls(backbone.image.enter(states, split + 1))
        torch.testing.assert_close(backbone.image.project(cls), whole)
        prompts = backbone.text.prompts(TEXTS)
        packed = backbone.text.trunk(prompts, split)
        plain = backbone.model.encode_text(backbone.text.tokenizer(TEXTS))
        torch.testing.assert_close(backbone.text.project(backbone.text.read_eot(packed, prompts, split + 1)), plain)


def plain_text_features(backbone, texts, tokens: LearnedTokens | None, first: int) -> torch.Tensor:
    """The slow way: all 77 places, each prompt alone, tokens inserted behind BOT, textbook attention."""
    model, features = backbone.model, []
    for text in texts:
        ids = backbone.text.tokenizer([text])[0]
        x = model.token_embedding(ids) + model.positional_embedding
        count = 0
        for layer, block in enumerate(model.transformer.resblocks, 1):
            if tokens is not None and layer == first:
                x, count = torch.cat([x[:1], tokens.raw, x[1:]]), len(tokens.raw)
            elif tokens is not None and layer > first:
                mixed = tokens.beta * tokens.raw + (1 - tokens.beta) * x[1 : 1 + count]
                x = torch.cat([x[:1], mixed, x[1 + count :]])
            causal = torch.full((len(x), len(x)), -torch.inf, dtype=x.dtype).triu(1)
            x = x + textbook_attention(block.attn, block.ln_1(x), causal.expand(block.attn.num_heads, -1, -1))
            x = x + block.mlp(block.ln_2(x))
        features.append(model.ln_final(x[ids.argmax() + count]) @ model.text_projection)
    return torch.stack(features)


def textbook_attention(attn, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """x [tokens, width], mask [heads, tokens, tokens]: a loop over heads, straight from the formula."""
    q, k, v = (x @ w.T + b for w, b in zip(attn.in_proj_weight.chunk(3), attn.in_proj_bias.chunk(3), strict=True))
    size = attn.embed_dim // attn.num_heads
    heads = []
    for h in range(attn.num_heads):
        part = slice(h * size, (h + 1) * size)
        scores = q[:, part] @ k[:, part].T / size**0.5 + mask[h]
        heads.append(scores.softmax(-1) @ v[:, part])
    return torch.cat(heads, -1) @ attn.out_proj.weight.T + attn.out_proj.bias


@pytest.mark.parametrize(
    "texts", [TEXTS, CLASSES, CLASSES[:1], ["cat", "cat"]], ids=["mixed", "template", "one", "same"]
)
@pytest.mark.parametrize("count", [0, 3])
def test_fast_text_equals_plain_forward_and_gradients(tiny, texts, count: int) -> None:
    backbone = tiny()
    backbone.model.double()
    first = 3
    raw = torch.randn(count, backbone.text.width, dtype=torch.float64, requires_grad=True)
    tokens = LearnedTokens(raw, beta=0.7) if count else None
    prompts = backbone.text.prompts(texts)
    packed = backbone.text.trunk(prompts, first - 1)
    fast = backbone.text.project(backbone.text.read_eot(packed, prompts, first, tokens))
    plain = plain_text_features(backbone, texts, tokens, first)
    torch.testing.assert_close(fast, plain, atol=1e-10, rtol=1e-10)
    if count:
        weights = torch.randn_like(fast)
        (of_fast,) = torch.autograd.grad((fast * weights).sum(), raw)
        (of_plain,) = torch.autograd.grad((plain * weights).sum(), raw)
        torch.testing.assert_close(of_fast, of_plain, atol=1e-10, rtol=1e-10)


def test_shared_prefix_is_found_and_eot_is_each_prompts_own(tiny) -> None:
    backbone = tiny()
    prompts = backbone.text.prompts(CLASSES)
    assert prompts.shared == 5  # BOT a photo of a
    assert backbone.text.prompts(["cat", "cat"]).shared == 2  # BOT cat; EOT stays each one's own
    assert len(prompts.ids) < 5 + 4 * 12  # not 77 places a prompt


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
    mask = torch.zeros(seen.shape, dtype=x.dtype).masked_fill(~seen, -torch.inf)
    if additive:
        of_first, of_rest = (
            torch.zeros(m.shape, dtype=x.dtype).masked_fill(~m, -torch.inf) for m in (of_first, of_rest)
        )
    entry = tower.enter(x, layer)
    heads = attend(entry.q, entry.k, entry.v, [QueryGroup(5, of_first), QueryGroup(2, of_rest)])
    out = finish_block(block, x, merge_heads(heads))
    for i in range(2):
        full = x[i] + textbook_attention(block.attn, block.ln_1(x[i]), mask)
        full = full + block.mlp(block.ln_2(full))
        torch.testing.assert_close(out[i], full, atol=1e-10, rtol=1e-10)


def test_attention_weights_are_those_that_attention_uses(tiny) -> None:
    tower = tiny().image
    entry = tower.enter(torch.randn(2, 7, tower.width), 1)
    mask = torch.ones(1, tower.heads, 1, 7, dtype=torch.bool)
    mask[0, 1, 0, 2:5] = False
    weights = attention_weights(entry.q, entry.k, mask)
    torch.testing.assert_close(weights @ entry.v, attend(entry.q, entry.k, entry.v, [QueryGroup(7, mask)]))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, tower.heads, 7))


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_inserted_image_tokens_equal_the_plain_way(tiny, beta: float) -> None:
    """Tokens appended at layer 3 of 4, no masks: full sequences, all queries, all layers."""
    backbone = tiny()
    backbone.model.double()
    tower = backbone.image
    raw = torch.randn(2, tower.width, dtype=torch.float64, requires_grad=True)
    pixels = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    tokens = LearnedTokens(raw, beta)
    cls, added = tower.read_with_tokens(tower.enter(tower.trunk(pixels, 2), 3), tokens, lambda layer: (None, None))
    x = tower.trunk(pixels, 2)
    carried = raw.expand(3, -1, -1)
    for layer in (3, 4):
        start = carried if layer == 3 else beta * raw + (1 - beta) * carried
        x = tower.blocks[layer - 1](torch.cat([x, start], 1))
        x, carried = x[:, :-2], x[:, -2:]
    torch.testing.assert_close(cls, x[:, 0], atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(added, carried, atol=1e-10, rtol=1e-10)
    weights = torch.randn_like(added)
    (got,) = torch.autograd.grad((added * weights).sum() + cls.sum(), raw)
    (expected,) = torch.autograd.grad((carried * weights).sum() + x[:, 0].sum(), raw)
    torch.testing.assert_close(got, expected, atol=1e-10, rtol=1e-10)


def test_too_long_a_text_is_refused_not_cut(tiny) -> None:
    backbone = tiny()
    fits = " ".join(["cat"] * 75)
    assert backbone.text.encode([fits]).shape == (1, 24)
    with pytest.raises(DearError, match="longer than the 77 tokens"):
        backbone.text.encode(["dog", fits + " cat"])
    with pytest.raises(DearError, match="no text"):
        backbone.text.encode([])
