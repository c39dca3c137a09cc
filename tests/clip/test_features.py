"""Towers that are called as a whole: features equal OpenCLIP's, and everything that needs no more works on them."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import dear
from dear.cli import main
from dear.clip import load_backbone
from dear.clip.support import judge
from dear.core.errors import DearError, TextTooLongError
from dear.data.resolve import resolve_dataset
from dear.methods.registry import find_method, methods_for
from small_models import CALLED, called, config_of, save_model

pytestmark = pytest.mark.usefixtures("few_pictures")


@pytest.mark.parametrize("kind", CALLED)
def test_features_equal_open_clip(kind: str) -> None:
    backbone = called(kind)
    model = backbone.model
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
    backbone = called("ResNet")
    assert {"coop", "tip-adapter", "linear-probe", "tcp"} <= set(methods_for("features", "full"))
    with pytest.raises(DearError, match=r"maple works inside the image tower, but that of ResNet .* from zero-shot"):
        find_method("maple")(backbone, find_method("maple").Config())
    assert {"zero-shot", "linear-probe"} <= set(methods_for("features", "features"))
    assert "coop" not in methods_for("features", "features")


@pytest.fixture(scope="module")
def resnet(tmp_path_factory) -> Path:
    config, folder = config_of("ResNet"), tmp_path_factory.mktemp("resnet")
    return save_model(folder, config, called("ResNet").model, mean=[0.5] * 3, resize_mode="squash")


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
