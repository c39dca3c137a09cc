"""Many pictures, decoded batch by batch, and the outputs of heads: computed here, or by the workers of a Ray cluster.

Both ways yield the same batches in the same order, equal to the last bit. Unreadable pictures are left out.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from dear.clip import Backbone, load_backbone
from dear.core.errors import DearError, warn
from dear.core.progress import Progress
from dear.data.columns import Mapped
from dear.data.dataset import Picture
from dear.data.loading import WORKERS, from_workers
from dear.heads.contributions import HeadContributions
from dear.heads.shares import mean_colors
from dear.parallel.cluster import Cluster

STREAM_BATCH = 32
_GREY = 0.01  # mean difference between the largest and the smallest channel, from 0 to 1


class PictureBatch(NamedTuple):
    """Decoded pictures by their indices, and for each picture that could not be decoded the reason."""

    indices: list[int]
    pixels: Tensor  # [len(indices), 3, height, width], normalised
    unreadable: dict[int, str]


class HeadBatch(NamedTuple):
    """Contributions of all heads to the features of pictures `indices`, as coordinates in each head's span.

    For so few pictures, coordinates are smaller than their moments would be.
    """

    indices: list[int]
    coordinates: Tensor  # [pictures, layers, heads, width]
    unreadable: dict[int, str]
    colors: Tensor | None = None  # with colors=True: `mean_colors`, [pictures, 3]
    colored: Tensor | None = None  # with colors=True: True for pictures that are not grey, [pictures]
    outputs: Tensor | None = None  # see `HeadContributions.coordinates_and_outputs`


AnyBatch = TypeVar("AnyBatch", PictureBatch, HeadBatch)
HeadStream = Callable[..., Iterator[HeadBatch]]  # (pictures, start=0, colors=False)


def picture_batches(
    pictures: Sequence[Picture], transform: Callable[[Any], Tensor], start: int = 0
) -> Iterator[PictureBatch]:
    """All pictures from `start` on, in order, decoded in worker processes, with a progress bar."""
    workers = WORKERS if len(pictures) - start > STREAM_BATCH else 0
    decoded: Any = Mapped([*enumerate(pictures)][start:], partial(_decode_picture, transform))
    loader = DataLoader(decoded, STREAM_BATCH, num_workers=workers, collate_fn=_picture_batch)
    yield from _followed(from_workers(loader), start, len(pictures))


def _followed(batches: Iterable[AnyBatch], start: int, total: int) -> Iterator[AnyBatch]:
    """The batches, with a progress bar, and a warning for each picture that cannot be read."""
    with Progress("heads", total, done=start, leave=True) as bar:
        for batch in batches:
            for reason in batch.unreadable.values():
                warn(f"A picture is left out: {reason}")
            yield batch
            bar.update(len(batch.indices) + len(batch.unreadable))


def _decode_picture(transform: Callable[[Any], Tensor], numbered: tuple[int, Picture]) -> tuple[int, Tensor | str]:
    """The index with the pixels of its picture, or with the reason why there are none."""
    index, picture = numbered
    try:
        return index, transform(picture.open())
    except DearError as error:
        return index, str(error)


def _picture_batch(items: Sequence[tuple[int, Tensor | str]]) -> PictureBatch:
    readable = {index: pixels for index, pixels in items if isinstance(pixels, Tensor)}
    unreadable = {index: reason for index, reason in items if isinstance(reason, str)}
    return PictureBatch([*readable], torch.stack([*readable.values()]) if readable else torch.empty(0), unreadable)


@contextmanager
def stream_heads(
    backbone: Backbone, contributions: HeadContributions, count: int, cluster: Cluster | None = None
) -> Iterator[HeadStream]:
    """Yields a function that streams head batches of the pictures from `start` on, with a progress bar.

    `count` is the number of pictures of all calls together; it limits the number of workers of a cluster.
    """

    def stream_here(pictures: Sequence[Picture], start: int = 0, colors: bool = False) -> Iterator[HeadBatch]:
        for batch in picture_batches(pictures, backbone.preprocess, start):
            yield _head_batch(backbone, contributions, batch, colors)

    if cluster is None:
        yield stream_here
        return
    make = partial(_make_worker, backbone.identity.to_json(), contributions.first_layer, cluster.precision)
    with cluster.workers(make, max(1, count // STREAM_BATCH)) as run:

        def stream_cluster(pictures: Sequence[Picture], start: int = 0, colors: bool = False) -> Iterator[HeadBatch]:
            numbered = [*enumerate(pictures)]
            jobs = ((numbered[at : at + STREAM_BATCH], colors) for at in range(start, len(pictures), STREAM_BATCH))
            yield from _followed(run(jobs), start, len(pictures))

        yield stream_cluster


def _make_worker(identity: dict[str, Any], first_layer: int, precision: str, device: str) -> Callable[[Any], HeadBatch]:
    """The function of a worker with its own backbone, for jobs ([(index, picture), ...], colors)."""
    backbone = load_backbone(identity["model"], identity["pretrained"], device=device, precision=precision)
    backbone.identity.require_same(identity, "The analysis")
    contributions = HeadContributions(backbone, first_layer)

    def work(job: tuple[Sequence[tuple[int, Picture]], bool]) -> HeadBatch:
        numbered, colors = job
        batch = _picture_batch([_decode_picture(backbone.preprocess, each) for each in numbered])
        return _head_batch(backbone, contributions, batch, colors)

    return work


def _head_batch(backbone: Backbone, contributions: HeadContributions, batch: PictureBatch, colors: bool) -> HeadBatch:
    if not batch.indices:
        return HeadBatch([], torch.empty(0), batch.unreadable)
    coordinates, outputs = contributions.coordinates_and_outputs(batch.pixels.to(backbone.device))
    found = HeadBatch(batch.indices, coordinates, batch.unreadable, outputs=outputs)
    if not colors:
        return found
    rgb = to_rgb(backbone, batch.pixels)
    return found._replace(colors=mean_colors(rgb), colored=has_color(rgb))


def to_rgb(backbone: Backbone, pixels: Tensor) -> Tensor:
    """Normalised pixels [..., 3, height, width] -> RGB from 0 to 1, same shape."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (backbone.mean, backbone.std))
    return pixels.cpu() * std + mean


def has_color(rgb: Tensor) -> Tensor:
    """True for pictures that are not grey, from RGB between 0 and 1: [pictures, 3, height, width] -> [pictures]."""
    return (rgb.amax(1) - rgb.amin(1)).mean((1, 2)) > _GREY
