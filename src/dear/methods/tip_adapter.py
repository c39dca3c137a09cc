"""Tip-Adapter and Tip-Adapter-F: zero-shot plus a cache of the few-shot features (Zhang et al., ECCV 2022)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dear.clip import Backbone
from dear.core.config import Config as Settings
from dear.core.config import setting
from dear.core.metrics import accuracy
from dear.methods.base import LabelledImages
from dear.methods.recipe import Recipe
from dear.methods.shared.per_class import PerClass, frozen_features

_GRID_ALPHA = tuple(0.25 * step for step in range(1, 21))
_GRID_BETA = (0.5, 1.0, 2.0, 3.0, 4.0, 5.5, 7.0)


class TipAdapter(PerClass):
    """logits = tau f W + alpha exp(-beta (1 - f F)) L.

    Classes that are not in the cache get the zero-shot logits alone, and `fair_lists.beside` in a list with others.
    Differs from the official code: alpha and beta are chosen on the few validation images of the draw (there: on a full
    validation split, on ImageNet on test images), from 20 and 7 values that are the same for all datasets (there: 20
    and 200, in a range per dataset); the cache has one feature per image, without augmentation (there: the mean of ten
    augmented passes); and ImageNet has one template, as all datasets (there: the mean of seven).
    """

    fair = True
    keys: Tensor  # [shots, dim]
    labels: Tensor  # [shots]
    strength: Tensor  # alpha, beta

    def __init__(self, backbone: Backbone, config: Settings) -> None:
        super().__init__(backbone, config)
        self.register_buffer("strength", backbone.image.like.new_tensor([1.0, 5.5]))  # the published start

    def set_sizes(self, classes: int, shots: int = 0) -> None:
        like = self.backbone.image.like
        self.set_keys(like.new_zeros(shots, self.backbone.dim))
        self.register_buffer("labels", torch.zeros(shots, dtype=torch.long, device=like.device))

    def set_keys(self, keys: Tensor) -> None:
        self.register_buffer("keys", keys)

    def sizes(self) -> dict[str, int]:
        return {"shots": len(self.keys)}

    def before_training(self, images: LabelledImages) -> None:
        self.fill(images)
        self.choose(images, _GRID_ALPHA, _GRID_BETA)

    def fill(self, images: LabelledImages) -> None:
        self.trained = images.classes
        keys, self.labels = frozen_features(self, images.train())
        self.set_keys(keys)

    @torch.no_grad()
    def choose(self, images: LabelledImages, alphas: Sequence[float], betas: Sequence[float]) -> None:
        """Sets the pair with the best accuracy on the validation images, if there are any."""
        features, truth = frozen_features(self, images.val())
        if not len(truth):
            return
        plain, similar, values = self._parts(features, self.encode_text(self.classes))
        accuracies: dict[tuple[float, float], float] = {}
        for beta in betas:
            cached = (-beta * (1 - similar)).exp() @ values
            accuracies |= {(alpha, beta): accuracy(plain + alpha * cached, truth) for alpha in alphas}
        self.strength = self.strength.new_tensor(max(accuracies, key=lambda pair: accuracies[pair]))

    def logits(self, features: Tensor, text: Tensor, inference: str | None = None) -> Tensor:
        plain, similar, values = self._parts(features[:, 0], text)
        alpha, beta = self.strength
        return self.fair_logits(plain + alpha * (-beta * (1 - similar)).exp() @ values, plain)

    def _parts(self, images: Tensor, text: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Zero-shot logits [images, classes], similarity to the cache [images, shots], its labels [shots, classes]."""
        rows = self.trained_rows(self.classes.names)
        values = (self.labels[:, None] == rows).to(images.dtype)
        return self.backbone.temperature * images @ text.T, images @ self.keys.T, values


@dataclass(frozen=True)
class TipAdapterFConfig(Settings):
    """The cache. The defaults are those published for ImageNet."""

    alpha: float = setting(1.17, "weight of the cache in training", low=0.0)
    beta: float = setting(1.0, "sharpness of the cache in training", low=0.0)
    largest_alpha: float = setting(3.0, "largest alpha to try on the validation images after training", low=0.1)
    largest_beta: float = setting(7.0, "largest beta to try on the validation images after training", low=0.1)


class TipAdapterF(TipAdapter):
    """Tip-Adapter with keys that start as the cached features and are learned with cross entropy.

    As in the official code, alpha and beta are fixed in training and chosen afterwards. Differs from it as Tip-Adapter
    does, but for the grid, which has 20 values each; and the last epoch is used (there: the epoch with the best *test*
    accuracy, with the fixed or the chosen pair, whichever is better).
    """

    Config = TipAdapterFConfig
    recipe = Recipe(optimizer="adamw", lr=1e-3, eps=1e-4, weight_decay=0.01, schedule="step", batch=256, epochs=20)
    config: TipAdapterFConfig

    def set_keys(self, keys: Tensor) -> None:
        self.keys = nn.Parameter(keys)

    def before_training(self, images: LabelledImages) -> None:
        self.fill(images)
        self.strength = self.strength.new_tensor([self.config.alpha, self.config.beta])

    def after_training(self, images: LabelledImages) -> None:
        alphas, betas = (
            [0.1 + step * (end - 0.1) / 20 for step in range(20)]
            for end in (self.config.largest_alpha, self.config.largest_beta)
        )
        self.choose(images, alphas, betas)
