"""The image tower: CLS and patches, with learned tokens appended behind them from some layer on."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dear.backbone.attention import (
    QueryGroup,
    attend,
    finish_block,
    merge_heads,
    project_keys_values,
    project_queries,
)
from dear.backbone.tokens import LearnedTokens

LayerMask = Callable[[int], tuple[Tensor | None, Tensor | None]]
"""Layer (from 1) -> masks of original and of learned queries, broadcast to [1, heads, queries, keys], as
`scaled_dot_product_attention` takes them (boolean, True: may see; or additive); None: sees all."""

Observer = Callable[["Entry", "Entry"], None]
"""Told, at each layer, the entry of the original and of the learned tokens."""


def last_third(layers: int) -> int:
    """First layer of the last third, where heads specialise: 9 of 12 (as in the paper), 17 of 24, 7 of 9."""
    return layers - max(1, layers // 3) + 1


class Entry(NamedTuple):
    """A layer's input and its queries, keys and values, [batch, heads, tokens, head_dim], before its attention.

    At the first adapted layer they are constant: the frozen and the adapted branch share them, and no gradient
    is computed through them.
    """

    layer: int
    x: Tensor  # [batch, queries, width]
    q: Tensor
    k: Tensor
    v: Tensor
    frozen_cls: Tensor | None = None  # what `read_cls` gives for this entry, [batch, width], where it was kept


class TrunkStates(NamedTuple):
    """What is constant about images, kept instead of their pixels."""

    states: Tensor  # before the first adapted layer, [batch, 1 + patches, width]
    frozen_cls: Tensor  # the CLS state at the end of the untouched tower, [batch, width]

    def to(self, device: torch.device, non_blocking: bool = False) -> "TrunkStates":
        return TrunkStates(*(tensor.to(device, non_blocking=non_blocking) for tensor in self))


class ImageTower:
    """OpenCLIP's VisionTransformer as a list of blocks. Layers are counted from 1."""

    def __init__(self, visual: Any) -> None:
        self.visual = visual
        self.blocks: Sequence[Any] = visual.transformer.resblocks
        self.layers = len(self.blocks)
        self.heads: int = self.blocks[0].attn.num_heads
        self.width: int = self.blocks[0].attn.embed_dim
        self.head_dim = self.width // self.heads
        self.grid: tuple[int, int] = visual.grid_size
        self.image_size: tuple[int, int] = visual.image_size

    def embed(self, pixels: Tensor) -> Tensor:
        """Normalised pixels [batch, 3, height, width] -> CLS and patches [batch, 1 + patches, width]."""
        return self.visual._embeds(pixels)

    def run(self, x: Tensor, first: int, last: int) -> Tensor:
        """Layers first..last on a sequence [batch, tokens, width], untouched."""
        for layer in range(first, last + 1):
            x = self._finish(self.enter(x, layer))
        return x

    @torch.no_grad()
    def trunk(self, pixels: Tensor, last: int) -> Tensor:
        """States after layer `last`, without a graph: what every branch shares. [batch, 1 + patches, width]."""
        return self.run(self.embed(pixels), 1, last)

    def enter(self, x: Tensor, layer: int, only_cls: bool = False) -> "Entry":
        """What `layer` computes from states [batch, 1 + patches, width] before it knows of any learned token.

        `only_cls`: nothing but CLS will be read from it, so it is the only query.
        """
        attn, normed = self.blocks[layer - 1].attn, self.blocks[layer - 1].ln_1(x)
        if only_cls:
            return Entry(layer, x[:, :1], project_queries(attn, normed[:, :1]), *project_keys_values(attn, normed))
        return Entry(layer, x, project_queries(attn, normed), *project_keys_values(attn, normed))

    def read_cls(self, entry: "Entry") -> Tensor:
        """The rest of the tower, untouched: CLS state [batch, width]. The last layer computes no other query."""
        if entry.frozen_cls is not None:
            return entry.frozen_cls
        while entry.layer < self.layers:
            following = entry.layer + 1
            entry = self.enter(self._finish(entry), following, only_cls=following == self.layers)
        return self._finish(entry)[:, 0]

    def _finish(self, entry: "Entry") -> Tensor:
        """The rest of the entry's layer, untouched, [batch, queries, width]."""
        out = attend(entry.q, entry.k, entry.v, [QueryGroup(entry.q.shape[2])])
        return finish_block(self.blocks[entry.layer - 1], entry.x, merge_heads(out))

    def read_with_tokens(
        self, entry: "Entry", tokens: LearnedTokens, masks: LayerMask, observe: Observer | None = None
    ) -> tuple[Tensor, Tensor]:
        """The rest of the tower with learned tokens, which enter at the entry's layer.

        Returns the CLS state [batch, width] and the states of the tokens [batch, tokens, width]. The last
        layer computes only these queries.
        """
        added = tokens.raw.expand(entry.x.shape[0], -1, -1)
        while True:
            own = self.enter(added, entry.layer)
            if observe is not None:
                observe(entry, own)
            q, k, v, x = (
                torch.cat([original, learned], dim=-2)
                for original, learned in ((entry.q, own.q), (entry.k, own.k), (entry.v, own.v), (entry.x, own.x))
            )
            asking = entry.x.shape[1]
            of_original, of_added = masks(entry.layer)
            out = attend(q, k, v, [QueryGroup(asking, of_original), QueryGroup(len(tokens), of_added)])
            x = finish_block(self.blocks[entry.layer - 1], x, merge_heads(out))
            if entry.layer == self.layers:
                return x[:, 0], x[:, asking:]
            following = entry.layer + 1
            added = tokens.mixed(x[:, asking:])
            entry = self.enter(x[:, :asking], following, only_cls=following == self.layers)

    def project(self, cls: Tensor) -> Tensor:
        """Eq. 10: CLS state [batch, width] -> class feature [batch, dim], not normalised."""
        return self.visual.ln_post(cls) @ self.visual.proj

    def encode(self, pixels: Tensor) -> Tensor:
        """Normalised pixels -> image features [batch, dim], as OpenCLIP's `encode_image`, not normalised."""
        return self.project(self.read_cls(self.enter(self.embed(pixels), 1)))
