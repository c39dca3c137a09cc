"""Towers with some parts of their blocks replaced, such as low-rank terms (LoRA) beside queries, keys and values."""

from collections.abc import Callable
from copy import copy
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from dear.clip.image import ImageTower
from dear.clip.text import TextTower
from dear.parallel.processes import dropout

Term = Callable[[int, Tensor], Tensor]
"""(0: queries, 1: keys, 2: values; input of the projection, [..., width]) -> term, [..., width]."""
Tower = TypeVar("Tower", ImageTower, TextTower)


class LowRank(nn.Module):
    """s B A drop(x) for queries, keys and values of each layer; B starts at zero."""

    def __init__(
        self, tower: ImageTower | TextTower, rank: int, alpha: float, dropout_share: float, like: Tensor
    ) -> None:
        super().__init__()
        self.scale, self.dropout_share, bound = alpha / rank**0.5, dropout_share, tower.width**-0.5
        shape = (tower.layers, 3, rank, tower.width)
        self.down = nn.Parameter(torch.empty(shape).uniform_(-bound, bound).to(like))
        self.up = nn.Parameter(torch.zeros(tower.layers, 3, tower.width, rank).to(like))

    def layer_term(self, layer: int) -> Term:
        def term(part: int, x: Tensor) -> Tensor:
            x = dropout(x, self.dropout_share, self.training)
            down, up = (weight[layer - 1, part].T.to(x.dtype) for weight in (self.down, self.up))
            return self.scale * (x @ down) @ up

        return term


class BlockView(SimpleNamespace):
    """A frozen block with some parts replaced; weights are shared, not copied."""

    parts: tuple[str, ...] = ("attn", "ln_1", "ln_2", "ls_1", "ls_2", "mlp")

    def __init__(self, frozen: Any, **replaced: Any) -> None:
        own = {name: getattr(frozen, name, None) for name in self.parts if name not in replaced}
        super().__init__(**own, **replaced)


class AttentionView(BlockView):
    """The attention of a frozen block with some parts replaced, or with a `term`."""

    parts = ("in_proj_weight", "in_proj_bias", "out_proj", "num_heads", "inner_norm")


def with_low_rank(tower: Tower, terms: Callable[[int], Term]) -> Tower:
    """A copy of the tower with a term in every layer, counted from 1; no weight is copied."""
    layers = enumerate(tower.blocks, 1)
    return with_blocks(tower, [BlockView(b, attn=AttentionView(b.attn, term=terms(layer))) for layer, b in layers])


def with_blocks(tower: Tower, blocks: Any) -> Tower:
    """A copy of the tower with other blocks."""
    new = copy(tower)
    new.blocks = blocks
    return new
