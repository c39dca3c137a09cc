"""Full fine-tuning of the image tower and of a classifier: FT, LP-FT and WiSE-FT.

LP-FT: Kumar et al., ICLR 2022. WiSE-FT: Wortsman et al., CVPR 2022.
"""

from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip import exact_copy
from dear.clip.layer_input import LayerInput
from dear.clip.low_rank import with_blocks
from dear.clip.read_out import ProbePool
from dear.clip.text import ClassTexts
from dear.clip.timm_tower import TimmTower
from dear.core.config import Config as Settings
from dear.core.config import setting
from dear.core.runtime import autocast
from dear.methods.base import LabelledImages, Method, normalized
from dear.methods.linear_probes import chosen_logistic
from dear.methods.recipe import Recipe
from dear.methods.shared.per_class import PerClass


class OwnImageTower(Method):
    """Copies of the image tower's blocks from `first_layer` on, of its last LayerNorm and of its projection."""

    def copy_image_tower(self) -> None:
        image, visual = self.backbone.image, self.backbone.image.visual
        if isinstance(image, TimmTower):
            self._image: Any = image.copied(self.first_layer)
            self.image_blocks = nn.ModuleList(block.module for block in self._image.blocks[self.first_layer - 1 :])
            self.image_end = nn.ModuleList(self._image.end_modules())
            return
        self.image_blocks = nn.ModuleList(map(exact_copy, image.blocks[self.first_layer - 1 :]))
        self.image_norm, self.projection = deepcopy(visual.ln_post), nn.Parameter(visual.proj.detach().clone())
        self._image = with_blocks(image, [*image.blocks[: self.first_layer - 1], *self.image_blocks])
        end = SimpleNamespace(ln_post=self.image_norm, proj=self.projection)
        if image.reader is not None:
            self.image_pool = end.attn_pool = deepcopy(visual.attn_pool)
            self._image.reader = ProbePool(end)
        self._image.visual = end

    def autocast(self) -> AbstractContextManager:
        """Trained blocks are fp32: in half precision, autocast casts them once per tower."""
        return autocast(self.backbone.device, self.backbone.precision)

    def encode_image(self, x: LayerInput) -> Tensor:
        with self.autocast():
            cls = self._image.cls_state(LayerInput(self._image, x.layer, x.states))
        return normalized(self._image.project(cls))


@dataclass(frozen=True)
class FineTuneConfig(Settings):
    """The start of the classifier, and what is kept of the training."""

    start: str = setting(
        "texts", "the classifier starts at the class texts, or (LP-FT) at a linear probe", choices=("texts", "probe")
    )
    mix: float = setting(1.0, "weights = (1 - mix) before + mix after training; WiSE-FT takes 0.5", low=0.0, high=1.0)


class FineTune(PerClass, OwnImageTower):
    """logits = tau (f V + b): cross entropy trains all blocks of the image tower, its end, and a vector V and bias b
    per class.

    V starts at the class texts and b at zero, or both at a linear probe. After training, all weights go back to their
    start by the share 1 - mix. Classes without labelled images are answered by their texts with the tuned tower.
    Differs from the official code of both: few images, so one recipe of our own (a small rate, no grid); the embedding
    of patches stays frozen; the probe's decay is chosen as that of linear-probe. LP-FT has no temperature there, and
    here the probe is divided by it.
    """

    first_layer = 1
    Config = FineTuneConfig
    recipe = Recipe(optimizer="adamw", lr=1e-5, weight_decay=0.1, epochs=20, batch=32, warmup_epochs=1)
    config: FineTuneConfig
    classifier: nn.Parameter  # V and, in the last column, b, [training classes, dim + 1]
    begin: Tensor  # the same before training

    def __init__(self, backbone: Any, config: FineTuneConfig) -> None:
        super().__init__(backbone, config)
        self.copy_image_tower()
        self.requires_grad_(True)

    def set_sizes(self, classes: int) -> None:
        self.set_begin(self.backbone.image.like.new_zeros(classes, self.backbone.dim + 1))

    def set_begin(self, begin: Tensor) -> None:
        self.register_buffer("begin", begin)
        self.classifier = nn.Parameter(begin.clone())

    @torch.no_grad()
    def before_training(self, images: LabelledImages) -> None:
        if self.config.start == "probe":
            probe = torch.cat([part.view(len(images.classes), -1) for part in chosen_logistic(self, images)], 1)
            begin = probe / self.backbone.temperature
        else:
            begin = F.pad(self.encode_text(self.classes), (0, 1))
        self.trained = tuple(images.classes)
        self.set_begin(begin.to(self.begin))

    def after_training(self, images: LabelledImages) -> None:
        self.mix(self.config.mix)

    @torch.no_grad()
    def mix(self, share: float) -> None:
        """Moves all weights to the point `share` of the way from their start to where they are."""
        start = dict(type(self)(self.backbone, self.config).named_parameters()) | {"classifier": self.begin}
        for name, parameter in self.named_parameters():
            parameter.lerp_(start[name].to(parameter), 1 - share)

    def encode_text(self, classes: ClassTexts) -> Tensor:
        return self.own_or(self.classifier[:, :-1], classes.names, lambda: classes.frozen.to(self.classifier))

    def logits(self, features: Tensor, text: Tensor, inference: str | None = None) -> Tensor:
        none = text.new_zeros(len(text))
        bias = self.own_or(self.classifier[:, -1:], self.classes.names, lambda: none[:, None])[:, 0]
        return self.backbone.temperature * (features[:, 0] @ text.T + bias)
