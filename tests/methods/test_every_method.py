"""Every method can be adapted, saved, loaded, used, explained, and applied to other classes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from dear.clip import Backbone, load_backbone
from dear.core.names import inferences
from dear.data.dataset import Dataset
from dear.data.resolve import resolve_dataset
from dear.methods.base import Method
from dear.methods.registry import METHODS, find_method, recipe_of
from dear.model.predictor import Predictor
from dear.training.adapt import adapt, predict_logits
from dear.training.adapter import load_adapter, save_adapter
from dear.training.checkpoint import Checkpoint
from dear.training.config import TrainConfig, learning_rate
from dear.training.images import ImageSource

pytestmark = pytest.mark.usefixtures("few_rounds")


@cache
def backbone_in(folder: Path) -> Backbone:
    return load_backbone(f"local-dir:{folder}")


@pytest.fixture(scope="module")
def data() -> Dataset:
    whole = resolve_dataset("world:colors")
    return replace(whole, test=whole.test[::40]).few_shot(2, 1)


def config_of(name: str, role_file: Path, **more) -> tuple:
    settings = {**recipe_of(name), "steps_per_shot": None, "roles": str(role_file), "first_layer": 2, **more}
    if settings.get("augment", "").startswith("fixed"):
        settings["augment"] = "fixed:2"
    train = {**settings, "batch": min(8, TrainConfig.pick(settings).batch), "workers": 0, "device": "cpu"}
    return find_method(name).Config.pick(settings), TrainConfig.pick(train)


def logits(model: Method, data: Dataset, source: ImageSource) -> torch.Tensor:
    model.set_classes(data.classes, data.template)
    inference = inferences(model.components)[0]
    return predict_logits(model, data.test, source, "test", [inference])[inference]


@contextmanager
def killed_after_one_epoch() -> Iterator[None]:
    """Ends a training when its first checkpoint is written."""

    class Killed(Exception):
        pass

    def and_die(*args, **kwargs) -> None:
        save(*args, **kwargs)
        raise Killed

    save = Checkpoint.save
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "save", and_die)
        with pytest.raises(Killed):
            yield


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_adapted_saved_and_used(name: str, model_folder: Path, role_file: Path, data, tmp_path: Path):
    source = ImageSource(backbone_in(model_folder), workers=0)
    base, novel = data.base(), data.novel()
    config, train = config_of(name, role_file, epochs=50, images_seen=len(base.train), warmup_epochs=0)
    before = find_method(name)(source.backbone, config).state_dict()
    model = adapt(find_method(name), config, base, train, source, tmp_path / "work", pool=data)
    assert METHODS[name].trained == (sum(p.numel() for p in model.parameters()) > 0 and (tmp_path / "work").exists())
    if METHODS[name].trained:
        lines = (tmp_path / "work" / "metrics.jsonl").read_text().splitlines()
        assert len(lines) == 1, "--images-seen shortens every method, whatever its epochs"
        moved = [key for key, value in model.state_dict().items() if not torch.equal(value, before.get(key, value))]
        assert moved, "an epoch has changed nothing"
    assert not any(p.requires_grad for p in source.backbone.model.parameters())

    expected = logits(model, base, source)
    assert expected.shape == (len(base.test), len(base.classes))
    assert expected.isfinite().all()
    save_adapter(tmp_path / "adapter", name, model, base.template)
    loaded = load_adapter(tmp_path / "adapter", backbone=source.backbone)
    torch.testing.assert_close(logits(loaded.model, base, source), expected, rtol=1e-5, atol=1e-5)

    picture = base.test[0].picture.open()
    answer = Predictor(loaded).predict(picture)
    assert answer.choice == base.classes[int(expected[0].argmax())]
    assert len(answer.votes) == len(loaded.model.components)
    for seen in loaded.model.attention_maps(
        loaded.model.backbone.preprocess(picture)[None]
    ).values():  # what `explain` draws
        assert seen.shape == (1, *source.backbone.image.grid)
        assert 0 < seen.sum() < 1.001
    if not METHODS[name].transductive:  # which have no text tower
        assert Predictor(loaded).encode_text(["a red circle"]).norm(dim=-1).item() == pytest.approx(1, abs=1e-5)

    if model.can_answer(novel.classes):
        answered = logits(model, novel, source)
        assert answered.isfinite().all()
        again = load_adapter(tmp_path / "adapter", novel.classes, backbone=source.backbone)
        torch.testing.assert_close(logits(again.model, novel, source), answered, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [name for name, listed in METHODS.items() if listed.trained])
def test_a_resumed_run_ends_in_the_same_bits(name: str, model_folder: Path, role_file: Path, data, tmp_path: Path):
    """Two epochs at once, or one and then the second from the checkpoint of the first."""
    source = ImageSource(backbone_in(model_folder), workers=0)
    base = data.base()
    config, train = config_of(name, role_file, epochs=2, warmup_epochs=0)

    def run(out: Path) -> dict:
        return adapt(find_method(name), config, base, train, source, out).state_dict()

    whole = run(tmp_path / "whole")
    with killed_after_one_epoch():
        run(tmp_path / "cut")
    resumed = run(tmp_path / "cut")
    assert resumed.keys() == whole.keys()
    for key, value in whole.items():
        assert torch.equal(value, resumed[key]), key


def test_a_run_of_one_epoch_is_not_warm_up_alone() -> None:
    config = TrainConfig(warmup_epochs=1, lr=0.1, warmup_lr=0.001)
    assert learning_rate(config, 0.1, 1, 0) == 0.1
    assert [learning_rate(config, 0.1, 2, epoch) for epoch in range(2)] == [0.001, 0.1]
