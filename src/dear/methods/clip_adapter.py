"""CLIP-Adapter: two small layers after the image feature (Gao et al., IJCV 2024)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dear.clip import Backbone
from dear.clip.layer_input import LayerInput
from dear.core.config import Config, setting
from dear.methods.base import Method, normalized
from dear.methods.coop import COOP, epochs_by_shots
from dear.methods.recipe import Recipe


@dataclass(frozen=True)
class ClipAdapterConfig(Config):
    """The adapter."""

    ratio: float = setting(0.2, "share of the adapter's output in the image feature", low=0.0, high=1.0)


class ClipAdapter(Method):
    """f = ratio relu(W2 relu(W1 v)) + (1 - ratio) v, with v the image feature before it is normalised.

    The official code gives no training settings but "follow CoOp's command", so the recipe is CoOp's; the paper has
    another learning rate and a ratio per dataset. As in the official code, there is no adapter after the text feature.
    Differs from it: the layers have the width of the backbone, and class texts are computed once.
    """

    Config = ClipAdapterConfig
    recipe = epochs_by_shots(Recipe(COOP, epochs=200))
    config: ClipAdapterConfig

    def __init__(self, backbone: Backbone, config: ClipAdapterConfig) -> None:
        super().__init__(backbone, config)
        hidden = backbone.dim // 4
        self.adapter = nn.Sequential(
            nn.Linear(backbone.dim, hidden, bias=False),
            nn.ReLU(),
            nn.Linear(hidden, backbone.dim, bias=False),
            nn.ReLU(),
        ).to(backbone.image.like)

    def encode_image(self, x: LayerInput) -> Tensor:
        ratio = self.config.ratio
        with torch.no_grad():
            v = self.backbone.image.features(x).cls
        return normalized(ratio * self.adapter(v) + (1 - ratio) * v)
