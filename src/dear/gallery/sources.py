"""What can be put into a gallery: image files, and the test pictures of Attribute World, which are drawn."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from torch import Tensor

from dear.core.errors import DearError
from dear.core.files import read_bytes
from dear.data.dataset import Dataset, Picture
from dear.data.folder import clean_name, find_images
from dear.data.quick import FileReader
from dear.data.resolve import resolve_dataset

WORLD = "world:"


@dataclass(frozen=True)
class Source:
    """An image to embed. `path` is how the gallery knows it: an absolute path, or world:TASK/test/NUMBER."""

    path: str
    label: str | None

    def stamp(self) -> tuple[int, int]:
        """Bytes and time of the last change of a file: what is the same in both need not be read again."""
        if self.path.startswith(WORLD):
            return 0, 0
        try:
            self.path.encode()
            status = os.stat(self.path)
        except UnicodeEncodeError:
            raise DearError(f"The name of the image {self.path!r} is not UTF-8: rename it.") from None
        except OSError as error:
            raise DearError(f"The image {self.path} cannot be read ({error}): repair or remove it.") from None
        return status.st_size, status.st_mtime_ns

    def read(self, reader: FileReader) -> tuple[Tensor, str]:
        """Its pixels [3, height, width], and the SHA-256 of its content."""
        if self.path.startswith(WORLD):
            picture = world_picture(self.path).open()
            return reader.transform(picture), hashlib.sha256(picture.tobytes()).hexdigest()
        pixels = reader.read(self.path)  # first: it says what is wrong in one sentence
        return pixels, hashlib.sha256(read_bytes(self.path)).hexdigest()


def find_sources(given: Sequence[str], label_from_folder: bool) -> Iterator[Source]:
    """All images of files, folders, globs and world:TASK[:STYLE], each once."""
    seen: set[str] = set()
    for text in given:
        for source in _world(text) if text.startswith(WORLD) else _files(text, label_from_folder):
            if source.path not in seen:
                seen.add(source.path)
                yield source


def absolute(path: str) -> str:
    """A path as the gallery stores it, so that it is found from any folder; links stay as they are."""
    return path if path.startswith(WORLD) else os.path.abspath(path)


def world_picture(path: str) -> Picture:
    """world:TASK[:STYLE]/test/NUMBER -> its scene."""
    name, _, number = path.rpartition("/test/")
    return _dataset(name).test[int(number)].picture


def _world(name: str) -> Iterator[Source]:
    dataset = _dataset(name)
    for number, example in enumerate(dataset.test):
        yield Source(f"{dataset.name}/test/{number:05d}", dataset.classes[example.label])


@lru_cache(maxsize=16)
def _dataset(name: str) -> Dataset:
    return resolve_dataset(name)


def _files(pattern: str, label_from_folder: bool) -> Iterator[Source]:
    for file in find_images([pattern]):
        path = absolute(str(file))
        yield Source(path, clean_name(Path(path).parent.name) if label_from_folder else None)
