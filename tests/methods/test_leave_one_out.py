"""Leave-one-out in closed form equals fits without each image, and stacked weights are the best."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dear.methods.shared.closed_form import CorrectionHead
from dear.methods.shared.leave_one_out import Gaussians, KernelRidge, TextAndMeans, class_means, rounds_of
from dear.methods.shared.stacking import stack

CLASSES, DIM = 5, 12


@pytest.fixture
def shots() -> tuple[Tensor, Tensor, Tensor]:
    """Features, labels (classes of 9, 8, 7, 5 and one image) and texts."""
    torch.manual_seed(0)
    labels = torch.repeat_interleave(torch.arange(CLASSES), torch.tensor([9, 8, 7, 5, 1]))[torch.randperm(30)]
    text = F.normalize(torch.randn(CLASSES, DIM, dtype=torch.float64), dim=1)
    features = F.normalize(text[labels] + 0.5 * torch.randn(30, DIM, dtype=torch.float64), dim=1)
    return features, labels, text


def together(i: int, rounds: Tensor, *parts: Tensor) -> list[Tensor]:
    """The parts without the round of image i."""
    return [part[rounds != rounds[i]] for part in parts] if rounds[i] else without(i, *parts)


def without(i: int, *parts: Tensor) -> list[Tensor]:
    keep = torch.arange(len(parts[0])) != i
    return [part[keep] for part in parts]


@pytest.mark.parametrize("shrink", [0.1, 3.0])
@pytest.mark.parametrize("spread", [0.0, None])
def test_gaussians_equal_refits(shots, shrink: float, spread: float | None) -> None:
    features, labels, _ = shots
    whole = Gaussians(features, labels, CLASSES)
    spread = whole.spread(shrink) if spread is None else spread
    computed = whole.left_out(shrink, torch.arange(30), spread)
    for i, x in enumerate(features):
        weight, bias = Gaussians(*without(i, features, labels), CLASSES).weights(shrink, spread)
        torch.testing.assert_close(computed[i], x @ weight.T + bias, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(whole.left_out(shrink, torch.tensor([7, 3]), spread), computed[[7, 3]])


def test_scores_of_gaussians_do_not_depend_on_the_number_of_images(shots) -> None:
    features, labels, _ = shots
    whole, distances = Gaussians(features, labels, CLASSES), []
    for i, (x, c) in enumerate(zip(features, labels, strict=True)):
        rest, others = without(i, features, labels)
        n = int((others == c).sum())
        means, counts = class_means(rest, others, CLASSES)
        scatter = (rest - means[others]).T @ (rest - means[others])
        shrunk = scatter + scatter.trace() / DIM * torch.eye(DIM).double()
        precision = (29 - int((counts > 0).sum())) * torch.linalg.inv(shrunk)
        gap = x - means[c]
        distances += [n / (n + 1) * gap @ precision @ gap] if n else []
    assert whole.spread(1.0) == pytest.approx(torch.stack(distances).mean().item(), rel=1e-10)
    (plain, without_it), (again, bias) = whole.weights(1.0, 0.0), whole.weights(1.0)
    gained = whole.spread(1.0) / 2 / torch.bincount(labels).double()
    torch.testing.assert_close(again, plain)
    torch.testing.assert_close(bias - without_it, gained - gained.mean())
    equal = Gaussians(features.repeat(2, 1), torch.arange(60) % CLASSES, CLASSES)
    torch.testing.assert_close(equal.weights(1.0), equal.weights(1.0, 0.0))  # as many images of each class
    noise = torch.randn(4000, DIM, dtype=torch.float64)
    of_few = torch.arange(4000) % 1000  # 1000 classes of four images and equal means
    fit = Gaussians(noise, of_few, 1000)
    own = fit.left_out(1.0, torch.arange(4000)).gather(1, of_few[:, None])
    raw = fit.left_out(1.0, torch.arange(4000), 0.0).gather(1, of_few[:, None])
    assert abs(own.mean()) < 0.1 < -raw.mean(), "the own class is not at a disadvantage"


def test_one_image_per_class_has_no_covariance(shots) -> None:
    features, _, _ = shots
    fit = Gaussians(features[:CLASSES], torch.arange(CLASSES), CLASSES)
    assert not fit.weights(1.0)[0].any()
    assert not fit.left_out(1.0, torch.arange(CLASSES)).any()


@pytest.mark.parametrize(("beta", "ridge"), [(0.5, 0.1), (5.0, 0.01)])
def test_kernel_ridge_equals_its_formula_and_refits(shots, beta: float, ridge: float) -> None:
    features, labels, text = shots
    everything = torch.arange(30)
    targets = F.one_hot(labels, CLASSES) - features @ text.T
    cosines = features @ features.T
    rounds = rounds_of(features, labels)
    assert rounds.bincount().tolist() == [10, *[3] * 5, 2, 2, 1]  # classes of nine images and of one: each alone
    fit = KernelRidge(cosines, targets, everything, beta, rounds)
    kernel = torch.exp(-beta * (1 - cosines))
    expected = torch.linalg.solve(kernel + ridge * torch.eye(30), targets)
    torch.testing.assert_close(fit.kernel(cosines) @ fit.weights(ridge), kernel @ expected)
    computed = fit.left_out(ridge, everything)
    for i in range(30):
        rest, y = together(i, rounds, features, targets)
        again = KernelRidge(rest @ rest.T, y, torch.arange(len(rest)), beta)
        prediction = again.kernel(features[i : i + 1] @ rest.T) @ again.weights(ridge)
        torch.testing.assert_close(computed[i], prediction[0], rtol=1e-8, atol=1e-8)


def test_fewer_landmarks_are_least_squares_in_their_span(shots) -> None:
    features, labels, _ = shots
    chosen, targets = torch.tensor([1, 4, 8, 20]), F.one_hot(labels, CLASSES).double()
    cosines = features @ features[chosen].T
    fit = KernelRidge(cosines, targets, chosen, 1.0)
    columns, inner = fit.kernel(cosines), fit.kernel(cosines[chosen])
    expected = torch.linalg.solve(columns.T @ columns + 0.1 * inner, columns.T @ targets)
    torch.testing.assert_close(fit.weights(0.1), expected, rtol=1e-6, atol=1e-8)
    rest = torch.arange(30) != 2
    again = torch.linalg.solve(columns[rest].T @ columns[rest] + 0.1 * inner, columns[rest].T @ targets[rest])
    torch.testing.assert_close(fit.left_out(0.1, torch.tensor([2]))[0], columns[2] @ again)


@pytest.mark.parametrize(("strength", "prior"), [(0.5, 0.0), (2.0, 4.0)])
def test_text_and_means_equal_refits(shots, strength: float, prior: float) -> None:
    features, labels, text = shots
    rounds = rounds_of(features, labels)
    fit = TextAndMeans(features, labels, text, rounds)
    computed = fit.left_out(strength, prior, torch.arange(30))
    for i, x in enumerate(features):
        again = TextAndMeans(*together(i, rounds, features, labels), text).vectors(strength, prior)
        torch.testing.assert_close(computed[i], again @ x)
    vectors = fit.vectors(strength, prior)
    for c, n in enumerate(torch.bincount(labels)):
        expected = text[c] + strength * n / (n + prior) * features[labels == c].mean(0)
        torch.testing.assert_close(vectors[c], expected / expected.norm())
    assert torch.equal(fit.vectors(0.0, prior), F.normalize(text, dim=1))


def cross_entropy(weights: Tensor, parts: list[Tensor], labels: Tensor) -> Tensor:
    """Cross entropy with Platt's smoothing, from the definition."""
    logits = sum(w * part for w, part in zip(weights, parts, strict=True))
    return F.cross_entropy(logits, labels, label_smoothing=1 / (len(labels) + 2))


def test_stacked_weights_are_the_best(shots) -> None:
    features, labels, text = shots
    parts = [10 * features @ text.T, torch.randn(30, CLASSES, dtype=torch.float64) + 2 * F.one_hot(labels, CLASSES)]
    weights, value = stack(parts, labels)
    assert (weights > 0).all()
    assert value == pytest.approx(cross_entropy(weights, parts, labels).item(), abs=1e-9)
    for step in torch.randn(20, 2, dtype=torch.float64) * 0.01:
        assert cross_entropy(weights + step, parts, labels) > value
    misleading = [parts[0], -parts[1]]
    weights, value = stack(misleading, labels)
    assert weights[1] == 0
    assert weights[0] == pytest.approx(stack(parts[:1], labels)[0].item())
    assert cross_entropy(weights + torch.tensor([0, 0.01]), misleading, labels) > value
    certain, _ = stack([F.one_hot(labels, CLASSES).double()], labels)
    assert certain.isfinite().all()
    assert certain > 3
    assert stack([-F.one_hot(labels, CLASSES).double()], labels)[0].tolist() == [1.0]


def test_images_may_count_differently(shots) -> None:
    features, labels, text = shots
    parts = [10 * features @ text.T, torch.randn(30, CLASSES, dtype=torch.float64) + F.one_hot(labels, CLASSES)]
    assert all(
        torch.equal(stack(parts, labels, torch.full((30,), count))[0], stack(parts, labels)[0]) for count in (0.3, 7.0)
    )
    counting = torch.rand(30, dtype=torch.float64) ** 3
    found, value = stack(parts, labels, counting)
    assert (found > 0).all()
    direct = torch.ones(2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([direct], max_iter=200, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        logits = sum(w * part for w, part in zip(direct, parts, strict=True))
        each = F.cross_entropy(logits, labels, label_smoothing=1 / 32, reduction="none")
        mean = (counting * each).sum() / counting.sum()
        mean.backward()
        return mean

    optimizer.step(loss)
    torch.testing.assert_close(found, direct.detach(), rtol=1e-5, atol=1e-7)
    assert value == pytest.approx(loss().item(), abs=1e-9)
    assert not torch.allclose(found, stack(parts, labels)[0], rtol=1e-2)


class NoHead(CorrectionHead):
    def set_sizes(self, classes: int, stored: int) -> None: ...

    fit = correction = set_sizes


def test_large_classes_do_not_choose_alone() -> None:
    labels = torch.tensor([0] * 12 + [1] * 3 + [2])
    truth, is_large = 2.0 * F.one_hot(labels, 3), (labels == 0)[:, None]
    scores = {"large": torch.where(is_large, truth, -truth), "small": torch.where(is_large, -truth / 4, truth)}
    head = NoHead(4, 1.0, torch.zeros(1))
    choices = {name: lambda rows, x=x: [x[rows]] for name, x in scores.items()}
    assert head.choose(choices, labels, "large", [1.0]) == "small"
    rows = labels < 2  # leave-one-out says nothing of a class with one image
    expected, _ = stack([scores["small"][rows]], labels[rows], torch.tensor([1.0] * 12 + [4.0] * 3))
    torch.testing.assert_close(head.mix, expected.expand(2))
