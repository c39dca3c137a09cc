"""ProLIP: CLIP's image projection, fine-tuned close to its start (Fahes et al., 2024, arXiv 2410.05270)."""

from dataclasses import dataclass

from torch import Tensor, nn

from dear.clip import Backbone
from dear.clip.layer_input import LayerInput
from dear.core.config import Config as Settings
from dear.core.config import setting
from dear.methods.base import LabelledImages, Loss, Method, normalized
from dear.methods.recipe import Recipe
from dear.methods.shared.towers import project_by


@dataclass(frozen=True)
class ProLipConfig(Settings):
    """The regularisation of the projection."""

    pull: float | None = setting(
        None, "weight of the squared distance of the projection from its start; default: 1 / shots", low=0.0
    )


class ProLip(Method):
    """f = n(ln_post(CLS) P), L = CE + lambda |P - P0|^2 (a sum), lambda = 1 / shots. A step has one view of all shots.

    It is the published form without validation images. Differs from the official code: P is fp32 (there half precision
    without a master copy, in which steps at this rate are lost or rounded up); one rate, that of base-to-novel (there
    also higher ones with few shots); one template on ImageNet (there the mean of seven).
    """

    Config = ProLipConfig
    recipe = Recipe(
        optimizer="adam", lr=1e-5, eps=1e-4, weight_decay=0.0, schedule="step", epochs=300, batch=100_000, crop=0.5,
        augment="fixed:300",
    )  # fmt: skip
    config: ProLipConfig

    def __init__(self, backbone: Backbone, config: ProLipConfig) -> None:
        super().__init__(backbone, config)
        self.projection = nn.Parameter(backbone.image.head_matrix.detach().contiguous().clone())
        self.pull = config.pull or 0.0

    def before_training(self, images: LabelledImages) -> None:
        if self.config.pull is None:
            self.pull = 1 / images.shots

    def encode_image(self, x: LayerInput) -> Tensor:
        tower = self.backbone.image
        return normalized(project_by(tower, tower.cls_state(x), self.projection))

    def merged(self) -> list[tuple[Tensor, Tensor]]:
        return [(self.backbone.image.head_matrix, self.projection)]

    def loss(self, x: LayerInput, labels: Tensor) -> Loss:
        loss = super().loss(x, labels)
        distance = (self.projection - self.backbone.image.head_matrix).square().sum()
        return Loss(loss.total + self.pull * distance, {**loss.parts, "distance": distance}, loss.logits)
