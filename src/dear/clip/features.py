"""Towers that are called as a whole: no layers to work in, only the features of images and texts.

A method whose first adapted layer is behind the last one needs no more, so it works on them as on any other tower.
With half weights (`halve`) they run under autocast, and give features in fp32.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dear.clip.half import halve_layers, in_own_precision
from dear.clip.image import ImageTower
from dear.clip.layer_input import LayerInput
from dear.clip.prompts import tokens_of
from dear.core.runtime import autocast
from dear.parallel.processes import gather_rows


class FeatureImage(ImageTower):
    """Any image tower of OpenCLIP. The state after its last layer is the feature itself, so `width` is its size."""

    tier = "features"
    layout = "image called"

    def __init__(self, model: Any, image_size: tuple[int, int]) -> None:
        self.visual, self._model = model.visual, model
        self.blocks, self.layers, self.heads, self.head_dim = (), 0, 0, 0
        self.grid, self.originals, self.image_size = (0, 0), 1, image_size
        with torch.no_grad():
            self.width = self.read_width = self.dim = self.embed(self.like.new_zeros(1, 3, *image_size)).shape[-1]

    @property
    def like(self) -> Tensor:
        return self._model.logit_scale  # never half

    def halve(self, dtype: torch.dtype) -> None:
        halve_layers(self.visual, dtype)
        self.precision = dtype

    @in_own_precision
    def embed(self, pixels: Tensor) -> Tensor:
        """Normalised pixels [batch, 3, height, width] -> features, not normalised, [batch, 1, dim]."""
        with autocast(pixels.device, self.precision):
            return self._model.encode_image(pixels, normalize=False)[:, None].to(self.like.dtype)

    def cls_state(self, x: LayerInput) -> Tensor:
        return gather_rows(x.states[:, 0] if x.frozen_cls is None else x.frozen_cls)

    def project(self, cls: Tensor) -> Tensor:
        return cls


class FeatureText:
    """Any text tower of OpenCLIP."""

    tier = "features"
    layers = 0
    layout = "text called"
    precision = torch.float32

    def __init__(self, model: Any, tokenizer: Callable[..., Tensor]) -> None:
        self._model, self.tokenizer = model, tokenizer
        self.context: int = tokenizer.context_length  # type: ignore[attr-defined]

    def halve(self, dtype: torch.dtype) -> None:
        halve_layers(getattr(self._model, "text", None) or self._model.transformer, dtype)
        self.precision = dtype

    @torch.no_grad()
    @in_own_precision
    def encode(self, texts: Sequence[str]) -> Tensor:
        """Texts -> text features [texts, dim], not normalised."""
        like = self._model.logit_scale
        tokens = tokens_of(self.tokenizer, texts, self.context).to(like.device)
        with autocast(like.device, self.precision):
            return self._model.encode_text(tokens, normalize=False).to(like.dtype)
