"""The image tower: CLS and patches, followed by learned tokens from some layer on."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip.attention import QueryGroup, attend, finish_block, merge_heads
from dear.clip.half import halve_blocks, in_own_precision
from dear.clip.layer_input import CachedHeads, CachedKV, CachedStates, Images, LayerInput, observer_of_this_thread
from dear.clip.masks import Masks
from dear.clip.read_out import MEAN, PROBE, READ_CLS, PlainEnds, ProbePool
from dear.clip.tokens import LearnedTokens
from dear.core.runtime import once
from dear.parallel.processes import gather_rows


def last_third(layers: int) -> int:
    """First layer of the last third, where heads specialise: 9 of 12 (as in the paper), 17 of 24, 7 of 9."""
    return layers - max(1, layers // 3) + 1


class ImageFeatures(NamedTuple):
    """Outputs of a tower with learned tokens, not normalised."""

    cls: Tensor  # class feature, [batch, dim]
    tokens: Tensor | None  # states of the learned tokens after the final LayerNorm, [batch, tokens, width]


class ImageTower(PlainEnds):
    """OpenCLIP's VisionTransformer as a list of blocks. Layers count from 1.

    In a training step of several processes, a tower gets the local images and returns features of the whole batch.
    """

    tier = "full"

    def __init__(self, visual: Any) -> None:
        self.visual = visual
        self.reader = ProbePool(visual) if visual.attn_pool is not None else None
        self.read = PROBE if self.reader else MEAN if visual.pool_type == "avg" else READ_CLS
        self.norm_first = self.read == MEAN and not visual.final_ln_after_pool
        self.grid: tuple[int, int] = visual.grid_size
        self.prefix = 1  # tokens in front of the patches: CLS
        self.image_size: tuple[int, int] = visual.image_size
        self.dim: int = visual.proj.shape[1]
        self._set_blocks(visual.transformer.resblocks)

    def _set_blocks(self, blocks: Sequence[Any]) -> None:
        self.blocks = blocks
        self.layers = len(blocks)
        self.heads: int = blocks[0].attn.num_heads
        self.width: int = blocks[0].attn.out_proj.in_features
        self.head_dim = self.width // self.heads
        self.read_width = self.reader.width if self.reader else self.width  # of the state that is read
        self.originals = self.prefix + self.grid[0] * self.grid[1]  # CLS and patches

    def halve(self, dtype: torch.dtype) -> None:
        """Casts the weights of the blocks to half, once."""
        halve_blocks(self.blocks, dtype)
        self.precision = dtype

    # --- frozen ------------------------------------------------------------------------------------------

    @torch.no_grad()
    def trunk(self, pixels: Tensor, last: int) -> Tensor:
        """States after layer `last`, without a graph, [batch, 1 + patches, width]."""
        x = self.embed(pixels)
        for layer in range(1, last + 1):
            x = self.run_layer(LayerInput(self, layer, x))
        return x

    def run_layer(self, x: LayerInput, to_read: bool = False) -> Tensor:
        """The states after the layer, unadapted, [batch, tokens, width]; `to_read`: of the tokens that are read out."""
        q, residual = self._queries(x, to_read)
        out = attend(q, *x.kv, [QueryGroup(q.shape[2])])
        return finish_block(self.blocks[x.layer - 1], residual, merge_heads(out))

    def _queries(self, x: LayerInput, to_read: bool) -> tuple[Tensor, Tensor]:
        """Queries and states of all tokens, or, to read it, of CLS alone."""
        return (x.cls_q, x.states[:, :1]) if to_read and self.read == READ_CLS else (x.q, x.states)

    def walk(self, x: LayerInput) -> Iterator[LayerInput]:
        """The inputs of all layers from `x` on, unadapted."""
        yield x
        while x.layer < self.layers:
            x = LayerInput(self, x.layer + 1, self.run_layer(x))
            yield x

    @in_own_precision
    def cls_state(self, x: LayerInput) -> Tensor:
        """The rest of the tower, unadapted: the state that is read, [batch, width].

        If that is the state of CLS, the last layer computes no other query.
        """
        observer = observer_of_this_thread.get()
        if x.frozen_cls is not None and (observer is None or x.layer > self.layers):
            return gather_rows(x.frozen_cls)
        for x in self.walk(x):  # noqa: B020 - only the last one is used after the loop
            if observer is not None:
                observer(x, None)
        return gather_rows(self.pool(self.run_layer(x, to_read=True)))

    @torch.no_grad()
    def frozen_feature(self, x: LayerInput) -> Tensor:
        """The class feature of unadapted CLIP, normalised, [batch, dim]."""
        return F.normalize(self.project(self.cls_state(x)), dim=-1)

    def encode(self, pixels: Tensor) -> Tensor:
        """Normalised pixels -> image features [batch, dim], as OpenCLIP's `encode_image`, not normalised."""
        return self.project(self.cls_state(LayerInput(self, 1, self.embed(pixels))))

    # --- constant part -----------------------------------------------------------------------------------

    @torch.no_grad()
    @in_own_precision
    def layer_input(self, images: Images, first: int, masks: Masks | None = None) -> LayerInput:
        """The input of layer `first`, the first adapted one: all layers before it are constant and build no graph.

        If no original token attends to a learned one (see `Masks`), the whole tower is constant, and the result is the
        input after its last layer.
        """
        if isinstance(images, CachedKV):
            return self.after_tower(images.frozen_cls, images)
        if isinstance(images, CachedHeads):
            return LayerInput(self, self.layers + 1, images.frozen_cls[:, None], *images[:1], None, images.outputs)
        cached = isinstance(images, CachedStates)
        frozen_cls = images.frozen_cls if isinstance(images, CachedStates) else None
        if first > self.layers:
            if frozen_cls is None:
                frozen_cls = self.cls_state(LayerInput(self, 1, self.embed(images)))  # type: ignore[arg-type]
            return self.after_tower(frozen_cls)
        states = images.states.to(self.like.dtype) if cached else self.trunk(images, first - 1)  # type: ignore
        x = LayerInput(self, first, states, frozen_cls)
        if masks is None or masks.visible_heads is None:
            return x
        kv = self.cached_kv(x, masks)
        return self.after_tower(kv.frozen_cls, kv)

    def after_tower(self, cls: Tensor, cached: CachedKV | None = None) -> LayerInput:
        """The input after the last layer: the frozen CLS state [batch, width], and cached keys and values, if any."""
        return LayerInput(self, self.layers + 1, cls[:, None], cls, cached)

    @torch.no_grad()
    @in_own_precision
    def head_outputs(self, images: Images, first: int) -> CachedHeads:
        """The frozen state that is read, and the outputs of the heads from layer `first` on: at CLS, or their mean over
        the patches, as the state is read."""
        if isinstance(images, CachedHeads):
            return images
        outputs = []
        for x in self.walk(self.layer_input(images, first)):
            q, residual = self._queries(x, True)
            attended = attend(q, *x.kv, [QueryGroup(q.shape[2])])  # [batch, heads, queries, head_dim]
            outputs.append(attended[:, :, 0] if self.read == READ_CLS else attended[:, :, self.prefix :].mean(2))
        cls = self.pool(finish_block(self.blocks[-1], residual, merge_heads(attended)))
        return CachedHeads(cls, torch.stack(outputs, 1))

    def head_maps(self, first: int) -> Tensor:
        """Output projection per head, from layer `first` on, [layers, heads, head_dim, width]; no bias."""
        maps = [block.ls_1(block.attn.out_proj.weight.T) for block in self.blocks[first - 1 :]]
        return torch.stack(maps).unflatten(1, (self.heads, -1))

    @torch.no_grad()
    def cached_kv(self, x: LayerInput, masks: Masks) -> CachedKV:
        """The rest of the tower, unadapted, and the keys and values in it that learned tokens attend to."""
        assert masks.visible_heads is not None
        heads, keys, values = dict(masks.visible_heads), [], []
        frozen = x.frozen_cls
        for x in self.walk(x):  # noqa: B020 - only the last one is used after the loop
            visible = self.index(heads[x.layer])
            keys.append(x.kv[0].index_select(1, visible))
            values.append(x.kv[1].index_select(1, visible))
        if frozen is None:
            frozen = gather_rows(self.pool(self.run_layer(x, to_read=True)))
        return CachedKV(frozen, torch.cat(keys, 1), torch.cat(values, 1))

    def cached_layers(self, x: LayerInput, masks: Masks) -> Iterator[tuple[int, tuple[int, ...], Tensor, Tensor]]:
        """Layer, visible heads, their keys and their values, of an input with cached keys and values."""
        assert masks.visible_heads is not None
        assert x.cached is not None
        counts = [len(heads) for _, heads in masks.visible_heads]
        parts = zip(masks.visible_heads, x.cached.keys.split(counts, 1), x.cached.values.split(counts, 1), strict=True)
        for (layer, heads), keys, values in parts:
            yield layer, heads, keys, values

    # --- with learned tokens -----------------------------------------------------------------------------

    def features(
        self,
        x: LayerInput,
        tokens: LearnedTokens | None = None,
        masks: Masks | None = None,
        read_tokens: bool = False,
    ) -> ImageFeatures:
        """The outputs of the rest of the tower, with learned tokens from the input's layer on."""
        if tokens is None:
            return ImageFeatures(self.project(self.cls_state(x)), None)
        cls, states = self.with_tokens(x, tokens, masks, read_tokens)
        return ImageFeatures(self.project(cls), None if states is None else self.norm_out(states))

    @in_own_precision
    def with_tokens(
        self, x: LayerInput, tokens: LearnedTokens, masks: Masks | None = None, read_tokens: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """The rest of the tower with learned tokens, which enter at the input's layer.

        Returns the CLS state [batch, width] and the states of the tokens [batch, tokens, width] (None without
        `read_tokens`); the last layer computes no other query. In a layer whose output for the tokens is not used
        (they are replaced at the next layer, or not read), they are keys and values only. With cached keys and values,
        only the learned tokens run through the layers.
        """
        if masks is not None and x.cached is not None:
            states = gather_rows(self._among_cached(x, tokens, masks)) if read_tokens else None
            return self.cls_state(x), states
        observer, added = observer_of_this_thread.get(), None
        probed = self.read == PROBE and masks is None  # masks hide learned tokens from the probe: it stays CLIP's
        while True:
            layer, last = x.layer, x.layer == self.layers
            raw = tokens.into(layer, added)
            are_queries = read_tokens or probed if last else not tokens.replaced_at(layer + 1)
            # Raw tokens are the same for all images: their queries, keys and values are computed once.
            learned = LayerInput(self, layer, raw if raw.dim() == 3 else raw[None], learned=True)
            if observer is not None:
                observer(x, learned if are_queries else None)
            k, v = (_append(one, other) for one, other in zip(x.kv, learned.kv, strict=True))
            q, states = self._queries(x, last)
            count = states.shape[1]
            original_mask, learned_mask = (None, None) if masks is None else masks[layer]
            if original_mask is not None and original_mask.shape[-2] > count:  # CLS, the first, is the only query
                original_mask = original_mask[..., :count, :]
            groups = [QueryGroup(count, original_mask)]
            if are_queries:
                groups.append(QueryGroup(len(tokens), learned_mask))
                q, states = _append(q, learned.q), _append(states, learned.states)
            states = finish_block(self.blocks[layer - 1], states, merge_heads(attend(q, k, v, groups)))
            added = states[:, count:] if are_queries else None
            if last:
                pooled = self.pool(states[:, :count], added if probed else None)
                return gather_rows(pooled), gather_rows(added) if read_tokens and added is not None else None
            if added is None:
                added = raw  # they have entered: the next layer replaces them
            x = LayerInput(self, layer + 1, states[:, :count])

    def _among_cached(self, x: LayerInput, tokens: LearnedTokens, masks: Masks) -> Tensor:
        """States of the learned tokens after the last layer, [batch, tokens, width], over cached keys and values."""
        observer, added = observer_of_this_thread.get(), None
        batch = x.states.shape[0]  # `len` would fix the batch of an ONNX graph
        for layer, heads, *cached in self.cached_layers(x, masks):
            added = raw = tokens.into(layer, added)
            if layer < self.layers and tokens.replaced_at(layer + 1):
                continue  # no query attends to them here
            learned = LayerInput(self, layer, raw if raw.dim() == 3 else raw[None], learned=True)
            k, v = (self._in_all_heads(part.to(learned.q.dtype), heads) for part in cached)
            if observer is not None:
                original = LayerInput(self, layer, x.states)
                original.kv = k, v
                observer(original, learned)
            learned_k, learned_v = learned.kv
            out = attend(
                learned.q.expand(batch, *learned.q.shape[1:]),
                _append(k, learned_k),
                _append(v, learned_v),
                [QueryGroup(len(tokens), masks[layer][1])],
            )
            states = learned.states.expand(batch, *learned.states.shape[1:])
            added = finish_block(self.blocks[layer - 1], states, merge_heads(out))
        assert added is not None
        return added

    def _in_all_heads(self, cached: Tensor, heads: Sequence[int]) -> Tensor:
        """Keys or values of some heads, [batch, some, tokens, head_dim] -> all heads; zeros in the others, which are
        masked."""
        if len(heads) == self.heads:
            return cached
        full = cached.new_zeros(cached.shape[0], self.heads, *cached.shape[2:])
        return full.index_copy(1, self.index(heads), cached)

    def index(self, numbers: Sequence[int]) -> Tensor:
        """Numbers as an index on the tower's device, sent there once: a list as an index makes the host wait."""
        key, device = tuple(numbers), self.like.device
        return once(self._indices, key, lambda: torch.tensor(key, dtype=torch.long, device=device))

    @cached_property
    def _indices(self) -> dict[tuple[int, ...], Tensor]:
        return {}

    @staticmethod
    def gather(x: Tensor) -> Tensor:
        """Rows of the local images -> rows of the whole batch, for methods that compute features of their own."""
        return gather_rows(x)


def _append(original: Tensor, learned: Tensor) -> Tensor:
    """Learned tokens, one set for all images or one per image, after the original ones, along the tokens' axis."""
    return torch.cat([original, learned.expand(original.shape[0], *learned.shape[1:])], dim=-2)
