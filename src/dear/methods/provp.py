"""ProVP-Ref: deep image tokens, each layer's mixed with a little of the last one's, and a contrast (IJCV 2024)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip import Backbone, LearnedTokens
from dear.clip.layer_input import LayerInput
from dear.core.config import Config, setting
from dear.methods.base import Loss, Method, normalized
from dear.methods.deep_prompts import DASSL
from dear.methods.recipe import Recipe


@dataclass(frozen=True)
class ProVpConfig(Config):
    """Progressive image tokens."""

    image_tokens: int = setting(16, "learned tokens in each image layer", low=1, high=1000)
    beta: float = setting(
        0.99, "weight of a layer's own tokens; the rest is what came out of the last", low=0.0, high=1.0
    )
    lambda_ref: float = setting(1.0, "weight of the contrast with frozen features", low=0.0, high=1e6)


class ProVp(Method):
    """Tokens enter after the first LayerNorm of the tower; text is frozen CLIP's.

    L = CE + contrast: among the frozen features of the batch, that of the same image should be nearest (cosines as they
    are, no temperature). Differs from the official code: the last epoch is taken (there the best one on test images),
    any number of tokens works (there four or fewer break it), and the template is the dataset's own.
    """

    Config = ProVpConfig
    recipe = (
        Recipe(DASSL, lr=0.1, epochs=100, batch=32, weight_decay=1e-3)
        .on("few-shot", image_tokens=50, epochs=200, weight_decay=5e-4)
        .on("few-shot", shots=1, epochs=50, weight_decay=1e-3)
        .on("few-shot", shots=2, epochs=100)
        .on("few-shot", shots=4, epochs=100)
    )
    first_layer = 1
    config: ProVpConfig

    def __init__(self, backbone: Backbone, config: ProVpConfig) -> None:
        super().__init__(backbone, config)
        tower, like = backbone.image, backbone.image.visual.proj
        bound = (6 / (3 * 14 * 14 + tower.width)) ** 0.5  # as published, with the patches of another model
        start = torch.empty(tower.layers, self.config.image_tokens, tower.width, device=like.device, dtype=like.dtype)
        self.image_tokens = nn.Parameter(start.uniform_(-bound, bound))

    def encode_image(self, x: LayerInput) -> Tensor:
        tokens = LearnedTokens(dict(enumerate(self.image_tokens, 1)), self.config.beta)
        return normalized(self.backbone.image.features(x, tokens).cls)

    def loss(self, x: LayerInput, labels: Tensor) -> Loss:
        features = self.encode_image(x)
        logits = self.logits(features, self.encode_text())
        similar = features[:, 0] @ self.backbone.image.frozen_feature(x).T  # [batch, batch]
        itself = torch.arange(len(similar), device=similar.device)
        parts = {
            "cross_entropy": F.cross_entropy(logits, labels),
            "contrast": self.config.lambda_ref * F.cross_entropy(similar, itself),
        }
        return Loss(parts["cross_entropy"] + parts["contrast"], parts, logits)
