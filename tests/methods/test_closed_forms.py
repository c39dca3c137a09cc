"""GDA, ProKeR and SS-Text equal their published forms, written slowly, and the identities in their maths."""

import naive_text
import pytest
import torch
from naive_text import LABELS, NAMES, TEMPLATE, make, pixels
from naive_words import LabelledImages
from torch import Tensor
from torch.nn import functional as F

from dear.methods import closed_forms
from dear.methods.base import Method
from dear.methods.shared import leave_one_out
from dear.methods.shared.leave_one_out import Gaussians

DIM = 24
CLOSED = ("gda", "proker", "ss-text")


def labelled(copies: int = 3, val: Tensor | None = None) -> LabelledImages:
    """So many noisy copies of each of the eight images, or one image of each class."""
    images = pixels().repeat(copies, 1, 1, 1)
    if copies == 1:
        return LabelledImages(images[:5], LABELS[:5], 1, val)
    return LabelledImages(images + 0.5 * torch.randn_like(images), LABELS.repeat(copies), copies, val)


def fitted(tiny, name: str, copies: int = 3, **settings) -> tuple[Method, Tensor, Tensor, Tensor]:
    """The method, and features, labels and zero-shot cosines of its images, computed by OpenCLIP."""
    method, images = make(tiny, name, **settings), labelled(copies)
    method.before_training(images)
    features = naive_text.frozen_image(method.backbone.model, images.images)
    return method, features, images.labels, features @ naive_text.template_text(method).T


def answers(method: Method, features: Tensor) -> Tensor:
    return method.logits(features[:, None], method.encode_text(method.classes))


def seen(method: Method) -> Tensor:
    return naive_text.frozen_image(method.backbone.model, pixels().flip(3))


def zero_shot(method: Method, features: Tensor) -> Tensor:
    return method.backbone.model.logit_scale.exp() * features @ method.encode_text(method.classes).T


def naive_gda(features: Tensor, labels: Tensor, x: Tensor) -> Tensor:
    """The official few-shot form without zero-shot and alpha."""
    means = torch.stack([features[labels == c].mean(0) for c in range(len(NAMES))])
    spread = torch.cat([features[labels == c] - means[c] for c in range(len(NAMES))])
    covariance = spread.T.cov()
    precision = DIM * torch.linalg.pinv((len(spread) - 1) * covariance + covariance.trace() * torch.eye(DIM))
    return torch.stack([x @ precision @ mean - mean @ precision @ mean / 2 for mean in means], 1)


def test_gda_is_the_published_form(tiny, monkeypatch) -> None:
    shots = 24
    monkeypatch.setattr(closed_forms, "SHRINKS", (DIM / (shots - 1),))  # what the official ridge is in our units
    method, features, labels, _ = fitted(tiny, "gda")
    a, b = method.head.mix
    x = seen(method)
    alpha = b * (shots - len(NAMES)) / DIM
    own = Gaussians(features, labels, len(NAMES)).spread(DIM / (shots - 1)) / (2 * torch.bincount(labels))
    expected = a * zero_shot(method, x) + alpha * naive_gda(features, labels, x) + b * own
    computed = answers(method, x)
    assert b > 0
    torch.testing.assert_close(computed.softmax(1), expected.softmax(1))  # equal up to a constant per image


def test_gda_guesses_novel_classes_as_published(tiny) -> None:
    method, features, _, _ = fitted(tiny, "gda", neighbours=6)
    novel, x = ["whale", "tree", "house"], seen(method)
    method.set_classes(novel, TEMPLATE)
    text = method.encode_text(method.classes)
    means, precisions = [], []
    for t in text:
        near = features[torch.topk(t @ features.T, k=6)[1]]
        means.append((near.sum(0) + 1.5 * t) / 7.5)  # there 64 features and 16 times the text
        covariance = (near - t).T @ (near - t) / 5
        precisions.append(DIM * torch.linalg.pinv(5 * covariance + covariance.trace() * torch.eye(DIM)))
    precision = torch.stack(precisions).mean(0)
    scores = torch.stack([x @ precision @ mean - mean @ precision @ mean / 2 for mean in means], 1)
    a, b = method.head.mix
    torch.testing.assert_close(answers(method, x), a * zero_shot(method, x) + b * scores)


def test_proker_is_the_published_form(tiny, monkeypatch) -> None:
    monkeypatch.setattr(closed_forms, "_BETAS", (2.0,))
    monkeypatch.setattr(closed_forms, "_RIDGES", (0.3,))
    method, features, labels, cosines = fitted(tiny, "proker")
    method.head.mix = method.head.mix.new_tensor([1.0, 0.3]) * torch.tensor([1.0, method.backbone.temperature])
    x = seen(method)
    kernel = torch.exp(-2.0 * (1 - features @ features.T))
    alpha = torch.linalg.solve(kernel / 0.3 + torch.eye(24), F.one_hot(labels, len(NAMES)) - cosines)
    expected = x @ method.encode_text(method.classes).T + torch.exp(-2.0 * (1 - x @ features.T)) @ alpha
    torch.testing.assert_close(answers(method, x), method.backbone.temperature * expected)


def test_ss_text_with_a_large_prior_is_the_published_form(tiny, monkeypatch) -> None:
    method = make(tiny, "ss-text")
    tau, large = float(method.backbone.temperature), 1e9  # g n / (n + k) is then tau n
    monkeypatch.setattr(closed_forms, "_STRENGTHS", (tau * large,))
    monkeypatch.setattr(closed_forms, "_PRIORS", (large,))
    method, features, labels, _ = fitted(tiny, "ss-text")
    x, text = seen(method), method.encode_text(method.classes)
    vectors = torch.stack([text[c] + tau * features[labels == c].sum(0) for c in range(len(NAMES))])
    expected = method.head.mix[0] * tau * F.cosine_similarity(x[:, None], vectors[None], dim=-1)
    torch.testing.assert_close(answers(method, x), expected)
    assert method.head.mix[0] == method.head.mix[1]


@pytest.mark.parametrize("name", CLOSED)
def test_left_out_logits_are_those_of_a_fit_without_the_image(tiny, name: str, monkeypatch) -> None:
    monkeypatch.setattr(closed_forms, "SHRINKS", (1.0,))
    monkeypatch.setattr(closed_forms, "_BETAS", (1.0,))
    monkeypatch.setattr(closed_forms, "_RIDGES", (0.1,))
    monkeypatch.setattr(closed_forms, "_STRENGTHS", (0.5,))
    monkeypatch.setattr(closed_forms, "_PRIORS", (1.0,))
    monkeypatch.setattr(leave_one_out.Gaussians, "spread", lambda self, shrink: 3.0)
    monkeypatch.setattr(leave_one_out, "_SMALL", 3)
    method, features, labels, _ = fitted(tiny, name)
    left_out, rounds = method.head.left_out, leave_one_out.rounds_of(features, labels)
    assert rounds.bincount().tolist() == [18, 2, 2, 2]
    assert left_out.shape == (24, len(NAMES))
    mix = method.head.mix.clone()
    for i in (*range(8), 20):
        alone = name == "gda" or rounds[i] == 0
        keep = torch.arange(24) != i if alone else rounds != rounds[i]
        method.head.fit(features[keep], labels[keep], method.encode_text(method.classes))
        method.head.mix = mix
        again = answers(method, features[i : i + 1])[0].softmax(0)
        torch.testing.assert_close(left_out[i].softmax(0), again.float(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", CLOSED)
def test_answers_follow_the_names_and_other_classes_are_zero_shot(tiny, name: str) -> None:
    method, features, labels, _ = fitted(tiny, name)
    x = seen(method)
    whole = answers(method, x)
    assert (whole.argmax(1) == LABELS).double().mean() > (zero_shot(method, x).argmax(1) == LABELS).double().mean()
    method.set_classes(NAMES[::-1], TEMPLATE)
    torch.testing.assert_close(answers(method, x), whole.flip(1))
    method.set_classes(("whale", *NAMES), TEMPLATE)
    mixed = answers(method, x)
    torch.testing.assert_close(mixed[:, 1:], whole)
    plain, best = zero_shot(method, x), whole.argmax(1, keepdim=True)
    credit = (whole - plain[:, 1:]).gather(1, best)[:, 0]  # of the best of the other names, beyond its plain logit
    torch.testing.assert_close(mixed[:, 0], plain[:, 0] + credit + method.head.offsets[1])  # one name of six
    method.set_classes(["whale", "tree"], TEMPLATE)
    torch.testing.assert_close(answers(method, x), zero_shot(method, x))
    method.set_classes(NAMES, TEMPLATE)
    order = torch.randperm(24)
    method.head.fit(features[order], labels[order], method.encode_text(method.classes))
    torch.testing.assert_close(answers(method, x), whole, rtol=1e-6, atol=1e-6)  # the order of images does not matter


def test_with_one_image_per_class_nothing_is_chosen(tiny) -> None:
    method, *_ = fitted(tiny, "gda", copies=1)
    torch.testing.assert_close(answers(method, seen(method)), zero_shot(method, seen(method)))
    method, features, labels, cosines = fitted(tiny, "proker", copies=1)
    x, kernel = seen(method), torch.exp(-3 * (1 - features @ features.T))
    alpha = torch.linalg.solve(kernel / 0.05 + torch.eye(5), F.one_hot(labels, len(NAMES)) - cosines)
    expected = x @ method.encode_text(method.classes).T + torch.exp(-3 * (1 - x @ features.T)) @ alpha
    torch.testing.assert_close(answers(method, x), method.backbone.temperature * expected)
    method, features, *_ = fitted(tiny, "ss-text", copies=1)
    vectors = F.normalize(method.encode_text(method.classes) + 0.25 * features, dim=1)
    torch.testing.assert_close(answers(method, x), method.backbone.temperature * x @ vectors.T)


# --- linear probes with texts --------------------------------------------------------------------------------


def test_lp_plus_plus_equals_its_loop_with_gradients_by_hand(tiny) -> None:
    torch.manual_seed(9)
    method, features, labels, cosines = fitted(tiny, "lp-plus-plus")
    torch.manual_seed(9)
    make(tiny, "lp-plus-plus")
    labelled()  # the same random numbers before the bias
    bound = DIM**-0.5
    bias = torch.empty(len(NAMES)).uniform_(-bound, bound).double()
    truth = F.one_hot(labels, len(NAMES)).double()
    weight = torch.stack([features[labels == c].sum(0) for c in range(len(NAMES))])
    own = torch.stack([cosines[labels == c, c].mean() for c in range(len(NAMES))])
    multiplier = 250 * own.mean() * torch.ones(len(NAMES), dtype=torch.float64)
    rate = 4 * 24 / torch.linalg.eigvalsh(features.T @ features).max()
    slow = 24 / (4 * max((cosines[:, c] ** 2).sum() for c in range(len(NAMES))))
    speed, bias_speed, summed = torch.zeros_like(weight), torch.zeros_like(bias), torch.zeros_like(multiplier)
    for epoch in range(300):
        error = (features @ weight.T + bias + multiplier * cosines).softmax(1) - truth
        summed += (error * cosines).mean(0)
        speed = 0.9 * speed + error.T @ features / 24
        bias_speed = 0.9 * bias_speed + error.mean(0)
        weight, bias = weight - rate * speed, bias - rate * bias_speed
        if epoch % 10 == 9:
            multiplier = multiplier - slow * summed
    x = seen(method)
    expected = x @ weight.T + bias + multiplier * (x @ method.encode_text(method.classes).T)
    torch.testing.assert_close(answers(method, x), expected, rtol=1e-6, atol=1e-6)
    assert not method.can_answer(["whale"])


def test_lp_plus_plus_takes_the_best_epoch_on_validation_images(tiny, monkeypatch) -> None:
    method, images, reached = make(tiny, "lp-plus-plus"), labelled(val=pixels().flip(3)), []
    monkeypatch.setattr("dear.methods.linear_probes.accuracy", lambda *_: reached.append(len(reached)) or -len(reached))
    method.before_training(images)
    first = method.weight.clone()
    monkeypatch.setattr("dear.methods.linear_probes._LPPP_EPOCHS", 1)
    torch.manual_seed(5)
    method.before_training(images)
    assert len(reached) == 301
    torch.testing.assert_close(method.weight, first, rtol=1e-3, atol=1e-3)  # but for the random bias


def test_of_equal_epochs_lp_plus_plus_takes_the_last(tiny, monkeypatch) -> None:
    monkeypatch.setattr("dear.methods.linear_probes.accuracy", lambda *_: 50.0)
    weights = []
    for images in (labelled(), labelled(val=pixels().flip(3))):
        method = make(tiny, "lp-plus-plus")
        torch.manual_seed(5)
        method.before_training(images)
        weights.append(method.weight)
    assert torch.equal(*weights)


def test_a_probe_from_texts_starts_as_zero_shot_and_its_length_does_not_matter(tiny) -> None:
    for name in ("zs-lp", "clap"):
        method, *_ = fitted(tiny, name)
        x = seen(method)
        torch.testing.assert_close(answers(method, x), zero_shot(make(tiny, "zero-shot"), x))
        torch.manual_seed(0)
        with torch.no_grad():
            method.prototypes += torch.randn_like(method.prototypes)
            before = answers(method, x)
            method.prototypes *= 3
        torch.testing.assert_close(answers(method, x), before)
        assert not torch.allclose(before, zero_shot(make(tiny, "zero-shot"), x))
        method.set_classes(("whale", *NAMES[::-1]), TEMPLATE)
        torch.testing.assert_close(answers(method, x)[:, 1:], before.flip(1))


def test_clap_pulls_known_classes_more(tiny) -> None:
    method, _, labels, cosines = fitted(tiny, "clap")
    known = (method.backbone.temperature * cosines).softmax(1)
    for c, weight in enumerate(method.weights):
        torch.testing.assert_close(weight, known[labels == c, c].mean())
    assert method.loss(method.layer_input(pixels()), LABELS).parts["pull"] == 0
