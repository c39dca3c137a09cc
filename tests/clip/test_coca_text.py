"""CoCa's text tower: features and learned tokens equal OpenCLIP's own blocks under OpenCLIP's own mask."""

import open_clip
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip import Backbone, LearnedTokens, wrap
from dear.clip.support import judge
from dear.core.errors import DearError, TextTooLongError
from small_models import TEXT, VISION, shaken

CONTEXT = 20
CONFIG = {
    "embed_dim": 24,
    "vision_cfg": {**VISION["CoCa"], "output_tokens": True},
    "text_cfg": {**TEXT, "embed_cls": True, "output_tokens": True},
    "multimodal_cfg": {"context_length": CONTEXT, "vocab_size": 49408, "width": 24, "heads": 4, "layers": 1},
}
FULL = " ".join(["cat"] * (CONTEXT - 2))  # with BOT and EOT it fills the context: no padding, and CLS sees itself
NEARLY = FULL.removesuffix(" cat")
TEXTS = ["a photo of a cat", "a photo of a very small polar bear", "x", FULL, NEARLY]
PROMPTS = [f"X X {name}." for name in ("cat", "polar bear", "red ape", FULL[:-12])]


@pytest.fixture(scope="module")
def coca() -> Backbone:
    torch.manual_seed(0)
    model = shaken(open_clip.CoCa(**CONFIG)).double()
    return wrap(model, open_clip.SimpleTokenizer(context_length=CONTEXT), "coca")


@pytest.mark.parametrize("texts", [TEXTS, TEXTS[:1], ["cat", "cat"], [FULL], [FULL, NEARLY]], ids=str)
def test_features_equal_open_clip(coca: Backbone, texts: list[str]) -> None:
    text, tiers = coca.text, judge(CONFIG)
    assert (tiers.image, tiers.text) == ("full", "full") == (coca.image.tier, text.tier)
    expected = coca.model.encode_text(text.tokenizer(texts), normalize=False)
    torch.testing.assert_close(text.encode(texts), expected, atol=1e-10, rtol=1e-10)
    prompts = text.prompts(texts)
    for first in range(1, text.layers + 1):
        states = text.trunk(prompts, first - 1)
        torch.testing.assert_close(text.project(text.eot_states(states, prompts, first)), expected)
        last = len(texts) - 1
        some, places = prompts.subset(torch.tensor([last, 0]))
        part = text.project(text.eot_states(states[places], some, first))
        torch.testing.assert_close(part, expected[[last, 0]])


def test_image_features_equal_open_clip(coca: Backbone) -> None:
    pixels = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    torch.testing.assert_close(coca.image.encode(pixels), coca.model.encode_image(pixels, normalize=False))


def naive(coca: Backbone, texts: list[str], raw: dict, beta: float, slots: list[int] | None) -> Tensor:
    """Each prompt alone, all places and CLS, OpenCLIP's blocks and mask; tokens in slots, or put in behind BOT."""
    module, rows = coca.text.module, []
    for number, line in enumerate(texts):
        ids, first, at = coca.text.tokenizer([line]), min(raw), slots
        x = torch.cat([module.token_embedding(ids), module.cls_emb.expand(1, 1, -1)], 1) + module.positional_embedding
        for layer, block in enumerate(module.transformer.resblocks, 1):
            if layer in raw:
                given = raw[layer][number] if raw[layer].dim() == 3 else raw[layer]
                if at is None:
                    at = list(range(1, 1 + len(given)))
                    x = torch.cat([x[:, :1], given[None], x[:, 1:]], 1)
                    ids = torch.cat([ids[:, :1], torch.full((1, len(given)), 7), ids[:, 1:]], 1)  # words, not padding
                else:
                    states = list(x[0])
                    for place, token in zip(at, given, strict=True):
                        states[place] = token if layer == first else beta * token + (1 - beta) * states[place]
                    x = torch.stack(states)[None]
            size = x.shape[1]
            causal = torch.full((size, size), -torch.inf, dtype=x.dtype).triu(1)
            x = block(x, attn_mask=causal + module._build_additive_mask(ids, size, x.dtype))
        rows.append(coca.text.project(x[:, -1]))
    return torch.cat(rows)


@pytest.mark.parametrize("per_prompt", [False, True])
def test_learned_tokens_equal_the_naive_form(coca: Backbone, per_prompt: bool) -> None:
    """Tokens in slots of words from layer 1 on, or behind BOT from layer 2 on, mixed with the layer before."""
    text = coca.text
    torch.manual_seed(1)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, text.width, dtype=torch.float64, requires_grad=True)

    own = {1: randn(2), 3: randn(4, 2) if per_prompt else randn(2)}
    prompts = text.prompts(PROMPTS, (1, 2))
    raw = {**own, 1: text.add_positions(own[1], prompts)}
    fast = text.project(text.eot_states(text.embed(prompts).detach(), prompts, 1, LearnedTokens(raw, 0.6)))
    slow = naive(coca, PROMPTS, raw, 0.6, [1, 2])
    torch.testing.assert_close(fast, slow, atol=1e-10, rtol=1e-10)
    weights = torch.randn_like(fast)
    for one, other in zip(*(torch.autograd.grad((f * weights).sum(), list(own.values()), retain_graph=True)
                            for f in (fast, slow)), strict=True):  # fmt: skip
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)

    behind = {2: randn(3), 3: randn(len(TEXTS), 3) if per_prompt else randn(3)}
    prompts = text.prompts(TEXTS)
    fast = text.project(text.eot_states(text.trunk(prompts, 1), prompts, 2, LearnedTokens(behind, 0.6)))
    torch.testing.assert_close(fast, naive(coca, TEXTS, behind, 0.6, None), atol=1e-10, rtol=1e-10)


def test_what_cannot_be_read_is_refused(coca: Backbone) -> None:
    with pytest.raises(TextTooLongError):
        coca.text.encode([FULL + " cat"])
    with pytest.raises(DearError, match="no text"):
        coca.text.encode([])
    ids = {0: "!", 1: '"'}
    assert [coca.text.tokenizer.decoder[i] for i in ids] == list(ids.values()), "0 is '!' within a word, and padding"
    with pytest.raises(DearError, match="takes for padding"):
        coca.text.encode(["cat", '!"!"'])
    assert F.normalize(coca.text.encode(["cat!"]), dim=-1).isfinite().all()
