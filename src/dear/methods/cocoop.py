"""CoCoOp: CoOp with a context that depends on the image (Zhou et al., CVPR 2022)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip import Backbone
from dear.clip.layer_input import LayerInput
from dear.methods.base import Loss
from dear.methods.coop import CoOp, CoOpConfig
from dear.methods.recipe import Recipe
from dear.methods.shared.context import COOP


class CoCoOp(CoOp):
    """A small network maps the image feature to a vector that is added to every context vector, so each image has its
    own class texts. They are computed image by image, with the context shared by the classes.

    A text without an image (a gallery search) uses the context as it is. Differs from the official code: fp32, and only
    tokens up to EOT are computed.
    """

    recipe = Recipe(COOP, epochs=10, batch=1)

    def __init__(self, backbone: Backbone, config: CoOpConfig) -> None:
        super().__init__(backbone, config)
        hidden = max(1, backbone.dim // 16)
        self.network = nn.Sequential(
            nn.Linear(backbone.dim, hidden), nn.ReLU(), nn.Linear(hidden, backbone.text.width)
        ).to(self.context)

    def logits(self, features: Tensor, text: Tensor | None = None, inference: str | None = None) -> Tensor:
        """Features [batch, 1, dim] -> [batch, classes]; `text` is not used, because class texts depend on the image."""
        return torch.stack([self._image_logits(image) for image in features[:, 0]])

    def _image_logits(self, image: Tensor) -> Tensor:
        text = self.encode_with(self.context + self.network(image), self.classes)
        return self.backbone.temperature * text @ image

    def loss(self, x: LayerInput, labels: Tensor) -> Loss:
        logits = self.logits(self.encode_image(x))
        total = F.cross_entropy(logits, labels)
        return Loss(total, {"cross_entropy": total}, logits)
