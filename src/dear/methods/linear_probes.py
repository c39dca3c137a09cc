"""Linear probes on frozen class features: logistic regression, LP++, ZS-LP and CLAP."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip.layer_input import LayerInput
from dear.clip.text import ClassTexts
from dear.core.metrics import accuracy
from dear.methods.base import LabelledImages, Loss, Method
from dear.methods.recipe import Recipe
from dear.methods.shared.leave_one_out import class_means
from dear.methods.shared.per_class import OnlyTrained, PerClass, frozen_features
from dear.methods.shared.stacking import minimise

_DECAYS = tuple(10.0**power for power in range(-6, 3))


class LinearProbe(OnlyTrained):
    """The weight decay is chosen on the validation images; without any, it is the middle of the range."""

    weight: nn.Parameter  # [trained classes, dim]
    bias: nn.Parameter  # [trained classes]

    def set_sizes(self, classes: int) -> None:
        like = self.backbone.image.like
        self.set_weights(like.new_zeros(classes, self.backbone.dim), like.new_zeros(classes))

    def set_weights(self, weight: Tensor, bias: Tensor) -> None:
        """Sets the parameters, which L-BFGS fits, not the training loop."""
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = nn.Parameter(bias, requires_grad=False)

    def before_training(self, images: LabelledImages) -> None:
        self.trained = images.classes
        self.set_weights(*chosen_logistic(self, images))

    def logits(self, features: Tensor, text: Tensor, inference: str | None = None) -> Tensor:
        rows = self.trained_rows(self.classes.names)
        return features[:, 0] @ self.weight[rows].T + self.bias[rows]


def chosen_logistic(method: Method, images: LabelledImages) -> tuple[Tensor, Tensor]:
    """`logistic` of the class features, with the decay that is best on the validation images, or without any the middle
    of the range."""
    (features, labels), (held_out, truth) = (
        frozen_features(method, batches) for batches in (images.train(), images.val())
    )
    fits = {decay: logistic(features, labels, len(images.classes), decay) for decay in _DECAYS}
    best = _DECAYS[len(_DECAYS) // 2]
    if len(truth):
        best = max(fits, key=lambda decay: accuracy(held_out @ fits[decay][0].T + fits[decay][1], truth))
    return fits[best]


def logistic(images: Tensor, labels: Tensor, classes: int, decay: float) -> tuple[Tensor, Tensor]:
    """Weight [classes, dim], under an L2 penalty, and bias [classes] of a multinomial logistic regression."""
    weight, bias = images.new_zeros(classes, images.shape[1]), images.new_zeros(classes)

    def loss() -> Tensor:
        return F.cross_entropy(images @ weight.T + bias, labels) + decay * weight.square().sum()

    minimise([weight, bias], loss, max_iter=300)
    return weight, bias


_LPPP_EPOCHS, _MULTIPLIER_EVERY = 300, 10  # full batches; every tenth moves the multipliers


class LpPlusPlus(OnlyTrained):
    """logits = f V + b + a_c cos(f, w_c), without a temperature; V, b and a learned from full batches.

    V starts at the sums of the shots of a class, a at 250 times the mean cosine of shots and their texts. Step sizes
    follow from the features: 4 N / lambda_max(F^T F) with momentum for V and b, N / (4 max_c sum_i cos_ic^2) for a.
    Each step of a uses the *sum of all its gradients so far*: the official code never resets them.

    The epoch is the best on the validation images of the draw, the later of equals, as there (with as many validation
    images as shots); without any, the last. Differs: the image as it is (there one random crop), fp32 (there half), one
    template on ImageNet (there the mean of seven).
    """

    weight: Tensor  # [training classes, dim]
    bias: Tensor  # [training classes]
    multiplier: Tensor  # [training classes]

    def set_sizes(self, classes: int) -> None:
        like = self.backbone.image.like
        self.register_buffer("weight", like.new_zeros(classes, self.backbone.dim))
        self.register_buffer("bias", like.new_zeros(classes))
        self.register_buffer("multiplier", like.new_zeros(classes))

    def before_training(self, images: LabelledImages) -> None:
        self.trained = images.classes
        features, labels = frozen_features(self, images.train())
        held_out, truth = frozen_features(self, images.val())
        text = self.encode_text(self.classes)
        cosines = features @ text.T
        weight, bias, multiplier = self._start(features, labels, cosines)
        square = cosines.square().sum(0).max()
        rate = 4 * len(features) / torch.linalg.eigvalsh(features.T @ features)[-1].item()
        optimizer = torch.optim.SGD([weight, bias], rate, momentum=0.9)
        best = -1.0
        for epoch in range(1, _LPPP_EPOCHS + 1):
            optimizer.zero_grad()
            with torch.enable_grad():
                F.cross_entropy(features @ weight.T + bias + multiplier * cosines, labels).backward()
            optimizer.step()
            with torch.no_grad():
                if epoch % _MULTIPLIER_EVERY == 0 and multiplier.grad is not None:
                    multiplier -= len(features) / (4 * square) * multiplier.grad  # summed since the first epoch
                scores = held_out @ weight.T + bias + multiplier * (held_out @ text.T)
                reached = accuracy(scores, truth) if len(truth) else float(epoch)
                if reached >= best:
                    best = reached
                    self.weight, self.bias, self.multiplier = (
                        part.detach().clone() for part in (weight, bias, multiplier)
                    )

    def _start(self, features: Tensor, labels: Tensor, cosines: Tensor) -> list[Tensor]:
        classes, bound = cosines.shape[1], features.shape[1] ** -0.5
        members = F.one_hot(labels, classes).to(features)
        own = (members * cosines).sum(0) / members.sum(0)
        start = 250 * own.nanmean()  # a class without shots has no mean
        bias = torch.empty(classes).uniform_(-bound, bound).to(features)
        return [part.requires_grad_() for part in (members.T @ features, bias, start.expand(classes).clone())]

    def logits(self, features: Tensor, text: Tensor, inference: str | None = None) -> Tensor:
        rows = self.trained_rows(self.classes.names)
        plain = features[:, 0] @ text.T
        return features[:, 0] @ self.weight[rows].T + self.bias[rows] + self.multiplier[rows] * plain


_TABLE_LENGTH = 8.0  # of a class vector from a text table, about that of OpenAI's ViT-B/16; others have their own


class ZsLp(PerClass):
    """logits = tau cos(f, p) with a learned vector p per class, which starts at its text feature, not normalised.

    Only p's direction counts in the logits, but its length decides how far a step turns it. Other classes keep their
    texts. Differs from the official code: the dataset's own template alone (there eight on ImageNet); an epoch is a
    pass over all shots in one of 20 fixed views (there as many batches, drawn from all views together, so that a step
    has 256 rows even of fewer shots).
    """

    recipe = Recipe(
        optimizer="sgd", lr=0.1, weight_decay=0.0, epochs=300, batch=256, drop_last=True, crop=0.08, augment="fixed:20"
    )
    prototypes: nn.Parameter  # [training classes, dim]
    start: Tensor  # the same

    def set_sizes(self, classes: int) -> None:
        self.set_start(self.backbone.image.like.new_zeros(classes, self.backbone.dim))

    def set_start(self, start: Tensor) -> None:
        self.prototypes = nn.Parameter(start.clone())
        self.register_buffer("start", start)

    @torch.no_grad()
    def before_training(self, images: LabelledImages) -> None:
        text = self.backbone.text
        if text.tier == "table":
            start = _TABLE_LENGTH * self.encode_text(self.classes)
        else:
            start = text.encode(self.prompts(images.classes, images.template)[0])
        self.trained = images.classes
        self.set_start(start.to(self.start))

    def encode_text(self, classes: ClassTexts) -> Tensor:
        own = F.normalize(self.prototypes, dim=1)
        return self.own_or(own, classes.names, lambda: classes.frozen.to(own))


class Clap(ZsLp):
    """ZS-LP with a pull to the text, |p - t|^2, the stronger the better zero-shot knows the class.

    A class weighs as much as the mean probability that zero-shot gives to it on its shots. Differs from the official
    code: these shots are the images as they are (there 20 views); a class without shots weighs 1 (there nan).
    """

    weights: Tensor  # of the pull, [training classes]

    def set_start(self, start: Tensor) -> None:
        super().set_start(start)
        self.register_buffer("weights", start.new_ones(len(start)))

    @torch.no_grad()
    def before_training(self, images: LabelledImages) -> None:
        frozen = self.encode_text(self.classes)
        super().before_training(images)
        features, labels = frozen_features(self, images.train())
        known = (self.backbone.temperature * features @ frozen.T).softmax(1)
        means, counts = class_means(known, labels, len(frozen))
        self.weights = torch.where(counts > 0, means.diagonal(), 1).to(self.start)

    def loss(self, x: LayerInput, labels: Tensor) -> Loss:
        loss = super().loss(x, labels)
        pull = (self.weights * (self.prototypes - self.start).square().sum(1)).mean()
        return Loss(loss.total + pull, {**loss.parts, "pull": pull}, loss.logits)
