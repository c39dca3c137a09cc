"""What heads write about pictures, batch by batch: here, or by the workers of a cluster, in the same order and bits."""

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
from dear.heads.contributions import HeadReader
from dear.heads.picture_list import Batch, decode_pictures, picture_batches
from dear.heads.shares import mean_colors
from dear.parallel.cluster import Cluster

BATCH = 32
_GREY = 0.01  # mean distance of the largest and the smallest channel, from 0 to 1


class Reading(NamedTuple):
    """Pictures `indices`, as heads see them; `bad` are (index, reason) of those that could not be read.

    Coordinates [pictures, layers, heads, width] are smaller than the moments of so few pictures would be.
    """

    indices: list[int]
    coordinates: Tensor
    bad: list[tuple[int, str]]
    colors: Tensor | None = None  # if asked for: `mean_colors`, [pictures, 3]
    colored: Tensor | None = None  # and which are not grey, [pictures]


Readings = Callable[..., Iterator[Reading]]  # (pictures, start=0, colors=False)


@contextmanager
def head_readings(
    backbone: Backbone, reader: HeadReader, count: int, cluster: Cluster | None = None
) -> Iterator[Readings]:
    """Yields a function that reads all pictures from `start` on, in order, with a progress bar; `count`: all in all."""

    def here(pictures: Sequence[Picture], start: int = 0, colors: bool = False) -> Iterator[Reading]:
        for batch in picture_batches(pictures, backbone.preprocess, BATCH, start):
            yield _read(backbone, reader, batch, colors)

    if cluster is None:
        yield here
        return
    make = partial(_load, backbone.identity.to_json(), reader.first_layer)
    with cluster.workers(make, max(1, count // BATCH)) as stream:

        def there(pictures: Sequence[Picture], start: int = 0, colors: bool = False) -> Iterator[Reading]:
            starts = range(start, len(pictures), BATCH)
            with Progress("heads", len(pictures), done=start, leave=True) as bar:
                for reading in stream((at, pictures[at : at + BATCH], colors) for at in starts):
                    yield reading
                    bar.update(len(reading.indices) + len(reading.bad))

        yield there


def _load(identity: dict[str, Any], first_layer: int, device: str) -> Callable[[Any], Reading]:
    """In a worker: its own copy of a backbone, of which it reads (place of the first picture, pictures, colors?)."""
    backbone = load_backbone(identity["model"], identity["pretrained"], device=pick_device(device))
    backbone.identity.require_same(identity, "The analysis")
    reader = HeadReader(backbone, first_layer)

    def read(chunk: tuple[int, Sequence[Picture], bool]) -> Reading:
        start, pictures, colors = chunk
        return _read(backbone, reader, decode_pictures(pictures, backbone.preprocess, start), colors)

    return read


def _read(backbone: Backbone, reader: HeadReader, batch: Batch, colors: bool) -> Reading:
    if not batch.indices:
        return Reading([], torch.empty(0), batch.bad)
    coordinates = reader.coordinates(batch.pixels.to(backbone.device))
    if not colors:
        return Reading(batch.indices, coordinates, batch.bad)
    rgb = to_rgb(backbone, batch.pixels)
    return Reading(batch.indices, coordinates, batch.bad, mean_colors(rgb), has_color(rgb))


def to_rgb(backbone: Backbone, pixels: Tensor) -> Tensor:
    """Normalised pixels [pictures, 3, height, width] -> from 0 to 1."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (backbone.mean, backbone.std))
    return pixels.cpu() * std + mean


def has_color(rgb: Tensor) -> Tensor:
    """Which pictures, from 0 to 1, are not grey and can tell color: [pictures, 3, height, width] -> [pictures]."""
    return (rgb.amax(1) - rgb.amin(1)).mean((1, 2)) > _GREY
