"""Methods whose tokens no original token sees, as a user meets them: trained on what is kept of images, interrupted,
saved, asked, drawn, exported."""

from pathlib import Path

import pytest
import torch

import dear
from dear.cli import main
from dear.data.world.tasks import world_task
from dear.training.checkpoint import Checkpoint

ADAPTER = "adapter_model.safetensors"


ISOLATED = ("--role-strategy", "all_generalization", "--augment", "none")


@pytest.fixture(scope="module", params=[("--method", "experts"), ISOLATED], ids=["experts", "dear"])
def arguments(train_arguments, request):
    return lambda out, *more: train_arguments(out, *request.param, *more)


@pytest.fixture(scope="module")
def run(arguments, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("memory") / "run"
    assert main(arguments(out)) == 0
    return out


def test_interrupted_and_with_states_on_disk_the_adapter_is_the_same(arguments, run, tmp_path, monkeypatch) -> None:
    """Interrupted after two epochs, and continued."""
    save, saved = Checkpoint.save, []

    def interrupted(*given) -> None:
        if len(saved) == 2:
            raise KeyboardInterrupt
        saved.append(save(*given))

    words = arguments(tmp_path / "cut", "--cache", str(tmp_path / "states"))
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "save", interrupted)
        main(words)
    assert not (tmp_path / "cut" / ADAPTER).exists()
    assert main([*words, "--resume"]) == 0
    assert (tmp_path / "cut" / ADAPTER).read_bytes() == (run / ADAPTER).read_bytes()


def test_a_run_predicts_and_explains(run, tmp_path) -> None:
    picture = world_task("colors").test[0].picture.open()
    picture.save(tmp_path / "a.png")
    model = dear.load(run, device="cpu")
    assert model.model.masks.visible_heads is not None
    features = model.features([picture])
    tower = model.model.backbone.image
    pixels = model.model.backbone.preprocess(picture)[None]
    with torch.no_grad():
        assert torch.equal(features["cls"], torch.nn.functional.normalize(tower.encode(pixels), dim=-1))
    answer = model.predict(tmp_path / "a.png")
    assert [vote.component for vote in answer.votes] == list(model.model.components)
    assert main(["explain", str(run), str(tmp_path / "a.png"), "--out", str(tmp_path / "why.png")]) == 0
    assert (tmp_path / "why.png").stat().st_size > 10_000


def test_an_export_agrees_with_its_run(run, tmp_path) -> None:
    pytest.importorskip("onnxruntime")
    assert main(["export", str(run), "--onnx", str(tmp_path / "onnx"), "--check", "5"]) == 0
