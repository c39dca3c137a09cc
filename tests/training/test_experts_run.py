"""Methods whose tokens no original token sees, as a user meets them: trained on what is kept of images, interrupted,
saved, asked, drawn, exported."""

import pytest
import torch

import dear
from dear.cli import main
from dear.data.world.tasks import world_task
from dear.training.checkpoint import Checkpoint

ADAPTER = "adapter_model.safetensors"


ISOLATED = ("--role-strategy", "all_generalization", "--augment", "none")


@pytest.fixture(params=[("--method", "experts"), ISOLATED], ids=["experts", "dear"])
def arguments(train_arguments, request):
    return lambda out, *more: train_arguments(out, *request.param, "--epochs", "4", *more)


def test_interrupted_and_resumed_ends_in_the_same_bits(arguments, tmp_path, monkeypatch) -> None:
    assert main(arguments(tmp_path / "whole")) == 0
    save, saved = Checkpoint.save, []

    def interrupted(*given) -> None:
        if len(saved) == 2:
            raise KeyboardInterrupt
        saved.append(save(*given))

    monkeypatch.setattr(Checkpoint, "save", interrupted)
    main(arguments(tmp_path / "cut"))
    assert not (tmp_path / "cut" / ADAPTER).exists()
    monkeypatch.undo()
    assert main(arguments(tmp_path / "cut", "--resume")) == 0
    assert (tmp_path / "cut" / ADAPTER).read_bytes() == (tmp_path / "whole" / ADAPTER).read_bytes()


def test_states_on_disk_give_the_same_adapter(arguments, tmp_path) -> None:
    assert main(arguments(tmp_path / "memory")) == 0
    assert main(arguments(tmp_path / "disk", "--cache", str(tmp_path / "states"))) == 0
    assert (tmp_path / "disk" / ADAPTER).read_bytes() == (tmp_path / "memory" / ADAPTER).read_bytes()


def test_a_run_predicts_and_explains(arguments, tmp_path) -> None:
    assert main(arguments(tmp_path / "run")) == 0
    picture = world_task("colors").test[0].picture.open()
    picture.save(tmp_path / "a.png")
    model = dear.load(tmp_path / "run", device="cpu")
    assert model.model.masks.visible_heads is not None
    features = model.features([picture])
    tower = model.model.backbone.image
    pixels = model.model.backbone.preprocess(picture)[None]
    with torch.no_grad():
        assert torch.equal(features["cls"], torch.nn.functional.normalize(tower.encode(pixels), dim=-1))
    answer = model.predict(tmp_path / "a.png")
    assert [vote.component for vote in answer.votes] == list(model.model.components)
    assert main(["explain", str(tmp_path / "run"), str(tmp_path / "a.png"), "--out", str(tmp_path / "why.png")]) == 0
    assert (tmp_path / "why.png").stat().st_size > 10_000


def test_an_export_agrees_with_its_run(arguments, tmp_path) -> None:
    pytest.importorskip("onnxruntime")
    assert main(arguments(tmp_path / "run")) == 0
    assert main(["export", str(tmp_path / "run"), "--onnx", str(tmp_path / "onnx"), "--check", "5"]) == 0
