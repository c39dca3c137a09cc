"""CLIP-SVD: only the singular values of CLIP's matrices are trained (Koleilat et al., 2025, arXiv 2509.03740)."""

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from dear.clip import Backbone
from dear.clip.layer_input import LayerInput
from dear.clip.low_rank import AttentionView, BlockView, Tower, with_blocks
from dear.clip.text import ClassTexts
from dear.core.config import Config as Settings
from dear.methods.base import Method, normalized
from dear.methods.recipe import Recipe
from dear.methods.shared.towers import learns_texts

Factors = list[list[tuple[Tensor, Tensor, Tensor]]]
"""U [out, width], s [width] and V^T [width, in] of the (usually six) matrices of each layer."""


class ClipSvd(Method):
    """W = U diag(s) V^T for queries, keys, values, output and both MLP matrices of all blocks; s is learned.

    92,160 numbers on ViT-B/16. Weight decay pulls s to zero, as published, not to its start. Differs from the official
    code: fp32 (there half precision); the dataset's own template (there another for Food-101 with few shots, and for
    DTD, EuroSAT and UCF101 from base to novel); from base to novel one cosine over the whole training, 10 epochs (there
    the rate swings up and down once in every 2 * epochs *steps*, with the same mean, and epochs are 20 on five
    datasets: --published-constants). Where texts are fixed (`--text-features`) only the image tower is adapted.
    """

    recipe = Recipe(
        optimizer="adamw", lr=5e-4, weight_decay=1e-2, batch=32, steps_per_shot=200, schedule="step", final_lr=1e-6,
        warmup_epochs=0, crop=0.08,
    ).on("base-to-novel", lr=4e-4, steps_per_shot=None, epochs=10)  # fmt: skip
    first_layer = 1
    first_text_layer = 1

    def __init__(self, backbone: Backbone, config: Settings) -> None:
        super().__init__(backbone, config)
        self._image_factors = factors_of(backbone.image.visual, backbone.image)
        self.image_values = nn.Parameter(_values(self._image_factors))  # [layers, matrices, width]
        self.learns_texts = learns_texts(backbone)
        if self.learns_texts:
            self._text_factors = factors_of(backbone.text.module, backbone.text)
            self.text_values = nn.Parameter(_values(self._text_factors))

    def encode_text(self, classes: ClassTexts) -> Tensor:
        if not self.learns_texts:
            return classes.frozen
        return with_values(self.backbone.text, self._text_factors, self.text_values).features(classes)

    def encode_image(self, x: LayerInput) -> Tensor:
        tower = with_values(self.backbone.image, self._image_factors, self.image_values)
        return normalized(tower.features(LayerInput(tower, x.layer, x.states)).cls)


def _values(factors: Factors) -> Tensor:
    return torch.stack([torch.stack([s for _, s, _ in layer]) for layer in factors])


_KNOWN_FACTORS: WeakKeyDictionary[nn.Module, Factors] = WeakKeyDictionary()
"""They take half a minute for ViT-B/16, so cells of a benchmark on one backbone share them."""


def factors_of(module: nn.Module, tower: Any) -> Factors:
    """`module`: that of the tower, which they are kept for."""
    if module not in _KNOWN_FACTORS:
        _KNOWN_FACTORS[module] = _factors(tower)
    return _KNOWN_FACTORS[module]


@torch.no_grad()
def _factors(tower: Any) -> Factors:
    return [
        [
            torch.linalg.svd(matrix.float() if matrix.dtype.itemsize < 4 else matrix, full_matrices=False)
            for matrix in _matrices(block)
        ]
        for block in tower.blocks
    ]


def _matrices(block: Any) -> list[Tensor]:
    """Queries, keys, values, output, and those of the MLP."""
    return [*block.attn.in_proj_weight.chunk(3), block.attn.out_proj.weight, *_mlp(block).values()]


def _mlp(block: Any) -> dict[str, Tensor]:
    """The matrices of the MLP by name."""
    linear = {name: part for name, part in block.mlp.named_modules() if isinstance(part, nn.Linear)}
    return {f"{name}.weight": part.weight for name, part in linear.items()}


def with_values(tower: Tower, factors: Factors, values: Tensor) -> Tower:
    """The same tower with other singular values [layers, matrices, width]; biases and all else are shared."""
    return with_blocks(tower, [_with_factors(*parts) for parts in zip(tower.blocks, factors, values, strict=True)])


class _Linear:
    """A layer of nn.Linear with another weight."""

    def __init__(self, frozen: nn.Linear, weight: Tensor) -> None:
        self.weight, self.bias, self.in_features = weight, frozen.bias, frozen.in_features

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


def _with_factors(block: Any, factors: list[tuple[Tensor, Tensor, Tensor]], values: Tensor) -> Any:
    frozen = block.attn
    q, k, v, out, *mlp = ((u * s @ vt).to(frozen.in_proj_weight) for (u, _, vt), s in zip(factors, values, strict=True))
    weights = dict(zip(_mlp(block), mlp, strict=True))
    attn = AttentionView(frozen, in_proj_weight=torch.cat([q, k, v]), out_proj=_Linear(frozen.out_proj, out))
    return BlockView(block, attn=attn, mlp=lambda x: functional_call(block.mlp, weights, (x,)))
