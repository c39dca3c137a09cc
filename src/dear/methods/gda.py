"""GDA: Gaussian discriminant analysis added to zero-shot, without training (Wang et al., ICLR 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from dear.core.config import Config as Settings
from dear.core.config import setting
from dear.methods.recipe import Recipe
from dear.methods.shared.closed_form import ClosedForm
from dear.methods.shared.leave_one_out import Gaussians

_SHRINKS = (0.01, 0.1, 1.0, 10.0, 100.0)


@dataclass(frozen=True)
class GdaConfig(Settings):
    """Classes that have no images."""

    neighbours: int = setting(
        0, "guess mean and covariance of novel classes from this number of training images; 0: zero-shot", low=0
    )


class Gda(ClosedForm):
    """logits = a tau f W + b (f P mu - mu P mu / 2): a mean mu per class, one precision P = (S / (N - C) + r I)^-1.

    As published under base-to-novel (`neighbours`), the mean of a novel class is that of the training features nearest
    to its text, a fifth of it the text itself, and P the mean over classes of their shrunk precisions around the text.

    Differs from the official code: a, b and r are chosen by leave-one-out (there: b on the whole validation split, on
    ImageNet on *test* images, and r follows from N; from base to novel a pseudo-inverse without r); one view per image
    (there ten, of which one image of a class has a covariance; here GDA with one image per class is zero-shot).
    """

    Config = GdaConfig
    recipe = Recipe(epochs=0).on("base-to-novel", neighbours=64)
    config: GdaConfig
    weight: Tensor  # [training classes, dim]
    bias: Tensor  # [training classes]
    images: Tensor  # [stored images, dim]
    _novel: tuple[Tensor, Tensor] | None = None

    @property
    def stored(self) -> int:
        return len(self.images)

    def set_sizes(self, classes: int, stored: int) -> None:
        like = self.mix
        self.register_buffer("weight", like.new_zeros(classes, self.backbone.dim))
        self.register_buffer("bias", like.new_zeros(classes))
        self.register_buffer("images", like.new_zeros(stored, self.backbone.dim))

    def fit(self, features: Tensor, labels: Tensor, text: Tensor) -> None:
        gaussians, plain = Gaussians(features, labels, len(text)), self.zero_shot(features, text)

        def parts(shrink: float, rows: Tensor) -> list[Tensor]:
            return [plain[rows], gaussians.left_out(shrink, rows)]

        shrink = self.choose({shrink: partial(parts, shrink) for shrink in _SHRINKS}, labels, 1.0, [1.0, 0.0])
        weight, bias = gaussians.weights(shrink)
        self.weight, self.bias = weight.to(self.mix), bias.to(self.mix)
        if self.config.neighbours:
            self.images = features.to(self.mix)

    def correction(self, features: Tensor) -> Tensor:
        return features @ self.weight.T + self.bias

    def set_classes(self, names: Sequence[str], template: str) -> None:
        super().set_classes(names, template)
        self._novel = None
        if len(self.images) > 1 and not set(names) & set(self.trained):
            with torch.no_grad():
                weight, bias = guess(self.images, self.encode_text(), self.config.neighbours)
                self._novel = weight.to(self.mix), bias.to(self.mix)

    def novel_correction(self, features: Tensor) -> Tensor | None:
        return None if self._novel is None else features @ self._novel[0].T + self._novel[1]


def guess(images: Tensor, text: Tensor, neighbours: int) -> tuple[Tensor, Tensor]:
    """Weight [classes, dim] and bias [classes] for classes of which there are only texts [classes, dim]."""
    images, text, dim = images.double(), text.double(), text.shape[1]
    nearest = images[(text @ images.T).topk(min(neighbours, len(images))).indices]  # [classes, neighbours, dim]
    means = 0.8 * nearest.mean(1) + 0.2 * text
    precision = images.new_zeros(dim, dim)
    for around, centre in zip(nearest, text, strict=True):
        scatter = (around - centre).T @ (around - centre)
        ridge = scatter.trace() / (len(around) - 1) * torch.eye(dim).to(scatter)
        precision += dim * torch.cholesky_inverse(torch.linalg.cholesky(scatter + ridge)) / len(text)
    weight = means @ precision
    return weight, -(weight * means).sum(1) / 2
