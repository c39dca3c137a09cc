"""CLIP-LoRA: rank-2 terms in queries, keys and values of every layer of both towers (CVPR Workshops 2024)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip import Backbone
from dear.clip.image import ImageTower, LayerInput, Observer
from dear.clip.low_rank import Term, with_low_rank
from dear.clip.text import TextTower
from dear.core.config import Config, setting
from dear.methods.base import Images, Method, Texts
from dear.parallel.processes import dropout


@dataclass(frozen=True)
class LoraConfig(Config):
    """Low-rank terms."""

    rank: int = setting(2, "rank of each term", low=1, high=1000)
    lora_alpha: float = setting(1.0, "scale of the terms, divided by the root of the rank", low=0.0, high=1e3)
    dropout: float = setting(0.25, "share of a term's input that is dropped in training", low=0.0, high=0.99)


class LowRank(nn.Module):
    """s B A drop(x) for queries, keys and values of each layer; B starts at zero."""

    def __init__(self, tower: ImageTower | TextTower, config: LoraConfig, like: Tensor) -> None:
        super().__init__()
        self.config, bound = config, tower.width**-0.5
        shape = (tower.layers, 3, config.rank, tower.width)
        self.down = nn.Parameter(torch.empty(shape).uniform_(-bound, bound).to(like))
        self.up = nn.Parameter(torch.zeros(tower.layers, 3, tower.width, config.rank).to(like))

    def of_layer(self, layer: int) -> Term:
        scale = self.config.lora_alpha / self.config.rank**0.5

        def term(part: int, x: Tensor) -> Tensor:
            x = dropout(x, self.config.dropout, self.training)
            return scale * (x @ self.down[layer - 1, part].T) @ self.up[layer - 1, part].T

        return term


class ClipLora(Method):
    """Differs from the official code: the template is the dataset's own (there "a photo of a {}." for all); in the text
    tower, what all prompts share is computed once, so that in training its dropout is shared by the classes.

    The published recipe is 500 steps of 32 images for each shot; here it is a number of images seen, of 16 shots unless
    the few-shot protocol says fewer.
    """

    Settings = LoraConfig
    recipe: ClassVar[Mapping[str, Any]] = {
        "optimizer": "adamw", "lr": 2e-4, "weight_decay": 1e-2, "batch": 32, "images_seen": 500 * 16 * 32,
        "schedule": "step", "final_lr": 1e-6, "warmup_epochs": 0, "crop": 0.08,
    }  # fmt: skip
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        f"few-shot {shots}": {"images_seen": 500 * shots * 32} for shots in (1, 2, 4, 8)
    }
    first_layer = 1
    first_text_layer = 1
    config: LoraConfig

    def __init__(self, backbone: Backbone, config: Config, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(backbone, config)
        like = backbone.image.visual.proj
        self.image_terms = LowRank(backbone.image, self.config, like)
        self.text_terms = LowRank(backbone.text, self.config, like)
        self._image = with_low_rank(backbone.image, self.image_terms.of_layer)
        self._text = with_low_rank(backbone.text, self.text_terms.of_layer)

    def text_features(self, texts: Texts | None = None) -> Tensor:
        texts = texts or self.texts
        return F.normalize(self._text.project(self._text.read_eot(texts.states, texts.prompts, 1)), dim=-1)

    def enter(self, images: Images) -> LayerInput:
        return self.open_trunk(images)

    def image_features(self, entry: LayerInput, observe: Observer | None = None) -> Tensor:
        cls = self._image.read_cls(self._image.enter(entry.x, 1), observe)
        return F.normalize(self._image.project(cls), dim=-1)[:, None]
