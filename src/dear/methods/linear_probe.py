"""Logistic regression on frozen class features (CLIP, A.3)."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip import Backbone
from dear.core.config import Config
from dear.core.errors import DearError
from dear.core.metrics import accuracy
from dear.methods.base import PLAIN, LabelledImages, Method
from dear.methods.shared.class_index import frozen_features, positions

_DECAYS = tuple(10.0**power for power in range(-6, 3))


class LinearProbe(Method):
    """Its weight decay is chosen on the validation images; without any it is the middle of the range.

    It can only answer classes it was trained on.
    """

    weight: Tensor  # [trained classes, dim]
    bias: Tensor  # [trained classes]

    def __init__(self, backbone: Backbone, config: Config, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(backbone, config)
        self.trained: tuple[str, ...] = tuple(facts["classes"]) if facts else ()
        like = backbone.image.visual.proj
        self.register_buffer("weight", like.new_zeros(len(self.trained), backbone.dim))
        self.register_buffer("bias", like.new_zeros(len(self.trained)))

    def facts(self) -> dict[str, Any]:
        return {"classes": list(self.trained)}

    def learned(self) -> int:
        return self.weight.numel() + self.bias.numel()

    def look(self, shown: LabelledImages) -> None:
        self.trained = shown.classes
        images, labels = frozen_features(self, shown.train())
        fitted = {decay: logistic(images, labels, len(self.trained), decay) for decay in _DECAYS}
        chosen = _DECAYS[len(_DECAYS) // 2]
        seen, truth = frozen_features(self, shown.val())
        if len(truth):
            chosen = max(fitted, key=lambda decay: accuracy(seen @ fitted[decay][0].T + fitted[decay][1], truth))
        self.weight, self.bias = fitted[chosen]

    def can_answer(self, names: Sequence[str]) -> bool:
        return None not in positions(self.trained, names)

    def set_classes(self, names: Sequence[str], template: str) -> None:
        if self.trained and not self.can_answer(names):
            raise DearError("A linear probe can only answer the classes it was trained on: choose another method.")
        super().set_classes(names, template)

    def logits(self, features: Tensor, text: Tensor, inference: str = PLAIN) -> Tensor:
        rows = positions(self.trained, self.texts.names)
        return features[:, 0] @ self.weight[rows].T + self.bias[rows]

    def votes(self, features: Tensor, text: Tensor) -> Tensor:
        return self.logits(features, text)[:, None]


def logistic(images: Tensor, labels: Tensor, classes: int, decay: float) -> tuple[Tensor, Tensor]:
    """Weight [classes, dim] and bias [classes] of a multinomial logistic regression, its weight under an L2 penalty."""
    weight = torch.zeros(classes, images.shape[1], device=images.device, dtype=images.dtype, requires_grad=True)
    bias = torch.zeros(classes, device=images.device, dtype=images.dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=300, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(images @ weight.T + bias, labels) + decay * weight.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    return weight.detach(), bias.detach()
