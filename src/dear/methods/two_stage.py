"""2SFS: LayerNorms of both towers first, then a linear classifier (Farina et al., CVPR 2025)."""

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip import Backbone
from dear.clip.layer_input import LayerInput
from dear.clip.low_rank import BlockView, Tower, with_blocks
from dear.clip.text import ClassTexts
from dear.core.config import Config as Settings
from dear.core.config import setting
from dear.methods.base import LabelledImages, Loss, normalized
from dear.methods.recipe import Recipe
from dear.methods.shared.per_class import PerClass
from dear.methods.shared.towers import learns_texts


@dataclass(frozen=True)
class TwoStageConfig(Settings):
    """The two stages."""

    restart: float = setting(
        0.6, "share of the steps that train LayerNorms; the others train the classifier", low=0.01, high=0.99
    )


class TwoStage(PerClass):
    """Stage 1 trains the two LayerNorms of every block, 61,440 numbers on ViT-B/16; stage 2 a vector per class, which
    starts as its adapted text, against the adapted image feature. Each stage has its own cosine schedule.

    A class that has a vector is answered by it, any other by the adapted text tower. As in effect in the official code,
    the LayerNorms before and after the blocks stay frozen: it visits them twice, and the second visit freezes them.
    Differs from it: fp32 (there half precision with loss scaling); the dataset's own template (there one for all); the
    epoch goes on when stage 2 begins (there a new one begins); two training classes of one name, as in ImageNet, keep
    their own vectors (there both are answered by the second's). Cross-dataset is ours, with the same settings. Where
    texts are fixed (`--text-features`) stage 1 trains the image tower alone.
    """

    Config = TwoStageConfig
    recipe = Recipe(
        optimizer="adamw", lr=2e-4, weight_decay=1e-2, batch=32, steps_per_shot=300, schedule="step", final_lr=1e-6,
        restart=0.6, warmup_epochs=0, crop=0.08,
    )  # fmt: skip
    first_layer = 1
    first_text_layer = 1
    config: TwoStageConfig
    done = 0.0
    classifier: nn.Parameter  # [training classes, dim]
    second: Tensor  # 1 from the first step of stage 2 on

    def __init__(self, backbone: Backbone, config: TwoStageConfig) -> None:
        super().__init__(backbone, config)
        self.image_norms, self._image = with_own_norms(backbone.image)
        self.learns_texts = learns_texts(backbone)
        if self.learns_texts:
            self.text_norms, self._text = with_own_norms(backbone.text)
        self.register_buffer("second", backbone.image.like.new_zeros(()))
        self.in_second = False  # the same, known to the host without waiting for the device
        self.register_load_state_dict_post_hook(lambda module, _: setattr(module, "in_second", bool(module.second)))

    def set_sizes(self, classes: int) -> None:
        self.classifier = nn.Parameter(self.backbone.image.like.new_zeros(classes, self.backbone.dim))

    def before_training(self, images: LabelledImages) -> None:
        self.trained = images.classes
        self.set_sizes(len(self.trained))

    def adapted_text(self, classes: ClassTexts) -> Tensor:
        """Class features of stage 1, normalised, [classes, dim]."""
        return self._text.features(classes) if self.learns_texts else classes.frozen

    def encode_text(self, classes: ClassTexts) -> Tensor:
        if not self.in_second:
            return self.adapted_text(classes)
        return self.own_or(F.normalize(self.classifier, dim=1), classes.names, lambda: self.adapted_text(classes))

    def encode_image(self, x: LayerInput) -> Tensor:
        return normalized(self._image.features(LayerInput(self._image, x.layer, x.states)).cls)

    def loss(self, x: LayerInput, labels: Tensor) -> Loss:
        if self.done >= self.config.restart and not self.in_second:
            with torch.no_grad():
                self.classifier.copy_(self.adapted_text(self.classes))
                self.second.fill_(1)
            self.in_second = True
        with torch.set_grad_enabled(not self.in_second):
            features = self.encode_image(x)
        logits = self.logits(features, self.encode_text(self.classes))
        total = F.cross_entropy(logits, labels)
        return Loss(total, {"cross_entropy": total}, logits)


def with_own_norms(tower: Tower) -> tuple[nn.ModuleList, Tower]:
    """Trainable copies of the LayerNorms of all blocks, and the same tower with them."""
    copies = [deepcopy([block.ln_1, block.ln_2]) for block in tower.blocks]
    blocks = [BlockView(block, ln_1=a, ln_2=b) for block, (a, b) in zip(tower.blocks, copies, strict=True)]
    return nn.ModuleList(map(nn.ModuleList, copies)).requires_grad_(True), with_blocks(tower, blocks)
