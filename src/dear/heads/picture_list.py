"""The pictures by which heads are judged: a folder or Attribute World, streamed past those that can't be read."""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from dear.core.errors import DearError
from dear.core.progress import Progress
from dear.data.dataset import ImageFile, Picture
from dear.data.folder import image_files
from dear.data.world.vocabulary import VALUES, Scene, Traits, is_held_out

T = TypeVar("T")


@dataclass(frozen=True)
class PictureList:
    """Pictures in a fixed order, and where they come from; `names` tell them apart."""

    source: str
    pictures: Sequence[Picture]
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.pictures)

    @property
    def digest(self) -> str:
        """SHA-256 of names in their order: is it the same list?"""
        return hashlib.sha256("\n".join(self.names).encode("utf-8", "surrogatepass")).hexdigest()

    def spread(self, count: int | None) -> "PictureList":
        """At most `count` of them."""
        return PictureList(self.source, spread(self.pictures, count), spread(self.names, count))


def spread(items: Sequence[T], count: int | None) -> Sequence[T]:
    """At most `count` of them, evenly over the list: folders and lists are sorted, and their beginning is one class."""
    if count is None or count >= len(items):
        return items
    return [items[i * len(items) // count] for i in range(count)]


def folder_pictures(folder: str | Path) -> PictureList:
    """All images in a folder and below, sorted. A name holds the file's size, so that a changed file is noticed."""
    folder = Path(folder)
    if not folder.is_dir():
        raise DearError(f"There is no folder {folder}: give a folder of images, or world for Attribute World.")
    files = image_files(folder)
    if not files:
        raise DearError(f"There is no image in {folder} or below it: give another folder.")
    names = [f"{path.relative_to(folder).as_posix()} ({_size(path)} bytes)" for path in files]
    return PictureList(folder.resolve().name, [ImageFile(path) for path in files], names)


def _size(path: Path) -> int:
    """0 for a file that is gone: it will be reported when it is opened."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def world_pictures(count: int, size: int = 64, held_out: bool = False) -> PictureList:
    """Pictures of Attribute World, always the same; held-out ones show combinations that the others never do."""
    rng = Random("roles")
    scenes: list[Scene] = []
    while len(scenes) < count:
        traits = Traits(**{attribute: rng.choice(values) for attribute, values in VALUES.items()})
        if is_held_out(traits) == held_out:
            scenes.append(Scene(traits, rng.getrandbits(40), size=size))
    return PictureList("Attribute World", scenes, [f"{' '.join(s.traits)} {s.seed}" for s in scenes])


class Batch(NamedTuple):
    """Pictures `indices`, decoded; `bad` are (index, reason) of those that could not be."""

    indices: list[int]
    pixels: Tensor  # [len(indices), 3, height, width], normalised
    bad: list[tuple[int, str]]


def picture_batches(
    pictures: Sequence[Picture], transform: Callable[[Any], Tensor], size: int, start: int = 0
) -> Iterator[Batch]:
    """All pictures from `start` on, in order, decoded in worker processes, with a progress bar."""
    decoded = _Decoded(pictures, transform)
    workers = min(4, os.cpu_count() or 1) if len(pictures) - start > size else 0
    loader = DataLoader(decoded, size, sampler=range(start, len(pictures)), num_workers=workers, collate_fn=_collate)
    with Progress("heads", len(pictures), done=start, leave=True) as bar:
        for batch in loader:
            yield batch
            bar.update(len(batch.indices) + len(batch.bad))


def decode_pictures(pictures: Sequence[Picture], transform: Callable[[Any], Tensor], start: int) -> Batch:
    """One batch, decoded in this process; `start` is the place of its first picture."""
    decoded = _Decoded(pictures, transform)
    return _collate([(start + i, decoded[i][1]) for i in range(len(pictures))])


class _Decoded(TorchDataset):
    def __init__(self, pictures: Sequence[Picture], transform: Callable[[Any], Tensor]) -> None:
        self.pictures, self.transform = pictures, transform

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[int, Tensor | str]:
        try:
            return index, self.transform(self.pictures[index].open())
        except DearError as error:
            return index, str(error)


def _collate(items: list[tuple[int, Tensor | str]]) -> Batch:
    good = [(index, pixels) for index, pixels in items if isinstance(pixels, Tensor)]
    bad = [(index, reason) for index, reason in items if isinstance(reason, str)]
    pixels = torch.stack([pixels for _, pixels in good]) if good else torch.empty(0)
    return Batch([index for index, _ in good], pixels, bad)
