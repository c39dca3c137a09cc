"""Models as transformers saves them (CLIP, SigLIP, MetaCLIP 2, Chinese-CLIP): features equal transformers' own."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import open_clip
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from dear.clip import Backbone, load_backbone
from dear.core.errors import DearError
from small_models import shaken

transformers = pytest.importorskip("transformers", reason="transformers is needed to make its checkpoints")
tokenizers = pytest.importorskip("tokenizers")

TOWER = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL = {"vocab_size": 60, "max_position_embeddings": 16}
KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # names in transformers, settings of both towers
    "CLIP": ("CLIP", {}, {"hidden_size": 32, "intermediate_size": 64}),
    "SigLIP": ("Siglip", {}, {**SMALL, "projection_size": 48}),
    "MetaCLIP 2": (
        "MetaClip2", {"hidden_act": "quick_gelu"},
        {**SMALL, "eos_token_id": 2, "bos_token_id": 0, "pad_token_id": 1, "hidden_act": "quick_gelu"},
    ),
    "Chinese-CLIP": ("ChineseCLIP", {}, {**SMALL, "max_position_embeddings": 64, "type_vocab_size": 2}),
}  # fmt: skip
TEXTS = ["a photo of a cat", "A Cat!", "two red dogs", "a long sentence about a zebra at the beach, at night"]


def save_tokenizer(folder: Path, begin: bool) -> None:
    """Words of a small vocabulary, an end token (id 1 or 2), and one before the words where the model has one."""
    words = ["a", "photo", "of", "cat", "two", "red", "dogs", "Cat", "!", "A"]
    ids = {"<s>": 0, "<pad>": 1, "</s>": 2} if begin else {"<unk0>": 0, "</s>": 1, "<unk2>": 2}
    ids |= {word: 3 + i for i, word in enumerate(words)} | {"<unk>": 59}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    single = "<s> $A </s>" if begin else "$A </s>"
    special = [("<s>", 0), ("</s>", 2)] if begin else [("</s>", 1)]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single=single, special_tokens=special)
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture
def saved(tmp_path: Path):
    """(kind, vision, text, dim) -> a random model, saved by transformers itself, and its folder."""

    def make(kind: str = "CLIP", vision: dict | None = None, text: dict | None = None, dim: int = 24):
        torch.manual_seed(7)
        name, of_vision, of_text = KINDS[kind]
        vision = {**TOWER, "image_size": 32, "patch_size": 8, **of_vision, **(vision or {})}
        of_dim = {} if kind == "SigLIP" else {"projection_dim": dim}
        config = getattr(transformers, name + "Config")(
            vision_config=vision, text_config={**TOWER, **of_text, **(text or {})}, **of_dim
        )
        model, folder = shaken(getattr(transformers, name + "Model")(config)), tmp_path / "clip"
        model.save_pretrained(folder)
        if kind == "Chinese-CLIP":  # as on the hub: a vocabulary, no tokenizer.json, weights with position_ids
            (folder / "model.safetensors").unlink()
            weights = model.state_dict() | {"text_model.embeddings.position_ids": torch.arange(64)[None]}
            torch.save(weights, folder / "pytorch_model.bin")
            words = "[PAD] [UNK] [CLS] [SEP] [MASK] 杰 尼 龟 小 火 cat a ##s ! 龙 photo "
            (folder / "vocab.txt").write_text((words + " ".join(map(str, range(44)))).replace(" ", "\n"))
        elif kind != "CLIP":
            save_tokenizer(folder, begin=kind == "MetaCLIP 2")
        return model, folder

    return make


def refused(sentence: str, *given: str) -> None:
    with pytest.raises(DearError, match=sentence):
        load_backbone(*given)


def require_equal(model: Any, folder: Path, texts: list[str] = TEXTS, pad: int | None = None) -> Backbone:
    """The features are those that the model itself puts into its logits: pooled, projected, normalised."""
    backbone = load_backbone(f"transformers:{folder}")
    pixels, ids = torch.randn(3, 3, *backbone.image.image_size), backbone.text.tokenizer(texts)
    with torch.no_grad():
        seen = {} if pad is None else {"attention_mask": (ids != pad).long()}
        wanted = model(input_ids=ids, pixel_values=pixels, **seen)
        image, text = (F.normalize(f, dim=-1) for f in (backbone.image.encode(pixels), backbone.text.encode(texts)))
    torch.testing.assert_close(image, wanted.image_embeds, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(text, wanted.text_embeds, atol=1e-5, rtol=1e-5)
    logits = backbone.temperature * image @ text.T + backbone.bias
    torch.testing.assert_close(logits, wanted.logits_per_image, atol=1e-4, rtol=1e-4)
    assert not any(parameter.requires_grad for parameter in backbone.model.parameters())
    return backbone


@pytest.mark.parametrize(
    ("vision", "text", "dim"),
    [
        ({}, {}, 24),
        ({"hidden_act": "gelu"}, {"hidden_act": "gelu"}, 24),
        ({"intermediate_size": 101, "layer_norm_eps": 1e-3}, {"intermediate_size": 67, "layer_norm_eps": 1e-4}, 20),
        (
            {"num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 16, "image_size": 48},
            {"num_hidden_layers": 3, "num_attention_heads": 8, "max_position_embeddings": 40}, 512,
        ),
    ],
    ids=["default act", "gelu", "odd mlp, other eps", "other layers, heads, patches, context"],
)  # fmt: skip
def test_clips_of_any_shape_equal_transformers(saved, vision: dict, text: dict, dim: int) -> None:
    backbone = require_equal(*saved("CLIP", vision, text, dim))
    assert backbone.activation == vision.get("hidden_act", "quick_gelu")


def test_siglip_equals_transformers(saved) -> None:
    backbone = require_equal(*saved("SigLIP"))
    assert (backbone.image.tier, backbone.text.tier, backbone.image.read) == ("full", "full", "probe")
    assert backbone.activation == "gelu_tanh"
    assert (backbone.mean, backbone.pictures["resize_mode"]) == ((0.5,) * 3, "squash")
    plain, marked = (backbone.text.tokenizer([line])[0].tolist() for line in (TEXTS[0], "A PHOTO, of a cat."))
    assert plain == marked, "canonical: case and marks"


def test_metaclip_2_equals_transformers(saved) -> None:
    require_equal(*saved("MetaCLIP 2"))


def test_chinese_clip_equals_transformers(saved) -> None:
    model, folder = saved("Chinese-CLIP")
    texts = ["杰尼龟", "A Photo: 小火龙!", "cats"]
    backbone = require_equal(model, folder, texts, pad=0)
    assert (backbone.image.tier, backbone.text.tier, backbone.text.context) == ("full", "words", 52)
    theirs = transformers.BertTokenizer(str(folder / "vocab.txt"))(texts, padding="max_length", max_length=52)
    assert backbone.text.tokenizer(texts).tolist() == theirs["input_ids"]
    assert backbone.pictures["resize_mode"] == "squash"
    with pytest.raises(DearError, match="longer than the 52 tokens"):
        backbone.text.encode(["杰" * 51])


def test_preprocessing_follows_the_folder(saved) -> None:
    _, folder = saved()
    assert load_backbone(f"transformers:{folder}").mean == pytest.approx(open_clip.OPENAI_DATASET_MEAN)
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.5] * 3, "image_std": [0.25] * 3}))
    backbone = load_backbone(f"transformers:{folder}")
    assert (backbone.mean, backbone.std) == ((0.5,) * 3, (0.25,) * 3)


def test_files_of_older_versions_load(saved) -> None:
    """Half precision, position ids, and the parts of the config under their old names."""
    _, folder = saved()
    before = load_backbone(f"transformers:{folder}").identity.weights
    weights = load_file(folder / "model.safetensors")
    weights["text_model.embeddings.position_ids"] = torch.arange(77)[None]
    save_file(weights, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["text_config_dict"], config["vision_config_dict"] = config.pop("text_config"), None
    (folder / "config.json").write_text(json.dumps(config))
    assert load_backbone(f"transformers:{folder}").identity.weights == before
    save_file({key: value.half() for key, value in weights.items()}, folder / "model.safetensors")
    assert load_backbone(f"transformers:{folder}").image.visual.proj.dtype == torch.float32


def change(folder, **values) -> None:
    config = json.loads((folder / "config.json").read_text())
    for key, value in values.items():
        part, _, name = key.partition("__")
        if name:
            config[part][name] = value
        else:
            config[key] = value
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("kind", "values", "sentence"),
    [
        ("CLIP", {"model_type": "altclip"}, "it is altclip in transformers, not one of clip, metaclip_2, siglip"),
        ("CLIP", {"text_config__vocab_size": 30000}, "vocabulary is not that of CLIP"),
        ("CLIP", {"text_config__hidden_act": "relu"}, "activation is quick_gelu and relu"),
        ("CLIP", {"vision_config__num_channels": 1}, "1 channels"),
        ("CLIP", {"vision_config__num_hidden_layers": 5}, "do not fit its config.json"),
        ("CLIP", {"projection_dim": 7}, "do not fit its config.json"),
        ("CLIP", {"projection_dim": "many"}, "is damaged .projection_dim: expected int"),
        ("CLIP", {"vision_config": [1]}, "is damaged .vision_config"),
        ("CLIP", {"vision_config__hidden_size": 10**8}, "do not fit its config.json"),
        ("CLIP", {"text_config__num_hidden_layers": 10**8}, "do not fit its config.json"),
        ("CLIP", {"vision_config__num_attention_heads": 5}, "do not fit its config.json"),
        ("SigLIP", {"vision_config__hidden_size": 10**8}, "do not fit its config.json"),
        ("SigLIP", {"vision_config__num_hidden_layers": 10**8}, "do not fit its config.json"),
        ("SigLIP", {"vision_config__num_attention_heads": 5}, "do not fit its config.json"),
        ("SigLIP", {"vision_config__hidden_act": "gelu"}, "activation or eps"),
        ("SigLIP", {"vision_config__image_size": "large"}, "is damaged"),
        ("SigLIP", {"model_type": "siglip2"}, r"it is siglip2 in transformers.*nearest that works is --model \S+"),
        ("Chinese-CLIP", {"text_config__hidden_size": 10**8}, "do not fit its config.json"),
        ("Chinese-CLIP", {"text_config__num_attention_heads": 5}, "do not fit its config.json"),
        ("Chinese-CLIP", {"text_config__type_vocab_size": 3}, "do not fit its config.json"),
        ("Chinese-CLIP", {"text_config__hidden_act": "relu"}, "activations"),
        ("Chinese-CLIP", {"text_config__type_vocab_size": "x"}, "is damaged"),
    ],
)
def test_unsupported_models_are_refused(saved, kind: str, values: dict, sentence: str) -> None:
    _, folder = saved(kind)
    change(folder, **values)
    refused(sentence, f"transformers:{folder}")


def test_a_missing_or_damaged_tokenizer_is_named(saved) -> None:
    _, folder = saved("SigLIP")
    (folder / "tokenizer.json").write_text("{}")
    refused("tokenizer.json cannot be read", f"transformers:{folder}")
    (folder / "tokenizer.json").unlink()
    refused("AutoTokenizer", f"transformers:{folder}")


def test_no_code_in_weights_is_run(saved, tmp_path, monkeypatch) -> None:
    _, folder = saved()
    refused("has its own weights", f"transformers:{folder}", "openai")
    refused("use --model transformers:FOLDER", "ViT-S-32-alt", str(folder / "model.safetensors"))
    (folder / "model.safetensors").write_bytes(b"damaged")
    refused("cannot be read", f"transformers:{folder}")
    (folder / "model.safetensors").unlink()
    refused(r"has no weights: it needs model.safetensors or pytorch_model.bin", f"transformers:{folder}")
    torch.save({"logit_scale": print}, folder / "pytorch_model.bin")
    refused(r"pytorch_model.bin could not be loaded", f"transformers:{folder}")


@pytest.mark.parametrize("form", ["bin", "parts of bin", "parts of safetensors"])
def test_weights_in_every_form_are_the_same(saved, form: str) -> None:
    _, folder = saved()
    expected = load_backbone(f"transformers:{folder}").identity.weights
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    if form == "bin":
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        stem, ending, write = (
            ("pytorch_model", "bin", torch.save) if "bin" in form else ("model", "safetensors", save_file)
        )
        names = {key: f"{stem}-0000{1 + number % 2}-of-00002.{ending}" for number, key in enumerate(weights)}
        for name in set(names.values()):
            write({key: value for key, value in weights.items() if names[key] == name}, folder / name)
        (folder / f"{stem}.{ending}.index.json").write_text(json.dumps({"weight_map": names}))
    assert load_backbone(f"transformers:{folder}").identity.weights == expected
    if form != "bin":
        next(folder.glob("*index.json")).write_text(json.dumps({"weight_map": {"x": "../other"}}))
        with pytest.raises(DearError, match=r"names \.\./other, which is not beside it"):
            load_backbone(f"transformers:{folder}")


def test_a_hub_name_downloads_config_weights_and_preprocessor_only(saved, monkeypatch) -> None:
    _, folder = saved()
    asked = []

    def download(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    files = ["config.json", "model.safetensors", "pytorch_model.bin", "modeling.py"]
    info = SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in files])
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: info)
    assert load_backbone("transformers:some/clip").name == "transformers:some/clip"
    others = ["config.json", "preprocessor_config.json", "tokenizer.json", "vocab.txt"]
    assert asked == [("some/clip", [*others, "model.safetensors"])]

    def fail(name: str, allow_patterns: list[str]) -> str:
        raise ConnectionError("no network\nat all")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    refused(r"some/clip is not a folder and could not be fetched: .*\(no network\)", "transformers:some/clip")
