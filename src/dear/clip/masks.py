"""Attention masks between original and learned tokens of the image tower, and what is constant because of them."""

from collections.abc import Mapping

import torch
from torch import Tensor

Pair = tuple[Tensor | None, Tensor | None]

VisibleHeads = tuple[tuple[int, tuple[int, ...]], ...]
"""(layer, heads) pairs: the heads in which some learned token attends to an original one. Layers count from 1."""


class Masks:
    """Masks of original and of learned queries, for each layer with learned tokens.

    They broadcast to [1, heads, queries, keys], original keys first, as in `scaled_dot_product_attention` (boolean,
    True: may attend; or additive); None: no mask.
    """

    visible_heads: VisibleHeads | None
    """Set if no original query attends to a learned key in any layer: then original tokens are those of the frozen
    tower, and only keys and values of these heads are needed of an image. None: some original query does."""

    def __init__(self, by_layer: Mapping[int, Pair], heads: int, originals: int) -> None:
        self._by_layer = by_layer
        visible = {layer: [_visible(mask, heads, originals) for mask in by_layer[layer]] for layer in sorted(by_layer)}
        if any(bool(by_original[:, originals:].any()) for by_original, _ in visible.values()):
            self.visible_heads = None
        else:
            flags = {layer: by_learned[:, :originals].any(1) for layer, (_, by_learned) in visible.items()}
            self.visible_heads = tuple((layer, tuple(flag.nonzero()[:, 0].tolist())) for layer, flag in flags.items())

    def __getitem__(self, layer: int) -> Pair:
        return self._by_layer[layer]


def _visible(mask: Tensor | None, heads: int, originals: int) -> Tensor:
    """The keys that some query attends to in each head, [heads, keys], with at least one learned key."""
    if mask is None:
        return torch.ones(heads, originals + 1, dtype=torch.bool)
    visible = mask if mask.dtype == torch.bool else mask > -torch.inf
    return visible.expand(1, heads, -1, max(visible.shape[-1], originals + 1))[0].any(1)
