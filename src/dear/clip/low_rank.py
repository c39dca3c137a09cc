"""Blocks with low-rank terms beside the frozen projections of queries, keys and values."""

from collections.abc import Callable
from copy import copy
from typing import Any, TypeVar

from torch import Tensor

from dear.clip.image import ImageTower
from dear.clip.text import TextTower

Term = Callable[[int, Tensor], Tensor]
"""(0: queries, 1: keys, 2: values; what is projected, [..., width]) -> what is added, [..., width]."""
Tower = TypeVar("Tower", ImageTower, TextTower)


class _Attention:
    """The frozen parameters of an attention, and the term."""

    def __init__(self, frozen: Any, term: Term) -> None:
        self.in_proj_weight, self.in_proj_bias, self.out_proj = (
            frozen.in_proj_weight,
            frozen.in_proj_bias,
            frozen.out_proj,
        )
        self.embed_dim, self.num_heads, self.term = frozen.embed_dim, frozen.num_heads, term


class _Block:
    """A frozen block that sees its attention through a term."""

    def __init__(self, frozen: Any, term: Term) -> None:
        self.attn = _Attention(frozen.attn, term)
        self.ln_1, self.ln_2, self.ls_1, self.ls_2, self.mlp = (
            frozen.ln_1, frozen.ln_2, frozen.ls_1, frozen.ls_2, frozen.mlp
        )  # fmt: skip


def with_low_rank(tower: Tower, terms: Callable[[int], Term]) -> Tower:
    """The same tower with a term in every layer, counted from 1; no weight is copied."""
    return with_blocks(tower, [_Block(block, terms(layer)) for layer, block in enumerate(tower.blocks, 1)])


def with_blocks(tower: Tower, blocks: Any) -> Tower:
    """The same tower on other blocks."""
    other = copy(tower)
    other.blocks = blocks
    return other
