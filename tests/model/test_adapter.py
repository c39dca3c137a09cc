"""An adapter loads as it was saved, or is refused with a sentence; what it predicts is what it is."""

import json
import shutil

import pytest
import torch
from PIL import Image

import dear
from dear.cli import main
from dear.clip import load
from dear.core.errors import DearError
from dear.data.world.tasks import world_task
from dear.training import adapter
from dear.training.adapter import load_adapter


@pytest.fixture(scope="module")
def run(finished_run):
    return finished_run


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run, tmp_path / "copy")


def test_an_adapter_says_what_it_is(run) -> None:
    config = json.loads((run / "adapter_config.json").read_text())
    assert {"backbone", "method", "classes", "template", "normalisation", "versions", "extra_state"} <= set(config)
    assert config["components"] == ["cls", "color", "shape", "texture", "object", "location"]
    assert config["classes"][0] == "red"


def refused(folder, sentence: str, **options) -> None:
    with pytest.raises(DearError, match=sentence):
        load_adapter(folder, **options)


def test_damaged_adapters_are_refused(copy) -> None:
    weights, config = copy / "adapter_model.safetensors", copy / "adapter_config.json"
    whole, settings = weights.read_bytes(), config.read_text()
    weights.write_bytes(whole[:-10])
    refused(copy, "is damaged .*: copy or train it again")
    with weights.open("r+b") as file:
        file.truncate(9 * 2**30)  # refused by its header: reading it would take long
    refused(copy, "is damaged .*: copy or train it again")
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refused(copy, "damaged or was changed")
    weights.unlink()
    refused(copy, "There is no file .*: copy or train it again")
    weights.write_bytes(whole)
    config.write_text(settings.replace('"beta": 0.9', '"beta": 0.1'))
    refused(copy, "changed after training")
    config.write_text(settings[: len(settings) // 2])
    refused(copy, "cannot be read as JSON")
    config.unlink()
    refused(copy, "is not finished: it stopped after epoch 3 of 3")


def test_another_backbone_is_refused(run, tiny) -> None:
    refused(run, "was made for local-dir:", backbone=tiny(layers=3, text_layers=3))
    refused(run, "quick_gelu", backbone=tiny(layers=3, text_layers=3, quick_gelu=True))


def test_predictions_are_explained_and_agree_with_the_maths(run, tmp_path) -> None:
    picture = world_task("colors").test[0].picture.open()
    picture.save(tmp_path / "a.png")
    model = dear.load(run, device="cpu")
    answer = model.predict(tmp_path / "a.png", topk=2)
    assert answer == model.predict(picture, topk=2)
    assert len(answer.top) == 2
    assert [v.component for v in answer.votes] == ["cls", "color", "shape", "texture", "object", "location"]
    assert sum(v.weight for v in answer.votes) == pytest.approx(1, abs=1e-5)
    features = model.features([picture])
    assert {name: tuple(f.shape) for name, f in features.items()} == dict.fromkeys(model.model.components, (1, 32))
    weights = model.model.fusion_weights()
    logits = sum(w * model.model.backbone.temperature * f @ model.model.encode_text(model.model.classes).T
                 for w, f in zip(weights, features.values(), strict=True))  # fmt: skip
    assert answer.probability == pytest.approx(logits.softmax(-1).max().item(), abs=1e-5)
    alone = model.predict(picture, inference="decoupled")
    assert alone.choice == alone.votes[0].choice


def test_predict_command_streams_skips_and_reports(run, tmp_path, capsys) -> None:
    for i, example in enumerate(world_task("colors").test[:40]):
        example.picture.open().save(tmp_path / f"{i:02}.png")
    (tmp_path / "05.png").write_bytes(b"broken")
    assert main(["predict", str(run), str(tmp_path), "--json", "--device", "cpu"]) == 0
    captured = capsys.readouterr()
    rows = [json.loads(line) for line in captured.out.splitlines()]
    assert len(rows) == 39
    assert rows[0]["path"].endswith("00.png")
    assert "1 of 40 images could not be read" in captured.err
    assert main(["predict", str(run), str(tmp_path / "0*.png"), "--csv", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "path,class,probability"
    assert len(lines) == 10
    assert main(["predict", str(run), str(tmp_path / "05.png")]) == 2
    assert main(["predict", str(run), str(tmp_path / "none*.png")]) == 2
    assert main(["predict", str(tmp_path), str(tmp_path)]) == 2
    assert "is not an adapter" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("command", ["predict", "explain"])
def test_gains_cost_no_second_hash_of_all_weights(command: str, tmp_path, monkeypatch) -> None:
    dear.create("dear-mini", classes=["red", "blue"], method="zero-shot", device="cpu").save(tmp_path / "run")
    Image.new("RGB", (40, 40), "red").save(tmp_path / "a.png")
    hashed: list[str] = []

    def counted(module, name: str) -> None:
        function = getattr(module, name)
        monkeypatch.setattr(module, name, lambda given: hashed.append(name) or function(given))

    counted(load, "hash_weights")
    counted(adapter, "checksum_of")
    out = ["--out", str(tmp_path / "why.png")] if command == "explain" else []
    gain = ["--gain", "color=0", "--gain", "shape=2"]
    assert main([command, str(tmp_path / "run"), str(tmp_path / "a.png"), *gain, *out, "--device", "cpu"]) == 0
    assert sorted(hashed) == ["checksum_of", "hash_weights"]


def test_attention_to_registers_is_left_out(run, monkeypatch) -> None:
    """A patch whose state is much longer than the others' draws attention and shows no place."""
    model = dear.load(run, device="cpu").model
    pixels = torch.randn(1, 3, *model.backbone.image.image_size)
    before = model.attention_maps(pixels)["color"]
    trunk = type(model.backbone.image).trunk

    def with_register(self, pixels, last):
        states = trunk(self, pixels, last)
        states[:, 1 + 6] *= 3  # row 1, column 2
        return states

    monkeypatch.setattr(type(model.backbone.image), "trunk", with_register)
    after = model.attention_maps(pixels)["color"]
    assert before[0, 1, 2] > 0
    assert after[0, 1, 2] == 0
    assert (after.flatten() > 0).sum() == 15
