"""Whatever is labelled, closed forms and probes fit: few images, one, equal ones, constant features, many classes."""

import naive_text
import numpy as np
import pytest
import torch
from naive_text import NAMES, make, pixels
from naive_words import LabelledImages
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

import dear
from dear.methods.closed_forms import GdaHead, ProKeRHead, SSTextHead
from dear.methods.registry import CLOSED_FORMS, QUICK
from dear.methods.shared.closed_form import CorrectionHead
from dear.methods.shared.leave_one_out import Gaussians
from dear.methods.shared.stacking import minimise
from dear.trials.curve import learning_curve
from dear.trials.selection import select

HEADS = {"gda": GdaHead, "proker": ProKeRHead, "ss-text": SSTextHead}
COUNTS = [
    [1, 1], [1, 2], [2, 1], [2, 2], [1, 3], [3, 3, 1], [0, 2], [1, 0, 3], [2] * 5, [9, 1], [9, 2], [1, 2, 3] * 8,
    [*[0, 1] * 400, *[2] * 200],
]  # fmt: skip
KINDS = ("drawn", "equal in a class", "in pairs", "constant", "without texts")


def drawn(kind: str, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Features and texts."""
    text = F.normalize(torch.randn(classes, 16), dim=1)
    features = F.normalize(text[labels] + 0.5 * torch.randn(len(labels), 16), dim=1)
    if kind == "equal in a class":
        features = text[labels]
    if kind == "in pairs":
        features = features[torch.arange(len(labels)) // 2 * 2]
    if kind == "constant":
        features = text[:1].repeat(len(labels), 1)
    return features, torch.zeros_like(text) if kind == "without texts" else text


@pytest.mark.parametrize("counts", COUNTS, ids=lambda counts: f"{len(counts)}-{sum(counts)}")
@pytest.mark.parametrize("kind", KINDS)
def test_closed_forms_fit_and_are_compared(kind: str, counts: list[int]) -> None:
    torch.manual_seed(sum(counts))
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    features, text = drawn(kind, labels, len(counts))
    names, left_out = [str(label) for label in range(len(counts))], {}
    for name, kind_of_head in HEADS.items():
        head: CorrectionHead = kind_of_head(16, 100.0, features)
        head.fit(features, labels, text)
        assert head.left_out is not None
        answers = head(F.normalize(torch.randn(3, 16), dim=1), text)
        assert answers.isfinite().all()
        assert answers.softmax(1).isfinite().all()
        assert head.left_out.isfinite().all()
        left_out[name] = head.left_out, ""
    if len(labels.unique()) < len(labels):
        assert select(left_out, labels, names).chosen in HEADS
        if len(counts) < 100:
            assert learning_curve(head, features, labels, text, names)[1].endswith(".")


@pytest.mark.parametrize("counts", [counts for counts in COUNTS if len(counts) < 100], ids=str)
@pytest.mark.parametrize("kind", KINDS[:4])
def test_gaussians_without_an_image_are_a_refit_or_nothing(kind: str, counts: list[int]) -> None:
    torch.manual_seed(sum(counts))
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    features = drawn(kind, labels, len(counts))[0].double()
    left_out = Gaussians(features, labels, len(counts)).left_out(0.1, torch.arange(len(labels)), 2.0)
    for i, x in enumerate(features):
        others = torch.arange(len(labels)) != i
        weight, bias = Gaussians(features[others], labels[others], len(counts)).weights(0.1, 2.0)
        torch.testing.assert_close(left_out[i], x @ weight.T + bias, rtol=1e-8, atol=1e-7)


@pytest.mark.parametrize("name", [*CLOSED_FORMS, *(name for name in QUICK if name != "prolip"), "zs-lp"])
@pytest.mark.parametrize("rows", [[0], [0, 1], [0, 1, 1], [0, 0, 0, 0], [0, 1, 2, 3, 4, 5]], ids=str)
def test_methods_fit_to_any_few_images(tiny, name: str, rows: list[int]) -> None:
    method = make(tiny, name)
    method.before_training(LabelledImages(pixels()[rows], naive_text.LABELS[: len(rows)], 1, None))
    features = naive_text.frozen_image(method.backbone.model, pixels())[:, None]
    assert method.logits(features, method.encode_text(method.classes)).softmax(1).isfinite().all()
    assert method.logits(features, method.encode_text(method.classes)).shape == (8, len(NAMES))


LOSSES = {
    "falls without end": lambda x: -x.sum(),
    "overflows": lambda x: -x.exp().exp().sum(),
    "ends in infinity": lambda x: torch.where(x > 3, float("inf"), -x).sum(),
    "ends in no number": lambda x: torch.where(x > 3, float("nan"), -x).sum(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_minimum_at_infinity_is_the_best_finite_step(name: str) -> None:
    x, loss = torch.zeros(3), LOSSES[name]
    minimise([x], lambda: loss(x), max_iter=100)
    assert x.isfinite().all()
    assert loss(x).isfinite()
    assert loss(x) <= loss(torch.zeros(3))


@pytest.mark.filterwarnings("ignore::dear.core.errors.DearWarning")
@pytest.mark.parametrize("labels", [["red", "blue", "blue"], ["red", "red", "blue"]], ids=str)
@pytest.mark.parametrize("equal", [True, False], ids=["equal", "drawn"])
def test_one_image_in_one_of_two_classes_is_fitted(labels: list[str], equal: bool) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (3, 64, 64, 3), dtype=np.uint8)
    images = [Image.fromarray(noise[0 if equal else i]) for i in range(3)]
    fitted = dear.fit(dear.dataset(images, labels), model="dear-mini")
    assert all(0 <= answer.probability <= 1 for answer in fitted.predict(images))
