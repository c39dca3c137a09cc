"""ProVP-Ref: deep image tokens, each layer's mixed with a little of the last one's, and a contrast (IJCV 2024)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip import Backbone, LearnedTokens
from dear.clip.image import LayerInput, Observer
from dear.core.config import Config, setting
from dear.methods.base import Loss, Method
from dear.methods.deep_prompts import DASSL


@dataclass(frozen=True)
class ProVpConfig(Config):
    """Progressive image tokens."""

    image_tokens: int = setting(16, "learned tokens in each image layer", low=1, high=1000)
    beta: float = setting(
        0.99, "weight of a layer's own tokens; the rest is what came out of the last", low=0.0, high=1.0
    )
    lambda_ref: float = setting(1.0, "weight of the contrast with frozen features", low=0.0, high=1e6)


class ProVp(Method):
    """Tokens enter behind the first LayerNorm of the tower; text is frozen CLIP's.

    L = CE + contrast: among the frozen features of the batch, that of the same image should be nearest (cosines as they
    are, no temperature). Differs from the official code: the last epoch is taken (there the best one on test images),
    any number of tokens works (there four or fewer break it), and the template is the dataset's own.
    """

    Settings = ProVpConfig
    recipe: ClassVar[Mapping[str, Any]] = {**DASSL, "lr": 0.1, "epochs": 100, "batch": 32, "weight_decay": 1e-3}
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "few-shot": {"image_tokens": 50, "epochs": 200, "weight_decay": 5e-4},
        "few-shot 1": {"epochs": 50, "weight_decay": 1e-3},
        "few-shot 2": {"epochs": 100},
        "few-shot 4": {"epochs": 100},
    }
    first_layer = 1
    config: ProVpConfig

    def __init__(self, backbone: Backbone, config: Config, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(backbone, config)
        tower, like = backbone.image, backbone.image.visual.proj
        bound = (6 / (3 * 14 * 14 + tower.width)) ** 0.5  # as published, with the patches of another model
        start = torch.empty(tower.layers, self.config.image_tokens, tower.width, device=like.device, dtype=like.dtype)
        self.image_tokens = nn.Parameter(start.uniform_(-bound, bound))

    def image_features(self, entry: LayerInput, observe: Observer | None = None) -> Tensor:
        tower = self.backbone.image
        raw = {1 + i: tokens for i, tokens in enumerate(self.image_tokens)}
        tokens = LearnedTokens(raw, self.config.beta)
        cls, _ = tower.read_with_tokens(entry, tokens, read_tokens=False, observe=observe)
        return F.normalize(tower.project(cls), dim=-1)[:, None]

    def loss(self, entry: LayerInput, labels: Tensor) -> Loss:
        features = self.image_features(entry)
        logits = self.logits(features, self.text_features())
        similar = features[:, 0] @ self.frozen_image(entry).T  # [batch, batch]
        itself = torch.arange(len(similar), device=similar.device)
        parts = {
            "cross_entropy": F.cross_entropy(logits, labels),
            "contrast": self.config.lambda_ref * F.cross_entropy(similar, itself),
        }
        return Loss(parts["cross_entropy"] + parts["contrast"], parts, logits)
