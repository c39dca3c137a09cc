"""ZS-LP and CLAP: a linear probe that starts at the class texts (Silva-Rodríguez et al., CVPR 2024)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip.layer_input import LayerInput
from dear.clip.text import ClassTexts
from dear.methods.base import LabelledImages, Loss
from dear.methods.recipe import Recipe
from dear.methods.shared.leave_one_out import class_means
from dear.methods.shared.per_class import PerClass, frozen_features

_LENGTH = 8.0  # of a class vector from a text table, about that of OpenAI's ViT-B/16; others have their own


class ZsLp(PerClass):
    """logits = tau cos(f, p) with a learned vector p per class, which starts at its text feature, not normalised.

    Only p's direction counts in the logits, but its length decides how far a step turns it. Other classes keep their
    texts. Differs from the official code: the dataset's own template alone (there eight on ImageNet); an epoch is a
    pass over all shots in one of 20 fixed views (there as many batches, drawn from all views together, so that a step
    has 256 rows even of fewer shots).
    """

    recipe = Recipe(
        optimizer="sgd", lr=0.1, weight_decay=0.0, epochs=300, batch=256, drop_last=True, crop=0.08, augment="fixed:20"
    )
    prototypes: nn.Parameter  # [training classes, dim]
    start: Tensor  # the same

    def set_sizes(self, classes: int) -> None:
        self.set_start(self.backbone.image.like.new_zeros(classes, self.backbone.dim))

    def set_start(self, start: Tensor) -> None:
        self.prototypes = nn.Parameter(start.clone())
        self.register_buffer("start", start)

    @torch.no_grad()
    def before_training(self, images: LabelledImages) -> None:
        text = self.backbone.text
        if text.tier == "table":
            start = _LENGTH * self.encode_text(self.classes)
        else:
            start = text.encode(self.prompts(images.classes, images.template)[0])
        self.trained = images.classes
        self.set_start(start.to(self.start))

    def encode_text(self, classes: ClassTexts) -> Tensor:
        own = F.normalize(self.prototypes, dim=1)
        return self.own_or(own, classes.names, lambda: classes.frozen.to(own))


class Clap(ZsLp):
    """ZS-LP with a pull to the text, |p - t|^2, the stronger the better zero-shot knows the class.

    A class weighs as much as the mean probability that zero-shot gives to it on its shots. Differs from the official
    code: these shots are the images as they are (there 20 views); a class without shots weighs 1 (there nan).
    """

    weights: Tensor  # of the pull, [training classes]

    def set_start(self, start: Tensor) -> None:
        super().set_start(start)
        self.register_buffer("weights", start.new_ones(len(start)))

    @torch.no_grad()
    def before_training(self, images: LabelledImages) -> None:
        frozen = self.encode_text(self.classes)
        super().before_training(images)
        features, labels = frozen_features(self, images.train())
        known = (self.backbone.temperature * features @ frozen.T).softmax(1)
        means, counts = class_means(known, labels, len(frozen))
        self.weights = torch.where(counts > 0, means.diagonal(), 1).to(self.start)

    def loss(self, x: LayerInput, labels: Tensor) -> Loss:
        loss = super().loss(x, labels)
        pull = (self.weights * (self.prototypes - self.start).square().sum(1)).mean()
        return Loss(loss.total + pull, {**loss.parts, "pull": pull}, loss.logits)
