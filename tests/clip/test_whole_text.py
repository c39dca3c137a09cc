"""Text towers that see padding: features and learned tokens equal OpenCLIP's own blocks on full sequences."""

import pytest
import torch

from dear.clip import LearnedTokens
from dear.clip.support import judge
from dear.core.errors import DearError, TextTooLongError
from small_models import WHOLE, WordTokenizer, config_of, small

TEXTS = ["a photo of a cat", "a photo of a very small polar bear", "x"]
PROMPTS = [f"X X {name}." for name in ("cat", "polar bear", "red ape")]


def build(kind: str):
    settings, tokenizer = WHOLE[kind]
    return small("plain", tokenizer=tokenizer, **settings)


@pytest.mark.parametrize("kind", WHOLE)
def test_features_equal_open_clip(kind: str) -> None:
    backbone = build(kind)
    text = backbone.text
    assert text.tier == "full" == judge(config_of("plain", **WHOLE[kind][0])).text
    ids = text.tokenizer(TEXTS)
    expected = backbone.model.encode_text(ids)
    torch.testing.assert_close(text.encode(TEXTS), expected, atol=1e-10, rtol=1e-10)
    prompts = text.prompts(TEXTS)
    for first in range(1, text.layers + 1):
        states = text.trunk(prompts, first - 1)
        torch.testing.assert_close(text.project(text.eot_states(states, prompts, first)), expected)
        some, places = prompts.subset(torch.tensor([2, 0]))
        part = text.project(text.eot_states(states[places], some, first))
        torch.testing.assert_close(part, expected[[2, 0]])
    changed = ids.clone()
    changed[0, -2] = 77  # in the padding: it is seen
    assert not torch.allclose(backbone.model.encode_text(changed)[0], expected[0], atol=1e-6)


def naive(backbone, texts, raw: dict, beta: float, slots: list[int] | None) -> torch.Tensor:
    """Each prompt alone, OpenCLIP's own blocks, all places; tokens in slots of words or behind the sequence."""
    module, rows = backbone.text.module, []
    for number, line in enumerate(texts):
        ids = backbone.text.tokenizer([line])
        x, first = (module.token_embedding(ids) + module.positional_embedding), min(raw)
        read = backbone.text.tokenize([line])[1]
        at = slots
        for layer, block in enumerate(module.transformer.resblocks, 1):
            if layer in raw:
                given = raw[layer][number] if raw[layer].dim() == 3 else raw[layer]
                if at is None:
                    at = list(range(x.shape[1], x.shape[1] + len(given)))
                    x = torch.cat([x, given[None]], 1)
                else:
                    states = list(x[0])
                    for place, token in zip(at, given, strict=True):
                        states[place] = token if layer == first else beta * token + (1 - beta) * states[place]
                    x = torch.stack(states)[None]
            x = block(x)
        rows.append(backbone.text.project(x[0, read]))
    return torch.cat(rows)


@pytest.mark.parametrize("per_prompt", [False, True])
@pytest.mark.parametrize("kind", WHOLE)
def test_learned_tokens_equal_the_naive_form(kind: str, per_prompt: bool) -> None:
    """Tokens in slots of words from layer 1 on, or behind the sequence from layer 2 on, mixed with the layer before."""
    backbone = build(kind)
    text = backbone.text
    torch.manual_seed(1)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, text.width, dtype=torch.float64, requires_grad=True)

    raw = {1: randn(2), 3: randn(3, 2) if per_prompt else randn(2)}
    prompts = text.prompts(PROMPTS, (1, 2))
    placed = {**raw, 1: text.add_positions(raw[1], prompts)}
    fast = text.project(text.eot_states(text.embed(prompts), prompts, 1, LearnedTokens(placed, 0.6)))
    slots = [text.first_word, text.first_word + 1]
    slow = naive(backbone, PROMPTS, placed, 0.6, slots)
    torch.testing.assert_close(fast, slow, atol=1e-10, rtol=1e-10)
    weights = torch.randn_like(fast)
    for one, other in zip(*(torch.autograd.grad((f * weights).sum(), list(raw.values()), retain_graph=True)
                            for f in (fast, slow)), strict=True):  # fmt: skip
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)

    behind = {2: randn(3), 3: randn(3, 3) if per_prompt else randn(3)}
    prompts = text.prompts(TEXTS)
    fast = text.project(text.eot_states(text.trunk(prompts, 1), prompts, 2, LearnedTokens(behind, 0.6)))
    torch.testing.assert_close(fast, naive(backbone, TEXTS, behind, 0.6, None), atol=1e-10, rtol=1e-10)


def test_words_and_slots_of_each_tokenizer() -> None:
    for kind in WHOLE:
        text = build(kind).text
        assert text.first_word == (0 if "SigLIP" in kind else 1)
        words = text.word_embeddings("a photo")
        ids = text.tokenizer(["a photo"])[0, text.first_word : text.first_word + 2]
        torch.testing.assert_close(words, text.module.token_embedding(ids))
        with pytest.raises(TextTooLongError):
            text.encode(["word " * 20])
        with pytest.raises(DearError, match="before the class name"):
            text.prompts(PROMPTS, (3,))
        states = text.embed(text.prompts(TEXTS[:2]))
        put = text.put_words(states, torch.tensor([2]), torch.zeros(1, text.width, dtype=torch.float64))
        place = text.module.positional_embedding[text.first_word + 1]
        torch.testing.assert_close(put[:, text.first_word + 1], place.expand(2, -1))


def test_many_prompts_are_computed_again_not_stored(monkeypatch) -> None:
    backbone = build("SigLIP")
    text = backbone.text
    raw = {2: torch.randn(2, text.width, dtype=torch.float64, requires_grad=True)}
    prompts = text.prompts(TEXTS)
    states, results = text.trunk(prompts, 1), []
    for many in (10_000, 0):
        monkeypatch.setattr("dear.clip.text._MANY", many)
        eot = text.eot_states(states, prompts, 2, LearnedTokens(raw))
        results.append((eot, *torch.autograd.grad(eot.square().sum(), [raw[2]])))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
    assert isinstance(text.tokenizer, WordTokenizer)
