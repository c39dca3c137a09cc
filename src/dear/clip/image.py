"""The image tower: CLS and patches, with learned tokens appended behind them from some layer on."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dear.clip.attention import (
    QueryGroup,
    attend,
    finish_block,
    merge_heads,
    project_keys_values,
    project_queries,
)
from dear.clip.masks import Masks
from dear.clip.tokens import LearnedTokens
from dear.parallel.processes import gather_rows

Observer = Callable[["LayerInput", "LayerInput | None"], None]
"""Told, at each layer, the entry of the original tokens, and of the learned ones if they ask."""


def last_third(layers: int) -> int:
    """First layer of the last third, where heads specialise: 9 of 12 (as in the paper), 17 of 24, 7 of 9."""
    return layers - max(1, layers // 3) + 1


class LayerInput(NamedTuple):
    """A layer's input and its queries, keys and values, [batch, heads, tokens, head_dim], before its attention.

    At the first adapted layer they are constant: the frozen and the adapted branch share them, and no gradient
    is computed through them. Behind the last layer there is only `frozen_cls`; where learned tokens read in what is
    constant, also the keys and values of `CachedKV`.
    """

    layer: int
    x: Tensor  # [batch, queries, width]
    q: Tensor
    k: Tensor
    v: Tensor
    frozen_cls: Tensor | None = None  # what `read_cls` gives for this entry, [batch, width], where it was kept


def rows(entry: "LayerInput", chosen: slice) -> "LayerInput":
    """The entry of some of its images."""
    kept = None if entry.frozen_cls is None else entry.frozen_cls[chosen]
    return LayerInput(entry.layer, entry.x[chosen], entry.q[chosen], entry.k[chosen], entry.v[chosen], kept)


class CachedStates(NamedTuple):
    """What is constant about images, kept instead of their pixels."""

    states: Tensor  # before the first adapted layer, [batch, 1 + patches, width]
    frozen_cls: Tensor  # the CLS state at the end of the untouched tower, [batch, width]

    def to(self, device: torch.device, non_blocking: bool = False) -> "CachedStates":
        return CachedStates(*(tensor.to(device, non_blocking=non_blocking) for tensor in self))


class CachedKV(NamedTuple):
    """All that is read of images where learned tokens are not seen by original ones: constant, from end to end."""

    frozen_cls: Tensor  # CLS behind the untouched tower, [batch, width]
    keys: Tensor  # of the heads in `Masks.visible_heads`, one after the other, [batch, heads, 1 + patches, head_dim]
    values: Tensor

    def to(self, *args: Any, **options: Any) -> "CachedKV":
        return CachedKV(*(tensor.to(*args, **options) for tensor in self))


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
        self.originals = 1 + self.grid[0] * self.grid[1]  # CLS and patches
        self.image_size: tuple[int, int] = visual.image_size

    def embed(self, pixels: Tensor) -> Tensor:
        """Normalised pixels [batch, 3, height, width] -> CLS and patches [batch, 1 + patches, width]."""
        return self.visual._embeds(pixels)

    def run(self, x: Tensor, first: int, last: int) -> Tensor:
        """Layers first..last on a sequence [batch, tokens, width], untouched."""
        for layer in range(first, last + 1):
            x = self.finish(self.enter(x, layer))
        return x

    @torch.no_grad()
    def trunk(self, pixels: Tensor, last: int) -> Tensor:
        """States after layer `last`, without a graph: what every branch shares. [batch, 1 + patches, width]."""
        return self.run(self.embed(pixels), 1, last)

    def enter(self, x: Tensor, layer: int, only_cls: bool = False) -> "LayerInput":
        """What `layer` computes from states [batch, 1 + patches, width] before it knows of any learned token.

        `only_cls`: nothing but CLS will be read from it, so it is the only query.
        """
        attn, normed = self.blocks[layer - 1].attn, self.blocks[layer - 1].ln_1(x)
        if only_cls:
            return LayerInput(layer, x[:, :1], project_queries(attn, normed[:, :1]), *project_keys_values(attn, normed))
        return LayerInput(layer, x, project_queries(attn, normed), *project_keys_values(attn, normed))

    def behind(self, cls: Tensor, *kept: Tensor) -> "LayerInput":
        """The place behind the last layer, for what reads nothing but the CLS state [batch, width] made there, and the
        `kept` keys and values of `CachedKV`."""
        none = cls.new_empty(0)
        keys, values = kept or (none, none)
        return LayerInput(self.layers + 1, cls[:, None], none, keys, values, cls)

    @torch.no_grad()
    def reads(self, entry: "LayerInput", masks: Masks) -> CachedKV:
        """The rest of the tower, untouched, and what learned tokens may read in it."""
        assert masks.visible_heads is not None
        heads, keys, values = dict(masks.visible_heads), [], []

        def keep(entry: "LayerInput", _: "LayerInput | None") -> None:
            chosen = list(heads[entry.layer])
            keys.append(entry.k[:, chosen])
            values.append(entry.v[:, chosen])

        cls = self.read_cls(entry, keep)
        return CachedKV(cls if entry.frozen_cls is None else entry.frozen_cls, torch.cat(keys, 1), torch.cat(values, 1))

    def kept_of(self, entry: "LayerInput", masks: Masks) -> Iterator[tuple[int, tuple[int, ...], Tensor, Tensor]]:
        """Of the entry behind `CachedKV`: each layer, the heads that are read in, their keys and their values."""
        assert masks.visible_heads is not None
        counts = [len(heads) for _, heads in masks.visible_heads]
        parts = zip(masks.visible_heads, entry.k.split(counts, 1), entry.v.split(counts, 1), strict=True)
        for (layer, heads), keys, values in parts:
            yield layer, heads, keys, values

    def read_cls(self, entry: "LayerInput", observe: Observer | None = None) -> Tensor:
        """The rest of the tower, untouched: CLS state [batch, width]. The last layer computes no other query."""
        if entry.frozen_cls is not None and observe is None:
            return gather_rows(entry.frozen_cls)
        while True:
            if observe is not None:
                observe(entry, None)
            if entry.layer == self.layers:
                return gather_rows(self.finish(entry)[:, 0])
            following = entry.layer + 1
            entry = self.enter(self.finish(entry), following, only_cls=following == self.layers)

    def finish(self, entry: "LayerInput") -> Tensor:
        """The rest of the entry's layer, untouched, [batch, queries, width]."""
        out = attend(entry.q, entry.k, entry.v, [QueryGroup(entry.q.shape[2])])
        return finish_block(self.blocks[entry.layer - 1], entry.x, merge_heads(out))

    def read_with_tokens(
        self,
        entry: "LayerInput",
        tokens: LearnedTokens,
        masks: Masks | None = None,
        read_tokens: bool = True,
        observe: Observer | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The rest of the tower with learned tokens, which enter at the entry's layer.

        Returns the CLS state [batch, width] and the states of the tokens [batch, tokens, width], or None without
        `read_tokens`. The last layer computes only these queries. Where nothing that a layer makes of the tokens is
        used (they are replaced at the next one, or not read), it takes them as keys and values only. From the entry
        behind `CachedKV` only the learned tokens go through the layers.
        """
        if masks is not None and entry.layer > self.layers:
            return self.read_cls(entry), gather_rows(
                self._among_kept(entry, tokens, masks, observe)
            ) if read_tokens else None
        batch, added = entry.x.shape[0], None  # `len` would fix the batch in an exported graph
        while True:
            layer, last = entry.layer, entry.layer == self.layers
            given = tokens.into(layer, added)
            ask = read_tokens if last else not tokens.replaced_at(layer + 1)
            # Raw tokens are the same for all images: what they become before attention is computed once.
            own = self.enter(given if given.dim() == 3 else given[None], layer)
            if observe is not None:
                observe(entry, LayerInput(layer, *(t.expand(batch, *t.shape[1:]) for t in own[1:5])) if ask else None)
            k, v = (_behind(one, other) for one, other in ((entry.k, own.k), (entry.v, own.v)))
            asking = entry.x.shape[1]
            of_original, of_added = (None, None) if masks is None else masks[layer]
            if of_original is not None and of_original.shape[-2] > asking:  # CLS, which comes first, asks alone
                of_original = of_original[..., :asking, :]
            groups, q, x = [QueryGroup(asking, of_original)], entry.q, entry.x
            if ask:
                groups.append(QueryGroup(len(tokens), of_added))
                q, x = _behind(q, own.q), _behind(x, own.x)
            x = finish_block(self.blocks[layer - 1], x, merge_heads(attend(q, k, v, groups)))
            added = x[:, asking:] if ask else None
            if last:
                return gather_rows(x[:, 0]), added if added is None else gather_rows(added)
            if not ask:
                added = given  # only says that they have entered: the next layer replaces them
            entry = self.enter(x[:, :asking], layer + 1, only_cls=layer + 1 == self.layers)

    def _among_kept(self, entry: "LayerInput", tokens: LearnedTokens, masks: Masks, observe: Observer | None) -> Tensor:
        """Learned tokens behind the last layer, [batch, tokens, width], which have read in kept keys and values."""
        batch, added = entry.x.shape[0], None
        for layer, heads, *kept in self.kept_of(entry, masks):
            added = given = tokens.into(layer, added)
            if layer < self.layers and tokens.replaced_at(layer + 1):
                continue  # nobody sees them here
            own = self.enter(given if given.dim() == 3 else given[None], layer)
            own = LayerInput(layer, *(t.expand(batch, *t.shape[1:]) for t in own[1:5]))
            k, v = (self._in_all_heads(part.to(own.k.dtype), heads) for part in kept)
            if observe is not None:
                observe(entry._replace(layer=layer, k=k, v=v), own)
            group = QueryGroup(len(tokens), masks[layer][1])
            out = attend(own.q, _behind(k, own.k), _behind(v, own.v), [group])
            added = finish_block(self.blocks[layer - 1], own.x, merge_heads(out))
        assert added is not None
        return added

    def _in_all_heads(self, kept: Tensor, heads: Sequence[int]) -> Tensor:
        """Keys or values of some heads, [batch, some, tokens, head_dim], and zeros in others, where nobody looks."""
        if len(heads) == self.heads:
            return kept
        found = kept.new_zeros(kept.shape[0], self.heads, *kept.shape[2:])
        found[:, list(heads)] = kept
        return found

    def project(self, cls: Tensor) -> Tensor:
        """Eq. 10: CLS state [batch, width] -> class feature [batch, dim], not normalised."""
        return self.visual.ln_post(cls) @ self.visual.proj

    def encode(self, pixels: Tensor) -> Tensor:
        """Normalised pixels -> image features [batch, dim], as OpenCLIP's `encode_image`, not normalised."""
        return self.project(self.read_cls(self.enter(self.embed(pixels), 1)))


def _behind(original: Tensor, learned: Tensor) -> Tensor:
    """Learned tokens, of every image or the same for all, behind the original ones, along the tokens' axis."""
    return torch.cat([original, learned.expand(original.shape[0], *learned.shape[1:])], dim=-2)
