"""Checkpoints for other libraries: each is loaded by the other library itself, and its features are the run's."""

import json
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
from torch.nn import functional as F

import dear
from dear.cli import main
from dear.data.world.tasks import world_task

PLAIN = ("zero-shot", "prolip", "clip-lora", "2sfs", "skipt", "clip-svd", "head-gains")
NAMES = ["red", "green", "a blue one"]
LINES = ["a red sign", "a car in the city", "zigzag"]


def changed_run(method: str, folder: Path) -> Path:
    """A run of dear-mini whose learned weights are moved, without a training."""
    settings = {"gains": "none"} if method == "head-gains" else {}
    model = dear.create(classes=NAMES, method=method, device="cpu", **settings)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
        if method == "head-gains":
            model.model.projection += 0.02 * torch.randn_like(model.model.projection)
            model.model.head.mix[0] = 0.7
    model.save(folder)
    return folder


@pytest.fixture(scope="module", params=PLAIN)
def run(request, tmp_path_factory) -> tuple[str, Path]:
    return request.param, changed_run(request.param, tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def pictures() -> list:
    return [example.picture.open() for example in world_task("objects").test[::90]]


def exported(run: Path, form: str, out: Path) -> Path:
    assert main(["export", str(run), "--format", form, "--out", str(out)]) == 0
    return out


def own_features(run: Path, pictures: list) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    model = dear.load(run, device="cpu")
    texts = model.model.encode_text(model.model.encode_classes(LINES, "{}"))
    features = model.features(pictures)["cls"]
    return features, texts, model.model.logits(features[:, None], model.model.encode_text(model.model.classes))


def test_open_clip_loads_it(run, pictures, tmp_path) -> None:
    method, folder = run
    out = exported(folder, "openclip", tmp_path / "out")
    model, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{out}")
    features, texts, logits = own_features(folder, pictures)
    words = open_clip.SimpleTokenizer(str(out / "bpe_vocab.txt.gz"), context_length=20)
    with torch.no_grad():
        images = model.eval().encode_image(torch.stack(list(map(preprocess, pictures))), normalize=True)
        sentences = model.encode_text(words(LINES), normalize=True)
    assert (images - features).abs().max() < 1e-5
    assert (sentences - texts).abs().max() < 1e-5
    weight, bias = (torch.from_numpy(np.load(out / f"class_{name}.npy")) for name in ("weights", "bias"))
    assert torch.allclose(images @ weight.T + bias, logits, atol=2e-3), "the classifier over these features"
    assert json.loads((out / "class_weights.json").read_text()) == NAMES
    if method != "zero-shot":
        plain = dear.create(classes=NAMES, method="zero-shot", device="cpu").features(pictures)["cls"]
        assert (images - plain).abs().max() > 1e-3, "it has changed"


def test_transformers_loads_it(run, pictures, tmp_path) -> None:
    from transformers import AutoImageProcessor, AutoTokenizer, CLIPModel

    out = exported(run[1], "transformers", tmp_path / "out")
    model, read = CLIPModel.from_pretrained(out).eval(), AutoImageProcessor.from_pretrained(out)
    features, texts, _ = own_features(run[1], pictures)
    words = AutoTokenizer.from_pretrained(out)(LINES, padding="max_length", return_tensors="pt")
    with torch.no_grad():
        images = model.get_image_features(**read(pictures, return_tensors="pt"))
        sentences = model.get_text_features(**words)
    for theirs, ours in ((images, features), (sentences, texts)):
        value = getattr(theirs, "pooler_output", theirs)
        assert (F.normalize(value, dim=1) - ours).abs().max() < 1e-5


def test_peft_loads_the_terms_of_clip_lora(pictures, tmp_path) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed: pip install peft")
    from transformers import AutoImageProcessor, CLIPModel

    base = exported(changed_run("zero-shot", tmp_path / "plain"), "transformers", tmp_path / "base")
    run = changed_run("clip-lora", tmp_path / "run")
    out = exported(run, "peft", tmp_path / "out")
    read, expected = AutoImageProcessor.from_pretrained(base), own_features(run, pictures)[0]
    for merged in (False, True):
        model = peft.PeftModel.from_pretrained(CLIPModel.from_pretrained(base), out).eval()
        model = model.merge_and_unload() if merged else model
        with torch.no_grad():
            images = model.get_image_features(**read(pictures, return_tensors="pt"))
        assert (F.normalize(getattr(images, "pooler_output", images), dim=1) - expected).abs().max() < 1e-5


def test_class_weights_of_a_fit(pictures, tmp_path) -> None:
    model = dear.fit("world:colors", method="gda", model="dear-mini", device="cpu", out=tmp_path / "run")
    out = exported(tmp_path / "run", "class-weights", tmp_path / "out")
    frozen, _, logits = own_features(tmp_path / "run", pictures)
    weight, bias = np.load(out / "class_weights.npy"), np.load(out / "class_bias.npy")
    assert weight.shape == (len(model.classes), 128)
    assert np.allclose(frozen.numpy() @ weight.T + bias, logits.numpy(), atol=2e-3)


@pytest.mark.parametrize(
    ("method", "arguments", "sentence"),
    [
        ("dear", ["--format", "openclip"], "no plain CLIP after training"),
        ("dear", ["--format", "class-weights"], "no linear function"),
        ("prolip", ["--format", "peft"], "no low-rank terms"),
        ("prolip", ["--format", "openclip", "--int8"], "--int8 belongs to --onnx"),
        ("prolip", ["--format", "openclip", "--onnx", "x"], "Name one new folder"),
    ],
)
def test_the_others_are_refused(method, arguments, sentence, tmp_path, capsys) -> None:
    run = changed_run(method, tmp_path / "run")
    assert main(["export", str(run), *arguments, "--out", str(tmp_path / "out")]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
