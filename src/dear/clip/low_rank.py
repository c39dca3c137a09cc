"""Towers with low-rank terms (LoRA) added to queries, keys and values, and towers with other blocks."""

from collections.abc import Callable
from copy import copy
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


class _Attention:
    """An attention with frozen parameters and a term."""

    def __init__(self, frozen: Any, term: Term) -> None:
        self.in_proj_weight, self.in_proj_bias, self.out_proj = (
            frozen.in_proj_weight,
            frozen.in_proj_bias,
            frozen.out_proj,
        )
        self.inner_norm = getattr(frozen, "inner_norm", None)
        self.num_heads, self.term = frozen.num_heads, term


class _Block:
    """A frozen block with a term in its attention."""

    def __init__(self, frozen: Any, term: Term) -> None:
        self.attn = _Attention(frozen.attn, term)
        self.ln_1, self.ln_2, self.ls_1, self.ls_2, self.mlp = (
            frozen.ln_1, frozen.ln_2, frozen.ls_1, frozen.ls_2, frozen.mlp
        )  # fmt: skip


def with_low_rank(tower: Tower, terms: Callable[[int], Term]) -> Tower:
    """The same tower with a term in every layer, counted from 1; no weight is copied."""
    return with_blocks(tower, [_Block(block, terms(layer)) for layer, block in enumerate(tower.blocks, 1)])


def with_blocks(tower: Tower, blocks: Any) -> Tower:
    """The same tower with other blocks."""
    new = copy(tower)
    new.blocks = blocks
    return new
