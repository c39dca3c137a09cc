"""An exported model answers as PyTorch does, without PyTorch; a failed export leaves nothing behind."""

import csv
import importlib.util
import json
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import dear
from dear.cli import main
from dear.core.errors import DearError
from dear.core.files import read_json, write_json
from dear.data.world.tasks import world_task
from dear.methods.dear import Dear, DearConfig
from dear.training.adapter import Adapter, load_adapter
from small_models import each_role

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from dear.model.export.assets.classify import to_pixels
from dear.model.export.export import pick_pictures, pixel_settings, require_agreement
from dear.model.export.folder import open_session
from dear.model.export.graph import write_graph, write_int8

WITHOUT_TORCH = """
import runpy, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchvision", "open_clip", "safetensors", "onnx", "dear"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def differences(path, model: Dear, batch: int) -> list[float]:
    """Largest differences of features and logits on noise, against the model itself."""
    pixels = torch.randn(batch, 3, *model.backbone.image.image_size)
    with torch.no_grad():
        features = model.encode_image(model.layer_input(pixels))
        expected = features, model.logits(features, model.encode_text(model.classes))
    found = open_session(path).run(None, {"pixels": pixels.numpy()})
    assert [a.shape for a in expected] == [b.shape for b in found]
    return [np.abs(a.numpy() - b).max() for a, b in zip(expected, found, strict=True)]


@pytest.mark.parametrize("batch", [1, 3, 7])
def test_any_batch_agrees_with_pytorch(exported, exported_run, batch: int) -> None:
    features, logits = differences(exported / "model.onnx", load_adapter(exported_run).model, batch)
    assert features < 1e-5
    assert logits < 1e-3


def small_model(backbone, **settings) -> Dear:
    model = Dear(backbone, DearConfig(**{"first_layer": 3, **settings}), each_role(backbone, (3, 4)))
    model.set_classes([f"class {i}" for i in range(30)], "{}")  # more than a feature has numbers
    return model.eval().requires_grad_(False)


def test_other_settings_export_too(tiny, tmp_path) -> None:
    model = small_model(tiny(quick_gelu=True), tokens_per_attribute=2, isolation="two_way", routing="strict")
    write_graph(model, model.encode_text(model.classes), tmp_path / "model.onnx")
    assert max(differences(tmp_path / "model.onnx", model, 5)) < 1e-4


def test_weights_beyond_one_file_lie_beside_it_and_move_with_it(tiny, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("dear.model.export.graph._ONE_FILE", 0)
    model = small_model(tiny(), first_layer=4)  # only CLS and the tokens ask in the only adapted layer
    (tmp_path / "a").mkdir()
    write_graph(model, model.encode_text(model.classes), tmp_path / "a" / "model.onnx")
    assert (tmp_path / "a" / "model.onnx.data").stat().st_size > 1e5
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert max(differences(tmp_path / "b" / "model.onnx", model, 2)) < 1e-4
    write_int8(tmp_path / "b" / "model.onnx", tmp_path / "b" / "model_int8.onnx")
    pixels = torch.randn(1, 3, 32, 32)
    features, logits = open_session(tmp_path / "b" / "model_int8.onnx").run(None, {"pixels": pixels.numpy()})
    again = model.logits(torch.from_numpy(features), model.encode_text(model.classes))
    assert np.abs(again.numpy() - logits).max() < 1e-4  # the last step stays exact, however many classes


def test_the_folder_is_whole_and_tells_no_paths(exported, exported_run) -> None:
    names = ["classify.py", "model.json", "model.onnx", "model_int8.onnx", "text_features.npy"]
    assert sorted(p.name for p in exported.iterdir()) == names
    assert [p.name for p in exported.parent.iterdir()] == ["out"]
    about, text = read_json(exported / "model.json"), np.load(exported / "text_features.npy")
    model = dear.load(exported_run, device="cpu")
    assert about["classes"] == list(model.classes)
    assert about["components"] == list(model.model.components)
    assert about["adapter_sha256"] == read_json(exported_run / "adapter_config.json")["weights_sha256"]
    pixels = torch.randn(2, 3, 32, 32)
    features, logits = open_session(exported / "model.onnx").run(None, {"pixels": pixels.numpy()})
    assert np.allclose(np.linalg.norm(features, axis=-1), 1, atol=1e-5)
    again = about["temperature"] * (np.array(about["fusion_weights"]) @ features) @ text.T  # as model.json says it
    assert np.allclose(again, logits, atol=1e-4)
    assert b".py" not in (exported / "model.onnx").read_bytes()


def test_the_example_answers_as_dear_predict_without_torch(exported, exported_run, tmp_path, capsys) -> None:
    (tmp_path / "5").mkdir()  # a folder of folders
    for i, example in enumerate(world_task("colors").test[:6]):
        example.picture.open().resize((90 + 7 * i, 111)).save(tmp_path / ("5/5.png" if i == 5 else f"{i}.png"))
    (tmp_path / "notes.txt").write_text("not an image")
    assert main(["predict", str(exported_run), str(tmp_path), "--csv", "--device", "cpu"]) == 0
    expected = list(csv.DictReader(capsys.readouterr().out.splitlines()))

    def classify(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WITHOUT_TORCH, exported / "classify.py", *arguments]
        return subprocess.run(list(map(str, command)), text=True, capture_output=True, timeout=600)

    done = classify(tmp_path)
    assert done.stderr == ""
    found = [line.split("\t") for line in done.stdout.splitlines()]
    assert [(f[0], f[1]) for f in found] == [(e["path"], e["class"]) for e in expected]
    assert np.allclose([float(f[2]) for f in found], [float(e["probability"]) for e in expected], atol=1e-5)
    (tmp_path / "broken.png").write_bytes(b"broken")
    done = classify(tmp_path / "1.png", tmp_path / "broken.png", tmp_path / "5", "--model", "model_int8.onnx")
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == [found[1][0], found[5][0]]
    assert done.stderr.startswith(f"skipped: {tmp_path / 'broken.png'} cannot be read")
    assert done.returncode == 0
    (tmp_path / "empty").mkdir()
    done = classify(tmp_path / "empty")
    assert "is neither an image nor a folder with images" in done.stderr
    assert done.returncode == 2


@pytest.mark.parametrize("mode", ["shortest", "squash"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_the_example_sees_the_pixels_that_the_backbone_sees(exported_run, mode: str, interpolation: str) -> None:
    from open_clip.transform import PreprocessCfg, image_transform_v2

    adapter = load_adapter(exported_run)
    pictures = {**adapter.model.backbone.pictures, "resize_mode": mode, "interpolation": interpolation}
    adapter.model.backbone = replace(adapter.model.backbone, pictures=pictures)
    preprocess = image_transform_v2(PreprocessCfg(**pictures), is_train=False)
    settings = json.loads(json.dumps(pixel_settings(adapter)))
    rng = np.random.default_rng(0)
    for width, height in [(32, 32), (33, 77), (101, 47), (640, 33), (31, 500), (5, 9), (37, 36), (333, 222)]:
        image = Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))
        assert np.abs(to_pixels(image, settings) - preprocess(image).numpy()).max() < 1e-5
    grey = Image.new("L", (50, 40), 77)
    assert np.abs(to_pixels(grey, settings) - preprocess(grey.convert("RGB")).numpy()).max() < 1e-5


def test_preprocessing_that_the_example_does_not_know_is_refused(exported_run) -> None:
    adapter: Adapter = load_adapter(exported_run)
    pictures = {**adapter.model.backbone.pictures, "resize_mode": "longest"}
    adapter.model.backbone = replace(adapter.model.backbone, pictures=pictures)
    with pytest.raises(DearError, match="'longest', which the exported preprocessing does not know"):
        pixel_settings(adapter)


def test_int8_is_smaller_mostly_agrees_and_its_cost_is_told(exported_run, exported) -> None:
    about = read_json(exported / "model.json")["compared"]
    assert (about["images"], about["source"]) == (60, "test images of world:colors")
    assert 0 <= about["largest_difference"]["features"] < 1e-5
    whole, small = about["models"]
    assert whole["same_answer"] == 100
    assert small["megabytes"] * 1e6 == (exported / "model_int8.onnx").stat().st_size
    assert small["megabytes"] < 0.7 * whole["megabytes"]
    assert small["same_answer"] >= 90
    examples = pick_pictures(exported_run, load_adapter(exported_run).classes, 60).examples
    model = dear.load(exported_run, device="cpu")
    right = [model.predict(e.picture.open()).choice == model.classes[e.label] for e in examples]
    assert whole["accuracy"] == pytest.approx(100 * np.mean(right))
    assert abs(small["accuracy"] - whole["accuracy"]) <= 100 - small["same_answer"] + 1e-9


def test_the_runs_own_images_are_compared_or_else_others_without_labels(exported_run, tmp_path) -> None:
    classes = load_adapter(exported_run).classes
    pictures = pick_pictures(exported_run, classes, 10)
    assert pictures.labelled
    assert len(pictures.examples) == 10
    assert len({e.label for e in pictures.examples}) > 3  # spread over the classes
    config = read_json(exported_run / "config.json")
    for changed in ({"data": str(tmp_path / "gone")}, {"data": "world:signs"}, {"classes": "base"}):
        write_json(tmp_path / "config.json", {**config, **changed})
        assert not pick_pictures(tmp_path, classes, 10).labelled
    half = classes[: (len(classes) + 1) // 2]
    assert pick_pictures(tmp_path, half, 10).labelled  # trained on the base classes
    (tmp_path / "config.json").unlink()
    assert not pick_pictures(tmp_path, classes, 10).labelled


def test_disagreement_is_refused_and_leaves_nothing(exported_run, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("dear.model.export.export.write_graph", lambda model, text, path: shutil.copy(__file__, path))
    found = {"pixels": 0.0, "features": 0.5, "logits": 2.0}
    monkeypatch.setattr("dear.model.export.export.compare_with_pytorch", lambda *given: (found, np.zeros((1, 2))))
    assert main(["export", str(exported_run), "--onnx", str(tmp_path / "out")]) == 2
    assert "differs from PyTorch by 5.0e-01" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    for apart in (float("nan"), 1e-3):
        with pytest.raises(DearError, match="differs from PyTorch"):
            require_agreement({"pixels": 0.0, "features": apart, "logits": 0.0})


def test_bad_input_is_one_sentence(exported_run, tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("kept")
    (tmp_path / "file").write_text("kept")
    run, out = str(exported_run), str(tmp_path / "out")
    monkeypatch.setattr("dear.model.export.export.write_graph", lambda *given: pytest.fail("must be refused before"))
    for arguments, sentence in (
        ([run, "--onnx", str(tmp_path / "full")], "is not an empty folder"),
        ([run, "--onnx", str(tmp_path / "file")], "is not an empty folder"),
        ([run, "--onnx", str(tmp_path / "file" / "out")], "Cannot write"),
        ([run, "--onnx", "."], "name a new folder"),
        ([str(tmp_path), "--onnx", out], "is not an adapter"),
    ):
        assert main(["export", *arguments]) == 2
        *before, last = capsys.readouterr().err.splitlines()
        assert sentence in last
        assert all(line.startswith("backbone: ") for line in before)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxscript" else found(name))
    assert main(["export", run, "--onnx", out]) == 2
    assert "Export needs onnxscript: pip install 'dear-vlm[export]'" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "full", "mine.txt"]
