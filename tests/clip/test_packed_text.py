"""The packed text tower: without repeated places and without padding, it equals the naive form, with gradients."""

import pytest
import torch

from dear.clip import LearnedTokens
from dear.core.errors import DearError
from naive import attention, same_with_gradients

TEXTS = [
    "a photo of a cat.",
    "a photo of a very small dog, a type of pet.",
    "a photo of a cat and a bird",
    "x",
]
CLASSES = [f"a photo of a {name}, a type of thing." for name in ("cat", "polar bear", "red-haired ape", "dog")]


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


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
            causal = torch.ones(len(x), len(x), dtype=torch.bool).tril()
            x = x + attention(block.attn, block.ln_1(x), causal.expand(block.attn.num_heads, -1, -1))
            x = x + block.mlp(block.ln_2(x))
        features.append(model.ln_final(x[eot]) @ model.text_projection)
    return torch.stack(features)


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


WORDS = [f"a photo of a {name}." for name in ("cat", "polar bear", "red-haired ape", "dog")]


@pytest.mark.parametrize("texts", [WORDS, WORDS[:1]], ids=["four", "one"])
@pytest.mark.parametrize("beta", [1.0, 0.3])
@pytest.mark.parametrize("slots", [(1, 2), (2, 4)], ids=str)
def test_tokens_in_word_slots_equal_the_naive_form(tiny, texts, beta: float, slots) -> None:
    """Tokens have positions at layer 1, are replaced at layers 2 and 4, and are carried on through layer 3."""
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


def test_a_text_that_is_too_long_is_refused_not_cut(tiny) -> None:
    backbone = tiny()
    fits = " ".join(["cat"] * 75)
    assert backbone.text.encode([fits]).shape == (1, 24)
    with pytest.raises(DearError, match="longer than the 77 tokens"):
        backbone.text.encode(["dog", fits + " cat"])
    with pytest.raises(DearError, match="no text"):
        backbone.text.encode([])
