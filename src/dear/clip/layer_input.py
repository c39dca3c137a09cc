"""The input of one layer of the image tower, and the cached tensors of images for its constant part."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from dear.clip.attention import normed_input, project_keys_values, project_queries

if TYPE_CHECKING:
    from dear.clip.image import ImageTower

LayerObserver = Callable[["LayerInput", "LayerInput | None"], None]
"""Called at each layer with the input of the original tokens, and of the learned ones if they are queries."""

observer_of_this_thread: ContextVar[LayerObserver | None] = ContextVar("observer", default=None)


@contextmanager
def observing(observer: LayerObserver) -> Iterator[None]:
    """Inside, image towers call `observer` at every layer that they run, in this thread alone."""
    token = observer_of_this_thread.set(observer)
    try:
        yield
    finally:
        observer_of_this_thread.reset(token)


class CachedStates(NamedTuple):
    """The result of the constant layers for some images, in place of their pixels."""

    states: Tensor  # before the first adapted layer, [batch, 1 + patches, width]
    frozen_cls: Tensor  # CLS state after the frozen tower, [batch, width]


class CachedKV(NamedTuple):
    """The result of the whole tower for some images: constant if no original token attends to a learned one."""

    frozen_cls: Tensor  # CLS state after the frozen tower, [batch, width]
    keys: Tensor  # of the heads in `Masks.visible_heads`, layer by layer, [batch, heads, 1 + patches, head_dim]
    values: Tensor


class CachedHeads(NamedTuple):
    """The result of the whole tower for some images, and what the heads of its last layers put out where it is read."""

    frozen_cls: Tensor  # CLS state after the frozen tower, [batch, width]
    outputs: Tensor  # before the output projection, [batch, layers, heads, head_dim]


Images = Tensor | CachedStates | CachedKV | CachedHeads
"""Normalised pixels [batch, 3, height, width], or the cached result of constant layers."""


class LayerInput:
    """States before a layer, and their queries, keys and values in it, computed when first used.

    At the first adapted layer all of them are constant, and shared by the frozen and the adapted branch. After the
    last layer (`layer` is one more than the tower has) there is only the frozen CLS state, and perhaps cached keys and
    values.
    """

    def __init__(
        self,
        tower: "ImageTower",
        layer: int,
        states: Tensor,  # [batch, tokens, width]
        frozen_cls: Tensor | None = None,  # CLS state after the frozen tower, [batch, width], if computed
        cached: CachedKV | None = None,
        head_outputs: Tensor | None = None,  # see `CachedHeads`, for methods that read heads
        learned: bool = False,  # tokens without a place, which are not rotated
    ) -> None:
        self.tower, self.layer, self.states, self.frozen_cls, self.cached = tower, layer, states, frozen_cls, cached
        self.head_outputs, self.learned = head_outputs, learned

    @cached_property
    def normed(self) -> Tensor:
        return normed_input(self.tower.blocks[self.layer - 1], self.states)

    @cached_property
    def q(self) -> Tensor:
        """[batch, heads, tokens, head_dim]"""
        return self._placed(project_queries(self.tower.blocks[self.layer - 1].attn, self.normed))

    @cached_property
    def cls_q(self) -> Tensor:
        """The query of the first token alone, [batch, heads, 1, head_dim]."""
        return project_queries(self.tower.blocks[self.layer - 1].attn, self.normed[:, :1])

    @cached_property
    def kv(self) -> tuple[Tensor, Tensor]:
        """Keys and values, each [batch, heads, tokens, head_dim]."""
        keys, values = project_keys_values(self.tower.blocks[self.layer - 1].attn, self.normed)
        return self._placed(keys), values

    def _placed(self, x: Tensor) -> Tensor:
        return x if self.learned else self.tower.rotate(x)

    def rows(self, chosen: slice) -> "LayerInput":
        """The input of some of the images."""
        frozen = None if self.frozen_cls is None else self.frozen_cls[chosen]
        return LayerInput(self.tower, self.layer, self.states[chosen], frozen)
