"""Cheap, strong references on frozen features: zero-shot, a linear probe, and Tip-Adapter's cache."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.backbone import Backbone
from dear.data.dataset import Dataset, Example
from dear.evaluation.methods import Task
from dear.evaluation.metrics import accuracy

PLAIN = "plain"  # the one way of inference of methods that have no other

ENSEMBLE = (
    "itap of a {}.",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)
"""The seven templates that CLIP's authors chose for ImageNet, as in Tip-Adapter and many others."""

_PROBE_WEIGHTS = tuple(10.0**power for power in range(-6, 3))
_TIP_ALPHAS = tuple(0.25 * step for step in range(1, 21))
_TIP_BETAS = (0.5, 1.0, 2.0, 3.0, 4.0, 5.5, 7.0)


def _backbone(task: Task) -> Backbone:
    return task.bench.backbone(task.settings["model"], task.settings["pretrained"])


def _positions(trained: Sequence[str], asked: Sequence[str]) -> list[int | None]:
    """Where each class that is asked for stands among those trained on. Names alone would not do: ImageNet has two
    that it gives to two classes each."""
    if tuple(trained) == tuple(asked):
        return list(range(len(asked)))
    place = {name: i for i, name in enumerate(trained)}
    return [place.get(name) for name in asked]


class ZeroShot:
    """Class feature against the text features of the classes, averaged over templates."""

    parameters, fusion = 0, None

    def __init__(self, task: Task, templates: Sequence[str] = ()) -> None:
        self.bench, self.backbone, self.templates = task.bench, _backbone(task), templates

    @torch.no_grad()
    def text(self, data: Dataset) -> Tensor:
        """[classes, dim], normalised."""
        templates = self.templates or (data.template,)
        encoded = [self.backbone.text.encode([t.format(name) for name in data.classes]) for t in templates]
        return F.normalize(torch.stack([F.normalize(features, dim=-1) for features in encoded]).mean(0), dim=-1)

    def logits(self, data: Dataset, examples: Sequence[Example]) -> dict[str, Tensor]:
        images = self.bench.features(self.backbone, examples, data.name)
        return {PLAIN: (self.backbone.temperature * images @ self.text(data).T).cpu()}


def zero_shot(task: Task) -> ZeroShot:
    return ZeroShot(task)


def zero_shot_ensemble(task: Task) -> ZeroShot:
    """The dataset's own template and CLIP's seven for ImageNet."""
    return ZeroShot(task, (task.data.template, *ENSEMBLE))


class LinearProbe:
    """Logistic regression on class features; its weight decay is chosen on the validation images (CLIP, A.3).

    Without validation images it is the middle of the range. It can only answer classes it was trained on.
    """

    fusion = None

    def __init__(self, task: Task) -> None:
        self.bench, self.backbone = task.bench, _backbone(task)
        self.classes = task.data.classes
        images = self.bench.features(self.backbone, task.data.train, "probe")
        labels = torch.tensor([e.label for e in task.data.train], device=images.device)
        fitted = {decay: _logistic(images, labels, len(self.classes), decay) for decay in _PROBE_WEIGHTS}
        chosen = _PROBE_WEIGHTS[len(_PROBE_WEIGHTS) // 2]
        if task.data.val:
            seen = self.bench.features(self.backbone, task.data.val, "probe")
            truth = torch.tensor([e.label for e in task.data.val])
            chosen = max(
                fitted, key=lambda decay: accuracy((seen @ fitted[decay][0].T + fitted[decay][1]).cpu(), truth)
            )
        self.weight, self.bias = fitted[chosen]
        self.parameters = self.weight.numel() + self.bias.numel()

    def logits(self, data: Dataset, examples: Sequence[Example]) -> dict[str, Tensor]:
        rows = _positions(self.classes, data.classes)
        if None in rows:
            return {}
        images = self.bench.features(self.backbone, examples, data.name)
        return {PLAIN: (images @ self.weight[rows].T + self.bias[rows]).cpu()}


def linear_probe(task: Task) -> LinearProbe:
    return LinearProbe(task)


def _logistic(images: Tensor, labels: Tensor, classes: int, decay: float) -> tuple[Tensor, Tensor]:
    """Weight [classes, dim] and bias [classes] of a multinomial logistic regression, its weight under an L2 penalty."""
    weight = torch.zeros(classes, images.shape[1], device=images.device, requires_grad=True)
    bias = torch.zeros(classes, device=images.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=300, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(images @ weight.T + bias, labels) + decay * weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return weight.detach(), bias.detach()


class TipAdapter:
    """Zero-shot plus a cache of the few-shot features (Zhang et al. 2022, without training).

    logits = tau f W + alpha exp(-beta (1 - f F)) L; alpha and beta are chosen on the validation images, as there.
    Classes that are not in the cache get the zero-shot logits alone.
    """

    parameters, fusion = 0, None

    def __init__(self, task: Task) -> None:
        self.zero_shot = ZeroShot(task)
        self.keys = task.bench.features(self.zero_shot.backbone, task.data.train, "cache")  # [shots, dim]
        self.classes, self.labels = task.data.classes, [e.label for e in task.data.train]
        self.alpha, self.beta = 1.0, 5.5  # the published start
        if task.data.val:
            truth = torch.tensor([e.label for e in task.data.val])
            plain, similar, values = self._parts(task.data, task.data.val)
            grid = [(alpha, beta) for beta in _TIP_BETAS for alpha in _TIP_ALPHAS]
            self.alpha, self.beta = max(
                grid, key=lambda ab: accuracy(plain + ab[0] * (-ab[1] * (1 - similar)).exp() @ values, truth)
            )

    def logits(self, data: Dataset, examples: Sequence[Example]) -> dict[str, Tensor]:
        plain, similar, values = self._parts(data, examples)
        return {PLAIN: plain + self.alpha * (-self.beta * (1 - similar)).exp() @ values}

    def _parts(self, data: Dataset, examples: Sequence[Example]) -> tuple[Tensor, Tensor, Tensor]:
        """Zero-shot logits [images, classes], similarity to the cache [images, shots], its labels [shots, classes]."""
        images = self.zero_shot.bench.features(self.zero_shot.backbone, examples, data.name)
        asked = _positions(self.classes, data.classes)
        values = torch.tensor([[float(label == position) for position in asked] for label in self.labels])
        return self.zero_shot.logits(data, examples)["plain"], (images @ self.keys.T).cpu(), values


def tip_adapter(task: Task) -> TipAdapter:
    return TipAdapter(task)
