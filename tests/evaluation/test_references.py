"""References against their definitions, written out by hand."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from dear.backbone import Backbone
from dear.data.dataset import Dataset
from dear.data.resolve import resolve_dataset
from dear.errors import DearError
from dear.evaluation.methods import METHODS, Task, find_method
from dear.evaluation.references import ENSEMBLE, LinearProbe, TipAdapter, ZeroShot, _logistic
from dear.evaluation.workbench import Workbench


class _Bench(Workbench):
    """With a backbone that is at hand."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self._own = backbone

    def backbone(self, model: str, pretrained: str | None) -> Backbone:
        return self._own


@pytest.fixture
def task(tiny: Callable[..., Backbone], tmp_path: Path) -> Task:
    data = resolve_dataset("world:colors")
    data = replace(data, test=data.test[::10]).few_shot(2, 1)
    settings = {"model": "tiny", "pretrained": None, "template": None, "class_names": None}
    return Task(data, 1, 2, settings, _Bench(tiny()), tmp_path)


def _encoded(task: Task, data: Dataset, split: str) -> torch.Tensor:
    backbone = task.bench.backbone("", None)
    pixels = torch.stack([backbone.preprocess(e.picture.open()) for e in getattr(data, split)])
    with torch.no_grad():
        return F.normalize(backbone.model.encode_image(pixels), dim=-1)


def test_zero_shot_is_openclips(task: Task) -> None:
    backbone, data = task.bench.backbone("", None), task.data
    with torch.no_grad():
        text = backbone.model.encode_text(backbone.text.tokenizer(data.prompts), normalize=True)
    expected = backbone.temperature * _encoded(task, data, "test") @ text.T
    torch.testing.assert_close(ZeroShot(task).logits(data, data.test)["plain"], expected, rtol=1e-4, atol=1e-3)


def test_an_ensemble_averages_normalised_prompts(task: Task) -> None:
    backbone, data = task.bench.backbone("", None), task.data
    sums = torch.zeros(len(data.classes), 24)
    for template in (data.template, *ENSEMBLE):
        for row, name in enumerate(data.classes):
            with torch.no_grad():
                sums[row] += backbone.model.encode_text(
                    backbone.text.tokenizer([template.format(name)]), normalize=True
                )[0]
    found = find_method("zero-shot-ensemble")(task)
    torch.testing.assert_close(found.text(data), F.normalize(sums, dim=-1), rtol=1e-4, atol=1e-5)


def test_logistic_regression_ends_in_its_minimum() -> None:
    torch.manual_seed(0)
    images, labels = F.normalize(torch.randn(40, 6), dim=-1), torch.randint(3, (40,))
    weight, bias = _logistic(images, labels, 3, 1e-3)
    weight, bias = weight.requires_grad_(), bias.requires_grad_()
    loss = F.cross_entropy(images @ weight.T + bias, labels) + 1e-3 * weight.square().sum()
    for gradient in torch.autograd.grad(loss, (weight, bias)):
        assert gradient.abs().max() < 1e-3


def test_a_probe_answers_only_what_it_was_trained_on(task: Task) -> None:
    base, novel = task.data.base(), task.data.novel()
    probe = LinearProbe(replace(task, data=base))
    assert probe.logits(novel, novel.test) == {}
    again = replace(base, classes=base.classes[::-1])  # the same classes in another order
    one, other = probe.logits(base, base.test)["plain"], probe.logits(again, base.test)["plain"]
    torch.testing.assert_close(one, other.flip(1))
    assert probe.parameters == len(base.classes) * (24 + 1)


def test_tip_adapter_is_its_formula(task: Task) -> None:
    base = task.data.base()
    tip = TipAdapter(replace(task, data=base))
    images, keys = _encoded(task, base, "test"), _encoded(task, base, "train")
    expected = ZeroShot(task).logits(base, base.test)["plain"].clone()
    for i, image in enumerate(images):
        for key, example in zip(keys, base.train, strict=True):
            expected[i, example.label] += tip.alpha * torch.exp(-tip.beta * (1 - image @ key))
    torch.testing.assert_close(tip.logits(base, base.test)["plain"], expected, rtol=1e-4, atol=1e-3)


def test_tip_adapter_leaves_unknown_classes_to_zero_shot(task: Task) -> None:
    novel = task.data.novel()
    tip = TipAdapter(replace(task, data=task.data.base()))
    torch.testing.assert_close(
        tip.logits(novel, novel.test)["plain"], ZeroShot(task).logits(novel, novel.test)["plain"]
    )


def test_every_method_can_be_found() -> None:
    for name in METHODS:
        assert callable(find_method(name))
    with pytest.raises(DearError, match="choose from zero-shot"):
        find_method("magic")
