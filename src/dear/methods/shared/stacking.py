"""Convex fits: weights of scores of images left out (stacking, temperature scaling), and any loss by L-BFGS."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import combinations
from typing import Any

import torch
from torch import Tensor


def stack(parts: Sequence[Tensor], labels: Tensor, counting: Tensor | None = None) -> tuple[Tensor, float]:
    """Weights w >= 0 of scores [images, classes] that minimise the cross entropy of softmax(sum of w * scores).

    Also returns the cross entropy. With one part it is temperature scaling. The scores must be those of images that
    were left out: on images that a method was fitted to, the weights would grow without end. The problem is convex;
    targets are smoothed as by Platt, so that it has a finite solution even if all answers are right. `counting`: how
    much each image counts [images]; only ratios matter (None: alike).
    """
    counting = _mean_one(torch.ones(len(labels)) if counting is None else counting).to(parts[0])
    scores = torch.stack([part - part.mean(1, keepdim=True) for part in parts])  # [parts, images, classes]
    best, least = scores.new_zeros(len(parts)), float("inf")
    telling = [place for place, part in enumerate(scores) if part.any()]
    for size in range(len(telling), 0, -1):
        for chosen in combinations(telling, size):
            weights, value = _newton(scores[list(chosen)], labels, counting)
            if value < least and (weights >= 0).all():
                places = torch.tensor(chosen, device=weights.device)
                best, least = scores.new_zeros(len(parts)).index_put((places,), weights), value
        if least < float("inf"):
            return best, least  # convex: if the free solution is allowed, no part need be left out
    return best.index_fill(0, torch.tensor(0, device=best.device), 1.0), least  # every part alone is below chance


def classes_alike(labels: Tensor) -> Tensor:
    """Weights of images by which all classes count alike: 1 / size of the class, 1 on average; [images]."""
    return _mean_one(1 / torch.bincount(labels)[labels].double())


def _mean_one(counting: Tensor) -> Tensor:
    counting = counting / counting.max()
    return counting / counting.mean()  # exactly 1 if all are equal


def _newton(scores: Tensor, labels: Tensor, counting: Tensor) -> tuple[Tensor, float]:
    """The unconstrained solution by damped Newton steps, and its cross entropy."""
    scale = scores.square().mean((1, 2)).sqrt().clamp(min=1e-12)
    scores = scores / scale[:, None, None]
    count, tiny = scores.shape[1], torch.finfo(scores.dtype).eps ** 0.8
    truth = (1 - 1 / (count + 2)) * scores[:, torch.arange(count), labels]  # the mean score over classes is zero
    weights = scores.new_ones(len(scores)) / len(scores)

    def logits(weights: Tensor) -> Tensor:
        return torch.tensordot(weights, scores, 1)

    def cross_entropy(logits: Tensor, weights: Tensor) -> Tensor:
        return (counting * (logits.logsumexp(1) - weights @ truth)).mean()

    now = logits(weights)
    value = cross_entropy(now, weights)
    for _ in range(50):
        weighted = now.softmax(1) * scores
        means = weighted.sum(2)  # [parts, images]
        gradient = (counting * (means - truth)).mean(1)
        weighted *= counting[:, None]
        hessian = weighted.flatten(1) @ scores.flatten(1).T - (counting * means) @ means.T
        ridge = 1e-9 + 10 * torch.finfo(scores.dtype).eps * hessian.trace() / count  # parts may be multiples
        step = torch.linalg.solve(hessian / count + ridge * torch.eye(len(hessian)).to(hessian), gradient)
        for size in (1.0, 0.5, 0.25, 0.1, 0.03, 0.01, 0.001):
            candidate = weights - size * step
            now = logits(candidate)
            new = cross_entropy(now, candidate)
            if new <= value - 1e-4 * size * (gradient @ step):
                break
        if not value - new > tiny * (1 + value):
            break
        weights, value = candidate, new
    return weights / scale, value.item()


def minimise(values: Sequence[Tensor], loss: Callable[[], Tensor], **settings: Any) -> None:
    """Moves `values` to the minimum of a loss of them by L-BFGS, from their present content on.

    L-BFGS may step to infinity, where a loss falls without end or overflows: then they end at the best finite step.
    """
    optimizer = torch.optim.LBFGS([v.requires_grad_() for v in values], line_search_fn="strong_wolfe", **settings)

    def finite(tensors: Sequence[Tensor]) -> bool:
        return all(bool(tensor.isfinite().all()) for tensor in tensors)

    least, best = float("inf"), [value.detach().clone() for value in values]

    def closure() -> Tensor:
        nonlocal least, best
        optimizer.zero_grad()
        now = loss()
        now.backward()
        if now.isfinite() and now < least and finite(values):
            least, best = now.item(), [value.detach().clone() for value in values]
        return now

    with torch.enable_grad(), suppress(IndexError):  # of the line search of PyTorch, where a loss is not a number
        optimizer.step(closure)
    for value in values:
        value.requires_grad_(False).grad = None
    if not finite([*values, loss()]):
        for value, kept in zip(values, best, strict=True):
            value.copy_(kept)
