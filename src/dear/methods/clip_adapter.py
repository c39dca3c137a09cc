"""CLIP-Adapter: two small layers behind the image feature (Gao et al., IJCV 2024)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip import Backbone
from dear.clip.image import LayerInput, Observer
from dear.core.config import Config, setting
from dear.methods.base import Method
from dear.methods.shared.context import COOP_RECIPE, EPOCHS_BY_SHOTS


@dataclass(frozen=True)
class ClipAdapterConfig(Config):
    """The adapter."""

    ratio: float = setting(0.2, "share of the adapter's output in the image feature", low=0.0, high=1.0)


class ClipAdapter(Method):
    """f = ratio relu(W2 relu(W1 v)) + (1 - ratio) v, with v the image feature before it is normalised.

    The published code has no settings of training but "follow CoOp's command", so the recipe is CoOp's; the paper names
    another rate and a ratio for each dataset. As there, the paper's adapter behind the text is not in it. Differs from
    it: the layers have the width of the backbone at hand, and the text of the classes is computed once.
    """

    Settings = ClipAdapterConfig
    recipe: ClassVar[Mapping[str, Any]] = {**COOP_RECIPE, "epochs": 200}
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = EPOCHS_BY_SHOTS
    config: ClipAdapterConfig

    def __init__(self, backbone: Backbone, config: ClipAdapterConfig, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(backbone, config)
        hidden = backbone.dim // 4
        self.adapter = nn.Sequential(
            nn.Linear(backbone.dim, hidden, bias=False),
            nn.ReLU(),
            nn.Linear(hidden, backbone.dim, bias=False),
            nn.ReLU(),
        ).to(backbone.image.visual.proj)

    def image_features(self, entry: LayerInput, observe: Observer | None = None) -> Tensor:
        tower, ratio = self.backbone.image, self.config.ratio
        with torch.no_grad():
            plain = tower.project(tower.read_cls(entry, observe))
        return F.normalize(ratio * self.adapter(plain) + (1 - ratio) * plain, dim=-1)[:, None]
