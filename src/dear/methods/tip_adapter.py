"""Tip-Adapter: zero-shot plus a cache of the few-shot features (Zhang et al., ECCV 2022), without training."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dear.backbone import Backbone
from dear.config import Config
from dear.methods.base import PLAIN, Method, Shown
from dear.methods.known_classes import frozen_features, positions
from dear.metrics import accuracy

_ALPHAS = tuple(0.25 * step for step in range(1, 21))
_BETAS = (0.5, 1.0, 2.0, 3.0, 4.0, 5.5, 7.0)


class TipAdapter(Method):
    """logits = tau f W + alpha exp(-beta (1 - f F)) L.

    Classes that are not in the cache get the zero-shot logits alone. Differs from the official code: alpha and beta are
    chosen on the few validation images of the draw (there: on a full validation split, on ImageNet on test images), and
    the cache holds each image once, as evaluation sees it (there: ten augmented passes).
    """

    keys: Tensor  # [shots, dim]
    labels: Tensor  # [shots]
    strength: Tensor  # alpha, beta

    def __init__(self, backbone: Backbone, config: Config, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(backbone, config)
        self.trained: tuple[str, ...] = tuple(facts["classes"]) if facts else ()
        shots, like = (facts["shots"] if facts else 0), backbone.image.visual.proj
        self.register_buffer("keys", like.new_zeros(shots, backbone.dim))
        self.register_buffer("labels", torch.zeros(shots, dtype=torch.long, device=like.device))
        self.register_buffer("strength", like.new_tensor([1.0, 5.5]))  # the published start

    def facts(self) -> dict[str, Any]:
        return {"classes": list(self.trained), "shots": len(self.keys)}

    def look(self, shown: Shown) -> None:
        self.trained = shown.classes
        self.keys, self.labels = frozen_features(self, shown.train())
        images, truth = frozen_features(self, shown.val())
        if not len(truth):
            return
        plain, similar, values = self._parts(images, self.text_features())
        grid = [(alpha, beta) for beta in _BETAS for alpha in _ALPHAS]
        best = max(grid, key=lambda ab: accuracy(plain + ab[0] * (-ab[1] * (1 - similar)).exp() @ values, truth))
        self.strength = self.keys.new_tensor(best)

    def logits(self, features: Tensor, text: Tensor, inference: str = PLAIN) -> Tensor:
        plain, similar, values = self._parts(features[:, 0], text)
        alpha, beta = self.strength
        return plain + alpha * (-beta * (1 - similar)).exp() @ values

    def votes(self, features: Tensor, text: Tensor) -> Tensor:
        return self.logits(features, text)[:, None]

    def _parts(self, images: Tensor, text: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Zero-shot logits [images, classes], similarity to the cache [images, shots], its labels [shots, classes]."""
        asked = torch.tensor([-1 if p is None else p for p in positions(self.trained, self.texts.names)])
        values = (self.labels[:, None] == asked.to(self.labels.device)).to(images.dtype)
        return self.backbone.temperature * images @ text.T, images @ self.keys.T, values
