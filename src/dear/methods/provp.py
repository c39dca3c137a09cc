"""ProVP-Ref: deep image tokens, mixed between layers, and a contrastive loss (IJCV 2024)."""

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

    image_tokens: int = setting(16, "learned tokens per image layer", low=1, high=1000)
    beta: float = setting(
        0.99, "weight of a layer's own tokens, against the output of the layer before", low=0.0, high=1.0
    )
    lambda_ref: float = setting(1.0, "weight of the contrastive loss against frozen features", low=0.0, high=1e6)


class ProVp(Method):
    """Tokens enter after ln_pre; class texts are frozen CLIP's.

    L = CE + contrastive loss: among the frozen features of the batch, that of the same image should be nearest (cosines
    without a temperature). Differs from the official code: the last epoch is used (there the best on test images), any
    number of tokens works (there four or fewer fail), and the template is the dataset's own.
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
        tower, like = backbone.image, backbone.image.like
        bound = (6 / (3 * 14 * 14 + tower.width)) ** 0.5  # as published: for patches of 14 x 14 pixels
        start = torch.empty(tower.layers, self.config.image_tokens, tower.width, device=like.device, dtype=like.dtype)
        self.image_tokens = nn.Parameter(start.uniform_(-bound, bound))

    def encode_image(self, x: LayerInput) -> Tensor:
        tokens = LearnedTokens(dict(enumerate(self.image_tokens, 1)), self.config.beta)
        return normalized(self.backbone.image.features(x, tokens).cls)

    def loss(self, x: LayerInput, labels: Tensor) -> Loss:
        features = self.encode_image(x)
        logits = self.logits(features, self.encode_text(self.classes))
        similarity = features[:, 0] @ self.backbone.image.frozen_feature(x).T  # [batch, batch]
        same_image = torch.arange(len(similarity), device=similarity.device)
        parts = {
            "cross_entropy": F.cross_entropy(logits, labels),
            "contrast": self.config.lambda_ref * F.cross_entropy(similarity, same_image),
        }
        return Loss(parts["cross_entropy"] + parts["contrast"], parts, logits)
