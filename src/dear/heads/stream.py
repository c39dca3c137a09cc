"""Head outputs of many pictures, batch by batch: computed here, or by the workers of a Ray cluster.

Both ways yield the same batches in the same order, equal to the last bit.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dear.clip import Backbone, load_backbone
from dear.core.progress import Progress
from dear.core.runtime import pick_device
from dear.data.dataset import Picture
from dear.heads.contributions import HeadContributions
from dear.heads.picture_list import PictureBatch, decode_pictures, picture_batches
from dear.heads.shares import mean_colors
from dear.parallel.cluster import Cluster

BATCH = 32
_GREY = 0.01  # mean difference between the largest and the smallest channel, from 0 to 1


class HeadBatch(NamedTuple):
    """Contributions of all heads to the features of pictures `indices`, as coordinates in each head's span.

    `unreadable` are (index, reason) of pictures that could not be decoded. For so few pictures, coordinates are smaller
    than their moments would be.
    """

    indices: list[int]
    coordinates: Tensor  # [pictures, layers, heads, width]
    unreadable: list[tuple[int, str]]
    colors: Tensor | None = None  # with colors=True: `mean_colors`, [pictures, 3]
    colored: Tensor | None = None  # with colors=True: True for pictures that are not grey, [pictures]
    outputs: Tensor | None = None  # see `HeadContributions.coordinates_and_outputs`


HeadStream = Callable[..., Iterator[HeadBatch]]  # (pictures, start=0, colors=False)


@contextmanager
def stream_heads(
    backbone: Backbone, contributions: HeadContributions, count: int, cluster: Cluster | None = None
) -> Iterator[HeadStream]:
    """Yields a function that streams head batches of the pictures from `start` on, with a progress bar.

    `count` is the number of pictures of all calls together; it limits the number of workers of a cluster.
    """

    def stream_here(pictures: Sequence[Picture], start: int = 0, colors: bool = False) -> Iterator[HeadBatch]:
        for batch in picture_batches(pictures, backbone.preprocess, BATCH, start):
            yield _head_batch(backbone, contributions, batch, colors)

    if cluster is None:
        yield stream_here
        return
    make = partial(_make_worker, backbone.identity.to_json(), contributions.first_layer, cluster.precision)
    with cluster.workers(make, max(1, count // BATCH)) as run:

        def stream_cluster(pictures: Sequence[Picture], start: int = 0, colors: bool = False) -> Iterator[HeadBatch]:
            starts = range(start, len(pictures), BATCH)
            with Progress("heads", len(pictures), done=start, leave=True) as bar:
                for batch in run((at, pictures[at : at + BATCH], colors) for at in starts):
                    yield batch
                    bar.update(len(batch.indices) + len(batch.unreadable))

        yield stream_cluster


def _make_worker(identity: dict[str, Any], first_layer: int, precision: str, device: str) -> Callable[[Any], HeadBatch]:
    """In a worker: loads its own copy of the backbone; a job is (index of the first picture, pictures, colors)."""
    where = pick_device(device)
    backbone = load_backbone(identity["model"], identity["pretrained"], device=where, precision=precision)
    backbone.identity.require_same(identity, "The analysis")
    contributions = HeadContributions(backbone, first_layer)

    def work(job: tuple[int, Sequence[Picture], bool]) -> HeadBatch:
        start, pictures, colors = job
        return _head_batch(backbone, contributions, decode_pictures(pictures, backbone.preprocess, start), colors)

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
    """Normalised pixels [pictures, 3, height, width] -> RGB from 0 to 1, same shape."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (backbone.mean, backbone.std))
    return pixels.cpu() * std + mean


def has_color(rgb: Tensor) -> Tensor:
    """True for pictures that are not grey, from RGB between 0 and 1: [pictures, 3, height, width] -> [pictures]."""
    return (rgb.amax(1) - rgb.amin(1)).mean((1, 2)) > _GREY
