"""Text towers of each kind: features and learned tokens equal OpenCLIP's own blocks on full sequences."""

from functools import cache

import open_clip
import pytest
import torch
from torch import Tensor

from dear.clip import Backbone, LearnedTokens, wrap
from dear.clip.support import judge
from dear.core.errors import DearError, TextTooLongError
from naive import same_with_gradients
from small_models import TEXT, VISION, WHOLE, config_of, shaken, small

CONTEXT = 20
COCA = {
    "embed_dim": 24,
    "vision_cfg": {**VISION["CoCa"], "output_tokens": True},
    "text_cfg": {**TEXT, "embed_cls": True, "output_tokens": True},
    "multimodal_cfg": {"context_length": CONTEXT, "vocab_size": 49408, "width": 24, "heads": 4, "layers": 1},
}
KINDS = ["CLIP", "CoCa", *WHOLE]  # causal, causal and read by CLS, and those that see padding
FULL = " ".join(["cat"] * (CONTEXT - 2))  # with BOT and EOT it fills the context: CoCa's CLS sees itself
NEARLY = FULL.removesuffix(" cat")
TEXTS = ["a photo of a cat", "a photo of a very small polar bear", "x", FULL, NEARLY]
PROMPTS = [f"a photo of a {name}." for name in ("cat", "polar bear", "red-haired ape", FULL[: 4 * 13 - 1])]


@cache
def build(kind: str) -> Backbone:
    if kind in WHOLE:
        settings, tokenizer = WHOLE[kind]
        return small("plain", tokenizer=tokenizer, **settings)
    if kind == "CLIP":
        return small("plain")
    torch.manual_seed(0)
    model = shaken(open_clip.CoCa(**COCA)).double()
    return wrap(model, open_clip.SimpleTokenizer(context_length=CONTEXT), kind)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("texts", [TEXTS, PROMPTS, TEXTS[:1], ["cat", "cat"], [FULL], [FULL, NEARLY]], ids=len)
@pytest.mark.parametrize("kind", KINDS)
def test_features_equal_open_clip(kind: str, texts: list[str]) -> None:
    backbone = build(kind)
    text, ids = backbone.text, backbone.text.tokenizer(texts)
    assert text.tier == "full" == judge(COCA if kind == "CoCa" else config_of("plain", **WHOLE.get(kind, [{}])[0])).text
    expected = backbone.model.encode_text(ids, normalize=False)
    torch.testing.assert_close(text.encode(texts), expected, atol=1e-10, rtol=1e-10)
    prompts = text.prompts(texts)
    chosen = torch.tensor([len(texts) - 1, 0])
    for first in range(1, text.layers + 1):  # cut anywhere, and of some prompts only
        states = text.trunk(prompts, first - 1)
        torch.testing.assert_close(text.project(text.eot_states(states, prompts, first)), expected)
        some, places = prompts.subset(chosen)
        torch.testing.assert_close(text.project(text.eot_states(states[places], some, first)), expected[chosen])
    if kind in WHOLE and len(texts[0]) < len(FULL):
        changed = ids.clone()
        changed[0, -2] = 77  # in the padding: it is seen
        assert not torch.allclose(backbone.model.encode_text(changed)[0], expected[0], atol=1e-6)


def naive(backbone: Backbone, texts: list[str], raw: dict, beta: float, slots: list[int] | None) -> Tensor:
    """Each prompt alone, all places, OpenCLIP's own blocks and masks; tokens in slots of words, or put in.

    They are put in behind BOT where the tower is causal, else behind the sequence.
    """
    module, rows, first = backbone.text.module, [], min(raw)
    causal, coca = "causal" in backbone.text.layout, backbone.name == "CoCa"
    for number, line in enumerate(texts):
        ids, at, read = backbone.text.tokenizer([line]), slots, int(backbone.text.tokenize([line])[1])
        x = module.token_embedding(ids)
        x = (torch.cat([x, module.cls_emb.expand(1, 1, -1)], 1) if coca else x) + module.positional_embedding
        for layer, block in enumerate(module.transformer.resblocks, 1):
            if layer in raw:
                given = raw[layer][number] if raw[layer].dim() == 3 else raw[layer]
                if at is None:
                    start, count = 1 if causal else x.shape[1], len(given)
                    at, read = list(range(start, start + count)), read + count * causal
                    x = torch.cat([x[:, :start], given[None], x[:, start:]], 1)
                    ids = torch.cat([ids[:, :1], torch.full((1, count), 7), ids[:, 1:]], 1)  # words, not padding
                else:
                    states = list(x[0])
                    for place, token in zip(at, given, strict=True):
                        states[place] = token if layer == first else beta * token + (1 - beta) * states[place]
                    x = torch.stack(states)[None]
            size, mask = x.shape[1], None
            if causal:
                mask = torch.full((size, size), -torch.inf, dtype=x.dtype).triu(1)
                mask = mask + module._build_additive_mask(ids, size, x.dtype) if coca else mask
            x = block(x, attn_mask=mask)
        rows.append(backbone.text.project(x[0, -1 if coca else read][None]))
    return torch.cat(rows)


LIVES = {  # slots; layer -> whether each prompt has its own tokens; beta
    "in slots": ((1, 2), {1: False, 3: False}, 0.6),
    "in slots, then own": ((1, 2), {1: False, 3: True}, 0.6),
    "in slots, own, shared": ((1, 2), {1: False, 2: True, 3: False}, 0.6),
    "in slots apart, replaced": ((2, 4), {1: False, 2: False, 3: False}, 1.0),
    "put in": (None, {2: False, 3: False}, 0.6),
    "put in, then own": (None, {2: False, 3: True}, 0.6),
    "put in, carried": (None, {2: False}, 1.0),
    "put in at once, own, shared": (None, {1: False, 2: True, 3: False}, 0.3),
}


@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize("kind", KINDS)
def test_learned_tokens_equal_the_naive_form(kind: str, life: str) -> None:
    """Tokens have positions at layer 1 of slots, and are mixed with those of the layer before by beta."""
    text, (slots, layers, beta) = build(kind).text, LIVES[life]
    torch.manual_seed(1)
    for texts in (TEXTS, TEXTS[:1]) if slots is None else (PROMPTS, PROMPTS[:1]):
        own = {at: randn(len(texts), 2, text.width) if each else randn(2, text.width) for at, each in layers.items()}
        prompts, first, raw = text.prompts(texts, slots or ()), min(layers), own
        if slots is not None:
            raw = {**own, 1: text.add_positions(own[1], prompts)}
        states = text.embed(prompts).detach() if first == 1 else text.trunk(prompts, first - 1)
        fast = text.project(text.eot_states(states, prompts, first, LearnedTokens(raw, beta)))
        places = None if slots is None else [slot - 1 + text.first_word for slot in slots]
        same_with_gradients(fast, naive(build(kind), texts, raw, beta, places), own)


@pytest.mark.parametrize("kind", KINDS)
def test_the_templates_own_words_in_its_slots_change_nothing(kind: str) -> None:
    """Also if each class has them for itself."""
    text = build(kind).text
    prompts, words = text.prompts(PROMPTS, (1, 2, 3, 4)), text.word_embeddings("a photo of a")
    with torch.no_grad():
        plain = text.eot_states(text.embed(text.prompts(PROMPTS)), text.prompts(PROMPTS), 1)
        for raw in (words, words.expand(len(PROMPTS), -1, -1)):
            tokens = LearnedTokens({1: text.add_positions(raw, prompts)})
            torch.testing.assert_close(text.eot_states(text.embed(prompts), prompts, 1, tokens), plain)


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_read_is_refused_not_cut(kind: str) -> None:
    text = build(kind).text
    assert text.first_word == (0 if "SigLIP" in kind else 1)
    assert text.encode([FULL]).isfinite().all()
    with pytest.raises(TextTooLongError, match=f"longer than the {CONTEXT} tokens"):
        text.encode(["dog", FULL + " cat cat"])
    with pytest.raises(DearError, match="no text"):
        text.encode([])
    with pytest.raises(DearError, match="before the class name"):
        text.prompts(PROMPTS, (5,))


@pytest.mark.parametrize("kind", WHOLE)
def test_other_words_get_the_positions_of_their_slots(kind: str) -> None:
    text = build(kind).text
    put = text.put_words(text.embed(text.prompts(TEXTS[:2])), torch.tensor([2]), torch.zeros(1, text.width).double())
    place = text.module.positional_embedding[text.first_word + 1]
    torch.testing.assert_close(put[:, text.first_word + 1], place.expand(2, -1))


@pytest.mark.parametrize("kind", ["CLIP", "SigLIP"])
def test_many_prompts_are_computed_again_not_stored(kind: str, monkeypatch) -> None:
    """Above some number of tokens; no result changes."""
    text = build(kind).text
    raw = {1: randn(2, text.width), 3: randn(len(PROMPTS), 2, text.width)}
    prompts = text.prompts(PROMPTS, (1, 2))

    def run(many: int) -> tuple:
        monkeypatch.setattr("dear.clip.text._MANY", many)
        kept: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
            eot = text.eot_states(text.embed(prompts).detach(), prompts, 1, LearnedTokens(raw))
        return eot, torch.autograd.grad(eot.square().sum(), list(raw.values())), sum(kept)

    (plain, gradients, much), (again, others, little) = run(10_000), run(0)
    torch.testing.assert_close(again, plain, rtol=0, atol=0)
    for one, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(one, other)
    assert little < much / 3


def test_shared_prefix_is_found_and_eot_is_each_prompts_own() -> None:
    text = build("CLIP").text
    prompts = text.prompts(PROMPTS[:3])
    assert prompts.shared == 5  # BOT a photo of a
    assert text.prompts(["cat", "cat"]).shared == 2  # BOT cat; EOT stays each one's own
    assert len(prompts.ids) < 5 + 3 * 8  # not 20 places a prompt


def test_coca_refuses_a_word_that_it_takes_for_padding_and_encodes_images() -> None:
    coca = build("CoCa")
    assert [coca.text.tokenizer.decoder[i] for i in (0, 1)] == ["!", '"'], "0 is '!' within a word, and padding"
    with pytest.raises(DearError, match="takes for padding"):
        coca.text.encode(["cat", '!"!"'])
    assert coca.text.encode(["cat!"]).isfinite().all()
    pixels = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    torch.testing.assert_close(coca.image.encode(pixels), coca.model.encode_image(pixels, normalize=False))
