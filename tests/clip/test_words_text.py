"""Text towers of Hugging Face: features equal OpenCLIP's, learned words equal the tower on other embeddings."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from dear.clip import LearnedTokens
from dear.clip.support import judge
from dear.clip.text import ClassTexts
from dear.core.errors import DearError
from dear.methods.registry import find_method, methods_for
from small_models import of_hugging_face

transformers = pytest.importorskip("transformers", reason="text towers of Hugging Face need it")

SIZES = {"vocab_size": 500, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
CONFIGS = {
    "bert": (
        transformers.BertConfig(**SIZES, intermediate_size=64, pad_token_id=0), "cls_last_hidden_state_pooler", "mlp"
    ),
    "roberta": (transformers.RobertaConfig(**SIZES, intermediate_size=64, pad_token_id=1), "mean_pooler", "mlp"),
    "mt5": (
        transformers.MT5Config(vocab_size=500, d_model=32, num_layers=2, num_heads=4, d_kv=8, d_ff=64, pad_token_id=0),
        "mean_pooler",
        "linear",
    ),
}  # fmt: skip
PROMPTS = [f"X X {name}." for name in ("cat", "polar bear", "red ape")]


@pytest.fixture(params=CONFIGS)
def backbone(request, tmp_path: Path):
    backbone, config = of_hugging_face(*CONFIGS[request.param], tmp_path)
    assert judge(config)[:2] == ("full", "words")
    return backbone


def test_features_equal_open_clip(backbone) -> None:
    text = backbone.text
    assert text.tier == "words"
    expected = backbone.model.encode_text(text.tokenizer(PROMPTS))
    torch.testing.assert_close(text.encode(PROMPTS), expected)
    prompts = text.prompts(PROMPTS)
    classes = ClassTexts(("a", "b", "c"), prompts, 1, text.embed(prompts), expected)
    with torch.no_grad():  # the same by embeddings, and without the padding
        torch.testing.assert_close(text.features(classes), F.normalize(expected, dim=-1), atol=1e-5, rtol=1e-5)


def test_learned_words_are_other_embeddings(backbone) -> None:
    text = backbone.text
    prompts = text.prompts(PROMPTS, (1, 2))
    classes = ClassTexts(("a", "b", "c"), prompts, 1, text.embed(prompts), None)
    words = text.word_embeddings("big cat")
    assert words.shape == (2, text.width)
    with torch.no_grad():
        fast = text.features(classes, LearnedTokens({1: words}))
        named = F.normalize(text.encode([line.replace("X X", "big cat") for line in PROMPTS]), dim=-1)
    torch.testing.assert_close(fast, named, atol=1e-5, rtol=1e-5)
    raw = words.clone().requires_grad_(True)
    text.features(classes, LearnedTokens({1: raw})).sum().backward()
    assert raw.grad.abs().sum() > 0
    with pytest.raises(DearError, match="before the class name"):
        text.prompts(PROMPTS, (3,))


def test_the_coop_line_works_and_deeper_methods_are_refused(backbone) -> None:
    assert {"coop", "cocoop", "kgcoop", "prograd", "atprompt", "dear", "experts"} <= set(methods_for("full", "words"))
    pixels, labels = torch.randn(3, 3, 64, 64), torch.tensor([0, 1, 2])
    for name in ("coop", "cocoop", "kgcoop", "prograd", "atprompt"):
        kind = find_method(name)
        method = kind(backbone, kind.Config())
        method.set_classes(["cat", "polar bear", "dog"], "a photo of a {}.")
        loss = method.loss(method.layer_input(pixels), labels).total
        loss.backward()
        assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in method.parameters()), name
    with pytest.raises(DearError, match=r"tcp works inside the text tower, but that of \w+ can only be called"):
        find_method("tcp")(backbone, find_method("tcp").Config())
