"""CLIP-LoRA: rank-2 terms in queries, keys and values of every layer of both towers (CVPR Workshops 2024)."""

from dataclasses import dataclass

from torch import Tensor

from dear.clip import Backbone
from dear.clip.layer_input import LayerInput
from dear.clip.low_rank import LowRank, with_low_rank
from dear.clip.text import ClassTexts
from dear.core.config import Config as Settings
from dear.core.config import setting
from dear.methods.base import Method, normalized
from dear.methods.recipe import Recipe
from dear.methods.shared.towers import learns_texts


@dataclass(frozen=True)
class LoraConfig(Settings):
    """Low-rank terms of the attention projections."""

    rank: int = setting(2, "rank of each term", low=1, high=1000)
    lora_alpha: float = setting(1.0, "scale of the terms, divided by the root of the rank", low=0.0, high=1e3)
    dropout: float = setting(0.25, "dropout on the input of each term", low=0.0, high=0.99)


class ClipLora(Method):
    """W x + (alpha / sqrt(rank)) B A dropout(x) for queries, keys and values, with A and B learned.

    Differs from the official code: the template is the dataset's own (there "a photo of a {}." for all); in the text
    tower the shared prefix of the prompts is computed once, so that in training all classes share its dropout.
    Where texts are fixed (`--text-features`) only the image tower is adapted, the authors' `--encoder vision`.
    """

    Config = LoraConfig
    recipe = Recipe(
        optimizer="adamw", lr=2e-4, weight_decay=1e-2, batch=32, steps_per_shot=500, schedule="step", final_lr=1e-6,
        warmup_epochs=0, crop=0.08,
    )  # fmt: skip
    first_layer = 1
    first_text_layer = 1
    config: LoraConfig

    def __init__(self, backbone: Backbone, config: LoraConfig) -> None:
        super().__init__(backbone, config)
        like, terms = backbone.image.like, (config.rank, config.lora_alpha, config.dropout)
        self.image_terms = LowRank(backbone.image, *terms, like)
        self._image = with_low_rank(backbone.image, self.image_terms.layer_term)
        self.learns_texts = learns_texts(backbone)
        if self.learns_texts:
            self.text_terms = LowRank(backbone.text, *terms, like)
            self._text = with_low_rank(backbone.text, self.text_terms.layer_term)

    def encode_text(self, classes: ClassTexts) -> Tensor:
        return self._text.features(classes) if self.learns_texts else classes.frozen

    def encode_image(self, x: LayerInput) -> Tensor:
        return normalized(self._image.features(LayerInput(self._image, x.layer, x.states)).cls)
