"""The image tower: CLS and patches, with learned tokens appended behind them from some layer on."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dear.backbone.attention import QueryGroup, run_block
from dear.backbone.tokens import LearnedTokens

LayerMask = Callable[[int], tuple[Tensor | None, Tensor | None]]
"""Layer (from 1) -> masks of original and of learned queries, broadcast to [1, heads, queries, keys], as
`scaled_dot_product_attention` takes them (boolean, True: may see; or additive); None: sees all."""

Observer = Callable[[int, Tensor], None]
"""Told the layer and its input, [batch, 1 + patches + tokens, width]."""


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
        for block in self.blocks[first - 1 : last]:
            x = run_block(block, x)
        return x

    @torch.no_grad()
    def trunk(self, pixels: Tensor, last: int) -> Tensor:
        """States after layer `last`, without a graph: what every branch shares. [batch, 1 + patches, width]."""
        return self.run(self.embed(pixels), 1, last)

    def read_cls(self, x: Tensor, first: int) -> Tensor:
        """Layers first..L on states [batch, 1 + patches, width] -> CLS state [batch, width]; prunes the last."""
        x = self.run(x, first, self.layers - 1)
        return run_block(self.blocks[-1], x, read=torch.tensor([0], device=x.device))[:, 0]

    def read_with_tokens(
        self, x: Tensor, tokens: LearnedTokens, masks: LayerMask, observe: Observer | None = None
    ) -> tuple[Tensor, Tensor]:
        """Layers J..L with learned tokens, from states after layer J - 1, [batch, 1 + patches, width].

        Returns the CLS state [batch, width] and the states of the tokens [batch, tokens, width]. The last
        layer computes only these queries.
        """
        original, count = x.shape[1], len(tokens)
        added = tokens.raw.expand(x.shape[0], -1, -1)
        for layer in range(tokens.first_layer, self.layers + 1):
            if layer > tokens.first_layer:
                added = tokens.mixed(added)
            of_original, of_added = masks(layer)
            last = layer == self.layers
            groups = [QueryGroup(1 if last else original, of_original), QueryGroup(count, of_added)]
            read = torch.tensor([0, *range(original, original + count)], device=x.device) if last else None
            sequence = torch.cat([x, added], dim=1)
            if observe is not None:
                observe(layer, sequence)
            out = run_block(self.blocks[layer - 1], sequence, groups, read)
            x, added = out[:, :-count], out[:, -count:]
        return x[:, 0], added

    def project(self, cls: Tensor) -> Tensor:
        """Eq. 10: CLS state [batch, width] -> class feature [batch, dim], not normalised."""
        return self.visual.ln_post(cls) @ self.visual.proj

    def encode(self, pixels: Tensor) -> Tensor:
        """Normalised pixels -> image features [batch, dim], as OpenCLIP's `encode_image`, not normalised."""
        return self.project(self.read_cls(self.embed(pixels), 1))
