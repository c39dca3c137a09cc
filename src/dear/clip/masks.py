"""Who may see whom among original and learned tokens of the image tower, and what is constant because of it."""

from collections.abc import Mapping

import torch
from torch import Tensor

Pair = tuple[Tensor | None, Tensor | None]

VisibleHeads = tuple[tuple[int, tuple[int, ...]], ...]
"""Each layer that learned tokens are in, from 1, and the heads in which any of them sees an original one."""


class Masks:
    """By layer, from the first that learned tokens are in: masks of original and of learned queries.

    They broadcast to [1, heads, queries, keys], original keys first, as `scaled_dot_product_attention` takes them
    (boolean, True: may see; or additive); None: sees all.
    """

    visible_heads: VisibleHeads | None
    """Set where no original query sees a learned key in any layer: then original tokens are those of the untouched
    tower, and all that is read of an image is keys and values of these heads. None: learned tokens are seen."""

    def __init__(self, of_layer: Mapping[int, Pair], heads: int, originals: int) -> None:
        self._of_layer = of_layer
        seen = {layer: [_seen(mask, heads, originals) for mask in of_layer[layer]] for layer in sorted(of_layer)}
        if any(bool(of_original[:, originals:].any()) for of_original, _ in seen.values()):
            self.visible_heads = None
        else:
            read = {layer: of_learned[:, :originals].any(1) for layer, (_, of_learned) in seen.items()}
            self.visible_heads = tuple((layer, tuple(which.nonzero()[:, 0].tolist())) for layer, which in read.items())

    def __getitem__(self, layer: int) -> Pair:
        return self._of_layer[layer]


def _seen(mask: Tensor | None, heads: int, originals: int) -> Tensor:
    """Which keys any query sees in each head, [heads, keys]: at least one learned key."""
    if mask is None:
        return torch.ones(heads, originals + 1, dtype=torch.bool)
    seen = mask if mask.dtype == torch.bool else mask > -torch.inf
    return seen.expand(1, heads, -1, max(seen.shape[-1], originals + 1))[0].any(1)
