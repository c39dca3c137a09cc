"""Without learned tokens the towers equal OpenCLIP's; every shortcut equals the naive form."""

import pytest
import torch
from torch.nn import functional as F

from dear.clip import LearnedTokens, load_backbone, wrap
from dear.clip.attention import QueryGroup, attend, attention_weights, finish_block, merge_heads
from dear.clip.layer_input import LayerInput
from dear.clip.masks import Masks
from dear.clip.modules import has_plain_blocks
from dear.core.errors import DearError

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
        cls = backbone.image.cls_state(LayerInput(backbone.image, split + 1, states))
        torch.testing.assert_close(backbone.image.project(cls), whole)
        prompts = backbone.text.prompts(TEXTS)
        packed = backbone.text.trunk(prompts, split)
        plain = backbone.model.encode_text(backbone.text.tokenizer(TEXTS))
        torch.testing.assert_close(backbone.text.project(backbone.text.eot_states(packed, prompts, split + 1)), plain)


def plain_text_features(backbone, texts, raw: dict, beta: float, first: int, slots=None) -> torch.Tensor:
    """The slow way: all 77 places, each prompt alone, textbook attention.

    raw: layer -> tokens [tokens, width] or [prompts, tokens, width], inserted behind BOT at `first`, or in `slots`.
    """
    model, features = backbone.model, []
    for number, text in enumerate(texts):
        ids = backbone.text.tokenizer([text])[0]
        x, eot = model.token_embedding(ids) + model.positional_embedding, int(ids.argmax())
        places = slots
        for layer, block in enumerate(model.transformer.resblocks, 1):
            if layer in raw:
                given = raw[layer][number] if raw[layer].dim() == 3 else raw[layer]
                if layer == first and slots is None:
                    places, eot = list(range(1, 1 + len(given))), eot + len(given)
                    x = torch.cat([x[:1], given, x[1:]])
                else:
                    rows = list(x)
                    for place, token in zip(places, given, strict=True):
                        rows[place] = token if layer == first else beta * token + (1 - beta) * rows[place]
                    x = torch.stack(rows)
            causal = torch.full((len(x), len(x)), -torch.inf, dtype=x.dtype).triu(1)
            x = x + textbook_attention(block.attn, block.ln_1(x), causal.expand(block.attn.num_heads, -1, -1))
            x = x + block.mlp(block.ln_2(x))
        features.append(model.ln_final(x[eot]) @ model.text_projection)
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
    tokens = LearnedTokens.in_all(raw, (3, 4), beta=0.7) if count else None
    prompts = backbone.text.prompts(texts)
    packed = backbone.text.trunk(prompts, first - 1)
    fast = backbone.text.project(backbone.text.eot_states(packed, prompts, first, tokens))
    plain = plain_text_features(backbone, texts, tokens.raw if tokens else {}, 0.7, first)
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
    entry = LayerInput(tower, layer, x)
    heads = attend(entry.q, *entry.kv, [QueryGroup(5, of_first), QueryGroup(2, of_rest)])
    out = finish_block(block, x, merge_heads(heads))
    for i in range(2):
        full = x[i] + textbook_attention(block.attn, block.ln_1(x[i]), mask)
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


def same_with_gradients(fast: torch.Tensor, plain: torch.Tensor, raw: dict) -> None:
    torch.testing.assert_close(fast, plain, atol=1e-10, rtol=1e-10)
    weights = torch.randn_like(fast)
    got, expected = (
        torch.autograd.grad((values * weights).sum(), list(raw.values()), allow_unused=True) for values in (fast, plain)
    )
    for one, other in zip(got, expected, strict=True):
        one, other = (torch.zeros(()) if g is None else g for g in (one, other))  # of beta 0
        torch.testing.assert_close(one, other.expand_as(one) if one.dim() else one, atol=1e-10, rtol=1e-10)


WORDS = [f"a photo of a {name}." for name in ("cat", "polar bear", "red-haired ape", "dog")]


@pytest.mark.parametrize("texts", [WORDS, WORDS[:1]], ids=["four", "one"])
@pytest.mark.parametrize("beta", [1.0, 0.3])
@pytest.mark.parametrize("slots", [(1, 2), (2, 4)], ids=str)
def test_tokens_in_word_slots_equal_the_naive_form(tiny, texts, beta: float, slots) -> None:
    """With positions at layer 1; replaced at layer 2, carried on through layer 3, replaced again at layer 4."""
    backbone = tiny()
    text = backbone.text
    backbone.model.double()
    own = {layer: randn(2, text.width) for layer in (1, 2, 4)}
    prompts = text.prompts(texts, slots)
    raw = {**own, 1: text.add_positions(own[1], prompts)}
    fast = text.project(text.eot_states(text.embed(prompts).detach(), prompts, 1, LearnedTokens(raw, beta)))
    same_with_gradients(fast, plain_text_features(backbone, texts, raw, beta, 1, list(slots)), own)


@pytest.mark.parametrize("slots", [None, (1, 2)], ids=["behind BOT", "slots"])
def test_tokens_per_class_equal_the_naive_form(tiny, slots) -> None:
    """Shared tokens up to layer 2, then different ones per class, mixed with them, then shared raw ones again."""
    backbone = tiny()
    text = backbone.text
    backbone.model.double()
    raw = {1: randn(2, text.width), 3: randn(4, 2, text.width), 4: randn(2, text.width)}
    prompts = text.prompts(WORDS, slots or ())
    fast = text.project(text.eot_states(text.embed(prompts).detach(), prompts, 1, LearnedTokens(raw, 0.6)))
    same_with_gradients(fast, plain_text_features(backbone, WORDS, raw, 0.6, 1, slots and list(slots)), raw)


def test_equal_contexts_per_class_equal_a_shared_context(tiny) -> None:
    text = tiny().text
    prompts, shared = text.prompts(WORDS, (1, 2, 3, 4)), text.word_embeddings("a photo of a")
    states = text.embed(prompts)
    with torch.no_grad():
        one, many = (
            text.eot_states(states, prompts, 1, LearnedTokens({1: text.add_positions(raw, prompts)}))
            for raw in (shared, shared.expand(4, -1, -1))
        )
        torch.testing.assert_close(one, many, atol=1e-5, rtol=1e-5)
        plain = text.eot_states(text.embed(text.prompts(WORDS)), text.prompts(WORDS), 1)
    torch.testing.assert_close(one, plain, atol=1e-5, rtol=1e-5)  # the words themselves in their own slots


def test_checkpointing_for_many_prompts_changes_no_result(tiny, monkeypatch) -> None:
    """Above some number of tokens, layers are recomputed for gradients instead of stored."""
    text = tiny().text
    raw = {1: torch.randn(2, text.width, requires_grad=True), 3: torch.randn(4, 2, text.width, requires_grad=True)}
    prompts = text.prompts(WORDS, (1, 2))

    def run(many: int) -> tuple:
        monkeypatch.setattr("dear.clip.text._MANY", many)
        kept: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
            eot = text.eot_states(text.embed(prompts).detach(), prompts, 1, LearnedTokens(raw))
        return eot, torch.autograd.grad(eot.square().sum(), list(raw.values())), sum(kept)

    (plain, gradients, much), (again, others, little) = run(10_000), run(0)
    torch.testing.assert_close(again, plain, rtol=0, atol=0)
    for one, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    assert little < much / 3


def test_slots_after_a_class_name_are_refused(tiny) -> None:
    with pytest.raises(DearError, match="before the class name"):
        tiny().text.prompts(WORDS, (5,))


def test_a_subset_of_prompts_is_the_rows_of_all(tiny) -> None:
    text = tiny().text
    prompts = text.prompts(TEXTS + CLASSES)
    states = text.trunk(prompts, 2)
    chosen = torch.tensor([5, 1, 3])
    some, places = prompts.subset(chosen)
    with torch.no_grad():
        whole, part = text.eot_states(states, prompts, 3), text.eot_states(states[places], some, 3)
    torch.testing.assert_close(part, whole[chosen], atol=1e-5, rtol=1e-5)


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


def test_a_text_that_is_too_long_is_refused_not_cut(tiny) -> None:
    backbone = tiny()
    fits = " ".join(["cat"] * 75)
    assert backbone.text.encode([fits]).shape == (1, 24)
    with pytest.raises(DearError, match="longer than the 77 tokens"):
        backbone.text.encode(["dog", fits + " cat"])
    with pytest.raises(DearError, match="no text"):
        backbone.text.encode([])


class Attention(torch.nn.Module):
    """The interface of OpenCLIP 4's own attention, which takes the place of torch's in its blocks."""

    def __init__(self, other: torch.nn.MultiheadAttention) -> None:
        super().__init__()
        self.num_heads, self.head_dim = other.num_heads, other.embed_dim // other.num_heads
        self.in_proj_weight, self.in_proj_bias, self.out_proj = other.in_proj_weight, other.in_proj_bias, other.out_proj
        self.ln_q, self.ln_k, self.ln_inner = (torch.nn.Identity() for _ in range(3))
        self.logit_scale = self.head_scale = None


@pytest.mark.parametrize("extra", [None, "ln_q", "head_scale"])
def test_blocks_of_open_clip_4_are_known(tiny, extra: str | None) -> None:
    """With everything optional left out, the same features; with a norm or a scale, the tower is called as a whole."""
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
