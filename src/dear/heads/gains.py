"""Gains: what chosen heads add to an image feature beyond their mean, scaled. Gain 1 is CLIP, gain 0 the mean head.

The CLS state x after the last layer is a sum to which every head adds its part. With gains g, and mean outputs m over
some images, it becomes x + sum_h (g_h - 1) (o_h - m_h) W_h. Later layers do not see it: only direct effects are scaled.
"""

from typing import NamedTuple

from torch import Tensor

from dear.clip.image import ImageTower
from dear.clip.layer_input import CachedHeads


class Gains(NamedTuple):
    """Gains of the heads from `first` on."""

    first: int
    means: Tensor  # mean outputs at CLS, [layers, heads, head_dim]
    gains: Tensor  # [layers, heads]

    def apply(self, tower: ImageTower, images: CachedHeads) -> CachedHeads:
        """The CLS state with these gains, and the outputs that would have written it."""
        change = (self.gains - 1)[..., None] * (images.outputs - self.means)
        added = zip(change.flatten(2).unbind(1), tower.blocks[self.first - 1 :], strict=True)
        cls = images.frozen_cls
        for of_layer, block in added:
            cls = cls + block.ls_1(of_layer @ block.attn.out_proj.weight.T)
        return CachedHeads(cls, images.outputs + change)
