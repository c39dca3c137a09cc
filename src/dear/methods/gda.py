"""GDA: Gaussian discriminant analysis added to zero-shot, without training (Wang et al., ICLR 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from dear.core.config import Config as Settings
from dear.core.config import setting
from dear.core.runtime import with_fp64
from dear.methods.base import LabelledImages
from dear.methods.recipe import Recipe
from dear.methods.shared.closed_form import ClosedForm, Head
from dear.methods.shared.leave_one_out import Gaussians
from dear.methods.shared.per_class import frozen_features

SHRINKS = (0.01, 0.1, 1.0, 10.0, 100.0)


@dataclass(frozen=True)
class GdaConfig(Settings):
    """Classes that have no images."""

    neighbours: int = setting(
        0, "guess mean and covariance of novel classes from this number of training images; 0: zero-shot", low=0
    )


class GdaHead(Head):
    weight: Tensor  # [training classes, dim]
    bias: Tensor  # [training classes]

    def set_sizes(self, classes: int, stored: int) -> None:
        self.register_buffer("weight", self.mix.new_zeros(classes, self.dim))
        self.register_buffer("bias", self.mix.new_zeros(classes))

    def fit(self, features: Tensor, labels: Tensor, text: Tensor) -> None:
        gaussians, plain = Gaussians(features, labels, len(text)), self.zero_shot(features, text)

        def parts(shrink: float, rows: Tensor) -> list[Tensor]:
            return [plain[rows], gaussians.left_out(shrink, rows)]

        shrink = self.choose({r: partial(parts, r) for r in SHRINKS}, labels, SHRINKS[0], [1.0, 0.0])
        self.take(gaussians, shrink)

    def take(self, gaussians: Gaussians, shrink: float) -> None:
        """Sets the correction to the scores of a fit."""
        weight, bias = gaussians.weights(shrink)
        self.weight, self.bias = weight.to(self.mix), bias.to(self.mix)

    def correction(self, features: Tensor) -> Tensor:
        return features @ self.weight.T + self.bias


class Gda(ClosedForm):
    """logits = a tau f W + b (f P mu - mu P mu / 2): a mean mu per class, one precision P = (S / (N - C) + r I)^-1.

    As published under base-to-novel (`neighbours`), the mean of a novel class is that of the training features nearest
    to its text, a fifth of it the text itself, and P the mean over classes of their shrunk precisions around the text.

    Differs from the official code: a, b and r are chosen by leave-one-out (there: b on the whole validation split, on
    ImageNet on *test* images, and r follows from N; from base to novel a pseudo-inverse without r); one view per image
    (there ten, of which one image of a class has a covariance; here GDA with one image per class is zero-shot); one
    template on ImageNet (there the mean of seven).
    """

    Head = GdaHead
    Config = GdaConfig
    recipe = Recipe(epochs=0).on("base-to-novel", neighbours=64)
    config: GdaConfig
    images: Tensor  # features of the training images, if novel classes need them, [images, dim]
    _novel: tuple[Tensor, Tensor] | None = None

    def set_sizes(self, classes: int, shots: int = 0) -> None:
        super().set_sizes(classes, shots)
        self.register_buffer("images", self.head.mix.new_zeros(shots, self.backbone.dim))

    def sizes(self) -> dict[str, int]:
        return {"shots": len(self.images)}

    def before_training(self, images: LabelledImages) -> None:
        super().before_training(images)
        if self.config.neighbours:
            self.images, _ = frozen_features(self, images.train())

    def set_classes(self, names: Sequence[str], template: str) -> None:
        super().set_classes(names, template)
        self._novel = None
        if len(self.images) > 1 and not set(names) & set(self.trained):
            with torch.no_grad():
                images, text = (with_fp64(part).double() for part in (self.images, self.encode_text(self.classes)))
                weight, bias = guess(images, text, self.config.neighbours)
            self._novel = weight.to(self.images), bias.to(self.images)

    def novel_correction(self, features: Tensor) -> Tensor | None:
        return None if self._novel is None else features @ self._novel[0].T + self._novel[1]


def guess(images: Tensor, text: Tensor, neighbours: int) -> tuple[Tensor, Tensor]:
    """Weight [classes, dim] and bias [classes] for classes of which there are only texts [classes, dim]."""
    dim = text.shape[1]
    nearest = images[(text @ images.T).topk(min(neighbours, len(images))).indices]  # [classes, neighbours, dim]
    means = 0.8 * nearest.mean(1) + 0.2 * text
    precision = images.new_zeros(dim, dim)
    for around, centre in zip(nearest, text, strict=True):
        scatter = (around - centre).T @ (around - centre)
        ridge = scatter.trace() / (len(around) - 1) * torch.eye(dim).to(scatter)
        precision += dim * torch.cholesky_inverse(torch.linalg.cholesky(scatter + ridge)) / len(text)
    weight = means @ precision
    return weight, -(weight * means).sum(1) / 2
