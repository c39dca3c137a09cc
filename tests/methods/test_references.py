"""References against their definitions, written out by hand."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from dear.clip import Backbone
from dear.core.errors import DearError
from dear.data.dataset import Dataset
from dear.data.resolve import resolve_dataset
from dear.methods.base import Method
from dear.methods.linear_probes import logistic
from dear.methods.registry import find_method
from dear.methods.zero_shot import ENSEMBLE, ensemble
from dear.training.adapt import adapt, predict_logits
from dear.training.config import TrainConfig
from dear.training.images import ImageSource


class Bench:
    def __init__(self, backbone: Backbone, out: Path) -> None:
        self.source, self.out = ImageSource(backbone, workers=0), out
        data = resolve_dataset("world:colors")
        self.data = replace(data, test=data.test[::10]).few_shot(2, 1)

    def fit(self, name: str, data: Dataset) -> Method:
        kind = find_method(name)
        return adapt(kind, kind.Config(), data, TrainConfig(epochs=0), self.source, self.out)

    def logits(self, model: Method, data: Dataset) -> torch.Tensor:
        model.set_classes(data.classes, data.template)
        return predict_logits(model, data.test, self.source, "test")["plain"]

    @torch.no_grad()
    def encoded(self, data: Dataset, split: str) -> torch.Tensor:
        backbone = self.source.backbone
        pixels = torch.stack([backbone.preprocess(e.picture.open()) for e in getattr(data, split)])
        return F.normalize(backbone.model.encode_image(pixels), dim=-1)


@pytest.fixture
def bench(tiny: Callable[..., Backbone], tmp_path: Path) -> Bench:
    return Bench(tiny(), tmp_path)


def test_zero_shot_is_openclips(bench: Bench) -> None:
    backbone, data = bench.source.backbone, bench.data
    with torch.no_grad():
        text = backbone.model.encode_text(backbone.text.tokenizer(data.prompts), normalize=True)
    expected = backbone.temperature * bench.encoded(data, "test") @ text.T
    torch.testing.assert_close(bench.logits(bench.fit("zero-shot", data), data), expected, rtol=1e-4, atol=1e-3)


def test_an_ensemble_averages_normalised_prompts(bench: Bench) -> None:
    backbone, data = bench.source.backbone, bench.data
    sums = torch.zeros(len(data.classes), 24)
    for template in (data.template, *ENSEMBLE):
        for row, name in enumerate(data.classes):
            with torch.no_grad():
                sums[row] += backbone.model.encode_text(
                    backbone.text.tokenizer([template.format(name)]), normalize=True
                )[0]
    found = bench.fit("zero-shot-ensemble", data)
    torch.testing.assert_close(found.encode_text(found.classes), F.normalize(sums, dim=-1), rtol=1e-4, atol=1e-5)


def test_templates_that_are_too_long_for_a_backbone_are_left_out_of_an_ensemble(bench: Bench) -> None:
    method, names = bench.fit("zero-shot", bench.data), bench.data.classes
    long = "a photo of a {}" + " and more" * 80
    expected = ensemble(method, names, ENSEMBLE)
    assert torch.equal(ensemble(method, names, (long, *ENSEMBLE)), expected)
    assert torch.equal(ensemble(method, names, (*ENSEMBLE, long)), expected)
    with pytest.raises(DearError, match="longer than the 77 tokens"):
        ensemble(method, names, (long, long))


def test_logistic_regression_ends_in_its_minimum() -> None:
    torch.manual_seed(0)
    images, labels = F.normalize(torch.randn(40, 6), dim=-1), torch.randint(3, (40,))
    weight, bias = logistic(images, labels, 3, 1e-3)
    weight, bias = weight.requires_grad_(), bias.requires_grad_()
    loss = F.cross_entropy(images @ weight.T + bias, labels) + 1e-3 * weight.square().sum()
    for gradient in torch.autograd.grad(loss, (weight, bias)):
        assert gradient.abs().max() < 1e-3


def test_a_probe_answers_only_classes_it_was_trained_on(bench: Bench) -> None:
    base, novel = bench.data.base(), bench.data.novel()
    probe = bench.fit("linear-probe", base)
    assert not probe.can_answer(novel.classes)
    with pytest.raises(DearError, match="only answer the classes it was trained on"):
        probe.set_classes(novel.classes, "{}")
    again = replace(base, classes=base.classes[::-1])  # the same classes in another order
    torch.testing.assert_close(bench.logits(probe, base), bench.logits(probe, again).flip(1))
    assert sum(p.numel() for p in probe.parameters()) == len(base.classes) * (24 + 1)


def test_tip_adapter_is_its_formula(bench: Bench) -> None:
    base = bench.data.base()
    tip = bench.fit("tip-adapter", base)
    alpha, beta = tip.strength.tolist()
    images, keys = bench.encoded(base, "test"), bench.encoded(base, "train")
    expected = bench.logits(bench.fit("zero-shot", base), base).clone()
    for i, image in enumerate(images):
        for key, example in zip(keys, base.train, strict=True):
            expected[i, example.label] += alpha * torch.exp(-beta * (1 - image @ key))
    torch.testing.assert_close(bench.logits(tip, base), expected, rtol=1e-4, atol=1e-3)


def test_tip_adapter_leaves_unknown_classes_to_zero_shot(bench: Bench) -> None:
    novel = bench.data.novel()
    tip, plain = bench.fit("tip-adapter", bench.data.base()), bench.fit("zero-shot", novel)
    torch.testing.assert_close(bench.logits(tip, novel), bench.logits(plain, novel))
