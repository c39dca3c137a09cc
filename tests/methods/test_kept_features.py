"""Benchmarks on kept features: baselines against independent forms, and methods as on the images themselves."""

import sys
from itertools import combinations
from pathlib import Path

import pytest
import torch
from naive_text import LABELS, NAMES, TEMPLATE, pixels
from torch.nn import functional as F

from dear.clip.text_table import TextTable
from dear.heads.contributions import decompose
from dear.methods.registry import find_method

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def scripts(monkeypatch):
    """The scripts, which import one another by name."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import baselines
    import kept
    import ledger_report as ledger

    yield baselines, kept, ledger
    for name in ("baselines", "kept", "ledger_report"):
        sys.modules.pop(name)


def test_units_of_heads_are_the_engines_contributions(tiny, scripts) -> None:
    backbone = tiny()
    images = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        seen = backbone.image.head_outputs(images, 3)
        expected = (
            decompose(backbone, images)[1][:, 2:] * backbone.image.encode(images).norm(dim=1)[:, None, None, None]
        )
    torch.testing.assert_close(
        scripts[0].head_units(backbone.image, seen), expected.flatten(1, 2), atol=1e-5, rtol=1e-4
    )


def test_residual_is_its_formula_and_keeps_what_explains_nine_tenths(scripts) -> None:
    torch.manual_seed(0)
    units, texts, labels = (
        torch.randn(40, 3, 8) * torch.linspace(2, 0.1, 8),
        F.normalize(torch.randn(4, 8)),
        torch.arange(40) % 4,
    )
    fitted = scripts[0].ResiDual(units, labels, texts, 100.0, full=True)
    assert (fitted.values != 1).all()
    for image, logits in zip(units, fitted(units), strict=True):
        total = torch.zeros(8)
        for head in range(3):
            centred = units[:, head] - units[:, head].mean(0)
            values, vectors = torch.linalg.eigh(centred.T @ centred)  # ascending
            values, vectors = values.flip(0), vectors.flip(1)
            count = 1 + int((values.cumsum(0) / values.sum() <= 0.9).sum())
            for place in range(count):
                along = vectors[:, place] @ (image[head] - units[:, head].mean(0))
                total += fitted.values[head, place] * along * vectors[:, place]
        torch.testing.assert_close(logits, 100 * F.normalize(total, dim=0) @ texts.T, atol=1e-3, rtol=1e-3)


def test_a_class_bias_is_the_logarithm_of_a_prior_that_does_not_change(scripts) -> None:
    torch.manual_seed(0)
    logits = 4 * torch.randn(300, 5) + torch.linspace(0, 3, 5)
    bias = scripts[0].class_bias(logits, rounds=1)
    top = logits.topk(2).values
    sure = logits[top[:, 0] - top[:, 1] > 1 / 5]
    columns = torch.stack([sure.softmax(1)[sure.argmax(1) == label].mean(0) for label in range(5)], 1)
    torch.testing.assert_close(columns @ bias.exp(), bias.exp(), atol=2e-3, rtol=0)
    shares = [torch.bincount(found.argmax(1), minlength=5).float().std() for found in (logits - bias, logits)]
    assert shares[0] < shares[1]


def test_methods_on_kept_features_are_those_on_images(tiny, scripts) -> None:
    _, kept, _ = scripts
    backbone = tiny()
    with torch.no_grad():
        features = F.normalize(backbone.image.encode(pixels(torch.float32)), dim=-1)
        texts = F.normalize(backbone.text.encode([TEMPLATE.format(name) for name in NAMES]), dim=-1)
    tower = kept.SimpleNamespace(
        image=kept.FeatureTower(features.shape[1]), text=TextTable(NAMES, texts, "table"), dim=features.shape[1],
        temperature=backbone.temperature, device=torch.device("cpu"), name="kept",
    )  # fmt: skip
    parts = {"train": (features, LABELS), "test": (features.flip(0), LABELS.flip(0))}
    whole = kept.KeptSet("set", tuple(NAMES), tower, parts)
    classes = range(len(NAMES))
    given = kept.Shots(whole, "train", torch.arange(len(LABELS)), classes)
    for name in ("zero-shot", "tip-adapter", "ss-text"):
        method = find_method(name)(backbone, find_method(name).Config())
        method.set_classes(NAMES, TEMPLATE)
        seen = kept.Shots(kept.KeptSet("", tuple(NAMES), backbone, {"train": (pixels(torch.float32), LABELS)}), "train",
                          torch.arange(len(LABELS)), classes)  # fmt: skip
        with torch.no_grad():
            method.before_training(seen)
            expected = method.logits(
                method.encode_image(method.layer_input(seen.images)), method.encode_text(method.classes)
            )
        found, labels = kept.answers(kept.fit(name, whole, given), whole, classes)
        torch.testing.assert_close(found, expected.flip(0), atol=1e-3, rtol=1e-4)
        assert torch.equal(labels, LABELS.flip(0))


def test_new_parts_do_not_overlap_and_luck_is_the_mean_best_of_three(tiny, scripts) -> None:
    _, kept, ledger = scripts
    labels = torch.arange(30) % 3
    whole = kept.KeptSet("", ("a", "b", "c"), None, {"train": (torch.arange(30.0)[:, None], labels)})
    parts = kept.divided(whole, "train", {"train": 4, "val": 2, "test": 4}, seed=1)
    rows = torch.cat([images[:, 0] for images, _ in parts.values()])
    assert rows.sort().values.tolist() == list(range(30))
    for (images, own), count in zip(parts.values(), (4, 2, 4), strict=True):
        assert torch.bincount(own).tolist() == [count] * 3
        assert torch.equal(labels[images[:, 0].long()], own)
    numbers = [3.0, 1.0, 4.0, 1.0, 5.0]
    expected = sum(max(three) for three in combinations(numbers, 3)) / 10
    assert ledger.luck(numbers) == pytest.approx(expected)
    mean, low, high = ledger.interval({"a": [1.0, 2.0, 3.0], "b": [4.0]})
    assert (mean, low >= 1, high <= 4) == (3.0, True, True)
