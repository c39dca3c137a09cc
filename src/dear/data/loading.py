"""Decodes examples into batches of pixels, in worker processes."""

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from torch import Tensor
from torch.utils.data import DataLoader

from dear.core.errors import DearError, naming_killed_workers
from dear.core.progress import Progress
from dear.data.check import picture_hash
from dear.data.columns import Mapped
from dear.data.dataset import Example

# Processes that decode images, unless a command is told otherwise: as many as there are cores.
WORKERS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_CACHE_LIMIT = 2**30  # bytes of pixels: about 1800 images at 224 px
_MOST_CACHED = 2000  # images: the processes that decode more than that are kept, as their pixels are not cached
_cache: dict[Hashable, list[tuple[Tensor, Tensor]]] = {}  # the last used at the end
_loaders: dict[Hashable, DataLoader] = {}  # the last one for images too many to cache, with its processes

Batch = TypeVar("Batch")


def from_workers(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The batches; an error in a worker is raised as its own sentence, without the worker's traceback."""
    with naming_killed_workers():
        try:
            yield from batches
        except DearError as error:
            raise DearError(str(error).rpartition("DearError: ")[2].strip()) from None


def decoding_loader(
    data: Any, batch: int, workers: int | None = None, pinned: bool = False, persistent: bool = False
) -> DataLoader:
    """A loader that decodes ahead in `workers` processes (None: `WORKERS`), but no more than there are batches.

    `pinned`: in memory from which a GPU copies while it computes; `persistent`: the processes wait for the next pass.
    """
    workers = min(WORKERS if workers is None else workers, -(-len(data) // batch))
    ahead = 4 if workers and pinned else None
    keep = persistent and workers > 0
    return DataLoader(
        data, batch, num_workers=workers, pin_memory=pinned, prefetch_factor=ahead, persistent_workers=keep
    )


def evaluation_batches(
    examples: Sequence[Example],
    transform: Callable[[Any], Tensor],
    title: str,
    batch: int = 64,
    workers: int | None = None,
    pinned: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Pixels [batch, 3, height, width] and labels [batch], in order, with a progress bar.

    Pixels are cached up to `_CACHE_LIMIT`: examples of the same content are not decoded again by the same transform.
    For more, the processes that decode wait for the next pass.
    """
    key = (tuple((picture_hash(example.picture), example.label) for example in examples), transform, batch)
    if key in _cache:
        _cache[key] = _cache.pop(key)  # to the end
        yield from _cache[key]
        return
    decoded = []
    if key not in _loaders:
        _loaders.clear()
        data = Mapped(examples, partial(_decode_example, transform))
        _loaders[key] = decoding_loader(data, batch, workers, pinned, persistent=len(examples) > _MOST_CACHED)
    with Progress(title, len(examples)) as bar:
        for pixels, labels in from_workers(_loaders[key]):
            if pixels[0].nbytes * len(examples) <= _CACHE_LIMIT:
                decoded.append((pixels.clone(), labels.clone()))  # tensors from workers lie in scarce shared memory
            yield pixels, labels
            bar.update(len(pixels))
    if decoded:
        _loaders.clear()
        _cache[key] = decoded
        while sum(pixels.nbytes for batches in _cache.values() for pixels, _ in batches) > _CACHE_LIMIT:
            del _cache[next(iter(_cache))]


def _decode_example(transform: Callable[[Any], Tensor], example: Example) -> tuple[Tensor, int]:
    return transform(example.picture.open()), example.label
