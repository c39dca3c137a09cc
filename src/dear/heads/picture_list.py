"""The pictures that heads are judged by: a folder or Attribute World, streamed in batches without the unreadable."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from dear.core.errors import DearError
from dear.core.progress import Progress
from dear.data.dataset import ImageFile, Picture
from dear.data.folder import image_files
from dear.data.loading import WORKERS, Mapped
from dear.data.world.vocabulary import VALUES, Scene, Traits, is_held_out

T = TypeVar("T")


@dataclass(frozen=True)
class PictureList:
    """Pictures in a fixed order, with the source they come from; each has a name of its own."""

    source: str
    pictures: Sequence[Picture]
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.pictures)

    @property
    def digest(self) -> str:
        """SHA-256 of the names in order: equal for equal lists."""
        return hashlib.sha256("\n".join(self.names).encode("utf-8", "surrogatepass")).hexdigest()

    def spread(self, count: int | None) -> "PictureList":
        """At most `count` of the pictures, spread evenly."""
        return PictureList(self.source, spread(self.pictures, count), spread(self.names, count))


def spread(items: Sequence[T], count: int | None) -> Sequence[T]:
    """At most `count` items, spread evenly: lists of images are sorted, so that their first items are of one class."""
    if count is None or count >= len(items):
        return items
    return [items[i * len(items) // count] for i in range(count)]


def folder_pictures(folder: str | Path) -> PictureList:
    """All images in a folder and its subfolders, sorted; names include the file size, so that a change is noticed."""
    folder = Path(folder)
    if not folder.is_dir():
        raise DearError(f"There is no folder {folder}: give a folder of images, or world for Attribute World.")
    files = image_files(folder)
    if not files:
        raise DearError(f"There is no image in {folder} or its subfolders: give another folder.")
    names = [f"{path.relative_to(folder).as_posix()} ({_size(path)} bytes)" for path in files]
    return PictureList(folder.resolve().name, [ImageFile(path) for path in files], names)


def _size(path: Path) -> int:
    """File size in bytes; 0 for a missing file, which is reported when it is opened."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def world_pictures(count: int, size: int = 64, held_out: bool = False) -> PictureList:
    """Pictures of Attribute World, the same in every run; held-out ones show combinations that the others don't."""
    rng = Random("roles")
    scenes: list[Scene] = []
    while len(scenes) < count:
        traits = Traits(**{attribute: rng.choice(values) for attribute, values in VALUES.items()})
        if is_held_out(traits) == held_out:
            scenes.append(Scene(traits, rng.getrandbits(40), size=size))
    return PictureList("Attribute World", scenes, [f"{' '.join(s.traits)} {s.seed}" for s in scenes])


class PictureBatch(NamedTuple):
    """The decoded pictures `indices`; `unreadable` are (index, reason) of pictures that could not be decoded."""

    indices: list[int]
    pixels: Tensor  # [len(indices), 3, height, width], normalised
    unreadable: list[tuple[int, str]]


def picture_batches(
    pictures: Sequence[Picture], transform: Callable[[Any], Tensor], size: int, start: int = 0
) -> Iterator[PictureBatch]:
    """All pictures from `start` on, in order, decoded in worker processes, with a progress bar."""
    workers = WORKERS if len(pictures) - start > size else 0
    decoded = Mapped(range(start, len(pictures)), partial(_decode, pictures, transform))
    loader = DataLoader(decoded, size, num_workers=workers, collate_fn=_collate)
    with Progress("heads", len(pictures), done=start, leave=True) as bar:
        for batch in loader:
            yield batch
            bar.update(len(batch.indices) + len(batch.unreadable))


def decode_pictures(pictures: Sequence[Picture], transform: Callable[[Any], Tensor], start: int) -> PictureBatch:
    """One batch, decoded in this process; `start` is the index of its first picture."""
    return _collate([(start + i, _decode(pictures, transform, i)[1]) for i in range(len(pictures))])


def _decode(pictures: Sequence[Picture], transform: Callable[[Any], Tensor], index: int) -> tuple[int, Tensor | str]:
    """The index with the pixels of its picture, or with the reason why there are none."""
    try:
        return index, transform(pictures[index].open())
    except DearError as error:
        return index, str(error)


def _collate(items: list[tuple[int, Tensor | str]]) -> PictureBatch:
    readable = [(index, pixels) for index, pixels in items if isinstance(pixels, Tensor)]
    unreadable = [(index, reason) for index, reason in items if isinstance(reason, str)]
    pixels = torch.stack([pixels for _, pixels in readable]) if readable else torch.empty(0)
    return PictureBatch([index for index, _ in readable], pixels, unreadable)
