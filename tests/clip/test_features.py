"""Towers that are called as a whole: features equal OpenCLIP's, and everything that needs no more works on them."""

import json
from pathlib import Path

import open_clip
import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

import dear
from dear.cli import main
from dear.clip import load_backbone, wrap
from dear.clip.support import judge
from dear.core.errors import DearError, TextTooLongError
from dear.data.resolve import resolve_dataset
from dear.methods.registry import find_method, methods_for

TEXT = {"context_length": 20, "vocab_size": 49408, "layers": 2, "width": 32, "heads": 4}
CONFIGS = {
    "ResNet": {"vision_cfg": {"layers": [1, 1, 1, 1], "width": 8, "image_size": 64, "patch_size": None}},
    "ConvNeXt": {
        "vision_cfg": {"timm_model_name": "convnext_atto", "timm_pool": "", "timm_proj": "linear", "image_size": 64}
    },
    "attention pool": {
        "vision_cfg": {
            "layers": 2, "width": 32, "head_width": 8, "patch_size": 16, "image_size": 64, "attentional_pool": True,
            "attn_pooler_queries": 4, "pool_type": "avg",
        },
    },
    "custom blocks": {
        "vision_cfg": {
            "layers": 2, "width": 32, "head_width": 8, "patch_size": 16, "image_size": 64, "scale_attn_inner": True
        },
        "text_cfg": {**TEXT, "scale_heads": True},
    },
}  # fmt: skip


def config_of(kind: str) -> dict:
    return {"embed_dim": 24, "text_cfg": dict(TEXT), **CONFIGS[kind]}


def shaken(model: torch.nn.Module) -> torch.nn.Module:
    """Adds noise to all weights: fresh biases and scales are zero or one, and would hide errors."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("kind", CONFIGS)
def test_features_equal_open_clip(kind: str) -> None:
    torch.manual_seed(0)
    model = shaken(open_clip.CLIP(**config_of(kind)))
    backbone = wrap(model, open_clip.SimpleTokenizer(context_length=20), kind)
    assert (backbone.image.tier, backbone.text.tier) == judge(config_of(kind))[:2]
    assert backbone.image.tier == "features"
    pixels, texts = torch.randn(3, 3, 64, 64), ["a cat", "a small dog on a mat"]
    with torch.no_grad():
        torch.testing.assert_close(backbone.image.encode(pixels), model.encode_image(pixels))
        entry = backbone.image.layer_input(pixels, 1)
        torch.testing.assert_close(
            backbone.image.frozen_feature(entry), F.normalize(model.encode_image(pixels), dim=-1)
        )
        expected = model.encode_text(backbone.text.tokenizer(texts))
        torch.testing.assert_close(backbone.text.encode(texts), expected, atol=1e-5, rtol=1e-5)
    assert backbone.dim == 24
    assert backbone.bias == 0
    with pytest.raises(TextTooLongError, match="longer than the 20 tokens"):
        backbone.text.encode(["word " * 19])
    backbone.text.encode(["word " * 18])


def test_methods_that_work_inside_a_tower_are_refused() -> None:
    model = open_clip.CLIP(**config_of("ResNet"))
    backbone = wrap(model, open_clip.SimpleTokenizer(context_length=20), "RN-small")
    assert {"coop", "tip-adapter", "linear-probe", "tcp"} <= set(methods_for("features", "full"))
    with pytest.raises(DearError, match=r"maple works inside the image tower, but that of RN-small .* from zero-shot"):
        find_method("maple")(backbone, find_method("maple").Config())
    assert {"zero-shot", "linear-probe"} <= set(methods_for("features", "features"))
    assert "coop" not in methods_for("features", "features")


@pytest.fixture(scope="module")
def resnet(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("resnet")
    torch.manual_seed(0)
    model = open_clip.CLIP(**config_of("ResNet"))
    file = {"model_cfg": config_of("ResNet"), "preprocess_cfg": {"mean": [0.5] * 3, "resize_mode": "squash"}}
    (folder / "open_clip_config.json").write_text(json.dumps(file))
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / "open_clip_model.safetensors")
    return folder


@pytest.mark.parametrize("method", ["tip-adapter-f", "coop"])
def test_a_resnet_from_training_to_export(resnet: Path, tmp_path: Path, method: str, capsys) -> None:
    run, model = tmp_path / "run", f"local-dir:{resnet}"
    command = ["train", "--method", method, "--model", model, "--data", "world:colors", "--shots", "2"]
    assert main([*command, "--epochs", "2", "--out", str(run)]) == 0, capsys.readouterr().err
    backbone = load_backbone(model)
    assert (backbone.mean, backbone.pictures["resize_mode"]) == ((0.5,) * 3, "squash")
    picture = resolve_dataset("world:colors").test[0].picture.open()
    picture.save(tmp_path / "picture.png")
    answer = dear.load(run).predict(picture)
    assert main(["predict", str(run), str(tmp_path / "picture.png"), "--csv"]) == 0
    assert answer.choice in capsys.readouterr().out
    assert main(["explain", str(run), str(tmp_path / "picture.png"), "--out", str(tmp_path / "why.png")]) == 0
    if method == "coop":
        return
    assert main(["export", str(run), "--onnx", str(tmp_path / "onnx"), "--check", "3"]) == 0, capsys.readouterr().err
    gallery = str(tmp_path / "gallery")
    assert main(["index", str(tmp_path / "picture.png"), "--model", model, "--out", gallery]) == 0
    capsys.readouterr()
    assert main(["search", gallery, "--text", "a red sign"]) == 0
    assert "picture.png" in capsys.readouterr().out
    assert main(["roles", "--model", model, "--out", str(tmp_path / "roles.json")]) == 2
    assert "its heads are not known" in capsys.readouterr().err
