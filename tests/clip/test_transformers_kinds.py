"""SigLIP, MetaCLIP 2 and Chinese-CLIP as transformers saves them: features equal transformers' own outputs."""

import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from dear.clip import load_backbone
from dear.core.errors import DearError

transformers = pytest.importorskip("transformers", reason="transformers is needed to make its checkpoints")
tokenizers = pytest.importorskip("tokenizers")

TOWER = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXTS = ["a photo of a cat", "A Cat!", "two red dogs"]


def save_tokenizer(folder: Path, pad: int, begin: bool, vocabulary: int) -> None:
    """Words of a small vocabulary, an end token (id 1 or 2), and one before the words where the model has one."""
    words = ["a", "photo", "of", "cat", "two", "red", "dogs", "Cat", "!", "A"]
    ids = {"<s>": 0, "<pad>": 1, "</s>": 2} if begin else {"<unk0>": 0, "</s>": 1, "<unk2>": 2}
    ids |= {word: 3 + i for i, word in enumerate(words)} | {"<unk>": vocabulary - 1}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    single = "<s> $A </s>" if begin else "$A </s>"
    special = [("<s>", 0), ("</s>", 2)] if begin else [("</s>", 1)]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single=single, special_tokens=special)
    tokenizer.save(str(folder / "tokenizer.json"))


def shaken(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


@pytest.fixture
def siglip(tmp_path: Path):
    torch.manual_seed(0)
    config = transformers.SiglipConfig(
        vision_config={**TOWER, "image_size": 32, "patch_size": 8},
        text_config={**TOWER, "vocab_size": 60, "max_position_embeddings": 16, "projection_size": 48},
    )
    model = shaken(transformers.SiglipModel(config))
    model.save_pretrained(tmp_path / "siglip")
    save_tokenizer(tmp_path / "siglip", 1, False, 60)
    return model, tmp_path / "siglip"


def test_siglip_equals_transformers(siglip) -> None:
    model, folder = siglip
    backbone = load_backbone(f"transformers:{folder}")
    assert (backbone.image.tier, backbone.text.tier, backbone.image.read) == ("full", "full", "probe")
    pixels, ids = torch.randn(2, 3, 32, 32), backbone.text.tokenizer(TEXTS)
    with torch.no_grad():
        wanted = model(input_ids=ids, pixel_values=pixels)
        image, text = (F.normalize(f, dim=-1) for f in (backbone.image.encode(pixels), backbone.text.encode(TEXTS)))
    torch.testing.assert_close(image, wanted.image_embeds, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(text, wanted.text_embeds, atol=1e-5, rtol=1e-5)
    logits = backbone.temperature * image @ text.T + backbone.bias
    torch.testing.assert_close(logits, wanted.logits_per_image, atol=1e-4, rtol=1e-4)
    assert backbone.activation == "gelu_tanh"
    assert (backbone.mean, backbone.pictures["resize_mode"]) == ((0.5,) * 3, "squash")
    assert ids[0].tolist() == backbone.text.tokenizer(["A PHOTO, of a cat."])[0].tolist(), "canonical: case and marks"


def test_broken_siglips_are_refused(siglip) -> None:
    _, folder = siglip
    config = json.loads((folder / "config.json").read_text())

    def refused(sentence: str, **vision) -> None:
        changed = {**config, "vision_config": {**config["vision_config"], **vision}}
        (folder / "config.json").write_text(json.dumps(changed))
        with pytest.raises(DearError, match=sentence):
            load_backbone(f"transformers:{folder}")

    refused("do not fit its config.json", hidden_size=10**8)
    refused("do not fit its config.json", num_hidden_layers=10**8)
    refused("do not fit its config.json", num_attention_heads=5)
    refused("activation or eps", hidden_act="gelu")
    refused("is damaged", image_size="large")
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "siglip2"}))
    with pytest.raises(DearError, match=r"it is siglip2 in transformers.*nearest that works is --model \S+"):
        load_backbone(f"transformers:{folder}")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(DearError, match=r"tokenizer.json cannot be read"):
        load_backbone(f"transformers:{folder}")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(DearError, match="AutoTokenizer"):
        load_backbone(f"transformers:{folder}")


def test_metaclip_2_equals_transformers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    text = {**TOWER, "vocab_size": 60, "max_position_embeddings": 16, "eos_token_id": 2, "bos_token_id": 0}
    config = transformers.MetaClip2Config(
        vision_config={**TOWER, "image_size": 32, "patch_size": 8, "hidden_act": "quick_gelu"},
        text_config={**text, "pad_token_id": 1, "hidden_act": "quick_gelu"},
        projection_dim=24,
    )
    model = shaken(transformers.MetaClip2Model(config))
    model.save_pretrained(tmp_path)
    save_tokenizer(tmp_path, 1, True, 60)
    backbone = load_backbone(f"transformers:{tmp_path}")
    pixels, ids = torch.randn(2, 3, 32, 32), backbone.text.tokenizer(TEXTS)
    with torch.no_grad():
        wanted = model(input_ids=ids, pixel_values=pixels)
        image, text_features = (
            F.normalize(f, dim=-1) for f in (backbone.image.encode(pixels), backbone.text.encode(TEXTS))
        )
    torch.testing.assert_close(image, wanted.image_embeds, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(text_features, wanted.text_embeds, atol=1e-5, rtol=1e-5)


@pytest.fixture
def chinese(tmp_path: Path):
    """A small Chinese-CLIP in the form of the hub: a vocabulary, no tokenizer.json, weights with position_ids."""
    torch.manual_seed(0)
    config = transformers.ChineseCLIPConfig(
        vision_config={**TOWER, "image_size": 32, "patch_size": 8},
        text_config={**TOWER, "vocab_size": 60, "max_position_embeddings": 64, "type_vocab_size": 2},
        projection_dim=24,
    )
    model = shaken(transformers.ChineseCLIPModel(config))
    weights = model.state_dict() | {"text_model.embeddings.position_ids": torch.arange(64)[None]}
    torch.save(weights, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(config.to_json_string())
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "杰",
        "尼",
        "龟",
        "小",
        "火",
        "cat",
        "a",
        "##s",
        "!",
        "龙",
        "photo",
    ]
    (tmp_path / "vocab.txt").write_text("\n".join([*words, *(f"w{i}" for i in range(60 - len(words)))]))
    return model, tmp_path


def test_chinese_clip_equals_transformers(chinese) -> None:
    model, folder = chinese
    backbone = load_backbone(f"transformers:{folder}")
    assert (backbone.image.tier, backbone.text.tier, backbone.text.context) == ("full", "words", 52)
    texts = ["杰尼龟", "A Photo: 小火龙!", "cats"]
    ids = backbone.text.tokenizer(texts)
    theirs = transformers.BertTokenizer(str(folder / "vocab.txt"))(texts, padding="max_length", max_length=52)
    assert ids.tolist() == theirs["input_ids"]
    pixels = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        wanted = model(input_ids=ids, attention_mask=(ids != 0).long(), pixel_values=pixels)
        image, text = (F.normalize(f, dim=-1) for f in (backbone.image.encode(pixels), backbone.text.encode(texts)))
    torch.testing.assert_close(image, wanted.image_embeds, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(text, wanted.text_embeds, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(backbone.temperature * image @ text.T, wanted.logits_per_image, atol=1e-4, rtol=1e-4)
    assert backbone.pictures["resize_mode"] == "squash"
    with pytest.raises(DearError, match="longer than the 52 tokens"):
        backbone.text.encode(["杰" * 51])


def test_broken_chinese_clips_are_refused(chinese) -> None:
    _, folder = chinese
    config = json.loads((folder / "config.json").read_text())
    changes = {
        "do not fit its config.json": [{"hidden_size": 10**8}, {"num_attention_heads": 5}, {"type_vocab_size": 3}],
        "activations": [{"hidden_act": "relu"}],
        "is damaged": [{"type_vocab_size": "x"}],
    }
    for sentence, values in changes.items():
        for value in values:
            changed = {**config, "text_config": {**config["text_config"], **value}}
            (folder / "config.json").write_text(json.dumps(changed))
            with pytest.raises(DearError, match=sentence):
                load_backbone(f"transformers:{folder}")
