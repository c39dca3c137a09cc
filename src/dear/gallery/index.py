"""Indexing: images are found, decoded in worker processes, encoded in batches, and written every thousand rows."""

import hashlib
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from dear.core.errors import DearError
from dear.core.files import checksum_of
from dear.core.progress import Progress
from dear.data import loading
from dear.data.columns import Mapped
from dear.data.dataset import Dataset, Picture
from dear.data.decode import Decoder
from dear.data.folder import clean_name, find_images
from dear.data.resolve import resolve_dataset
from dear.gallery.encoders import ENCODE_BATCH, Encoder, load_encoder
from dear.gallery.storage import table_schema, to_column
from dear.parallel.cluster import Cluster

if TYPE_CHECKING:
    from dear.gallery.gallery import Gallery

WORLD = "world:"
_WRITE = 1000  # images: a killed run loses at most this many

Vectors = dict[str, Tensor]  # component -> [images, dim]


@dataclass(frozen=True)
class IndexSummary:
    """Numbers of the given images that were added or skipped."""

    added: int
    duplicates: int  # the gallery has an image of the same content under another path
    already: int  # in the gallery before, unchanged
    unreadable: tuple[str, ...]  # one sentence each


# --- images to index ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IndexedImage:
    """The row of an image without its vectors. `path` is an absolute path, or world:TASK/test/NUMBER.

    The last three fields are known once it was read: its content's SHA-256, or the reason why it cannot be read.
    """

    path: str
    label: str | None
    stamp: tuple[int, int] = (0, 0)
    sha256: str = ""
    error: str = ""

    def current_stamp(self) -> tuple[int, int]:
        """Size in bytes and modification time of a file; if neither changed, the file is not read again."""
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

    def read(self, decoder: Decoder) -> tuple["IndexedImage", Tensor | None]:
        """Decodes the image: its row, and its pixels [3, height, width] if it can be read."""
        try:
            stamp = self.current_stamp()
            if self.path.startswith(WORLD):
                picture = world_picture(self.path).open()
                pixels, sha256 = decoder(picture), hashlib.sha256(picture.tobytes()).hexdigest()
            else:
                pixels = decoder(self.path)  # first: its errors are sentences
                sha256 = checksum_of(self.path)
            return replace(self, stamp=stamp, sha256=sha256), pixels
        except DearError as error:
            return replace(self, error=str(error)), None


def find_sources(names: Sequence[str], label_from_folder: bool) -> list[IndexedImage]:
    """All images of files, folders, globs and world:TASK[:STYLE], each once."""
    found: dict[str, IndexedImage] = {}
    for name in names:
        if name.startswith(WORLD):
            dataset = _world_dataset(name)
            for number, example in enumerate(dataset.test):
                path = f"{dataset.name}/test/{number:05d}"
                found.setdefault(path, IndexedImage(path, dataset.classes[example.label]))
        else:
            for path in map(stored_path, map(str, find_images([name]))):
                label = clean_name(Path(path).parent.name) if label_from_folder else None
                found.setdefault(path, IndexedImage(path, label))
    return list(found.values())


def stored_path(path: str) -> str:
    """A path as the gallery stores it, independent of the working directory; links are not resolved."""
    return path if path.startswith(WORLD) else os.path.abspath(path)


def world_picture(path: str) -> Picture:
    """world:TASK[:STYLE]/test/NUMBER -> its scene."""
    name, _, number = path.rpartition("/test/")
    return _world_dataset(name).test[int(number)].picture


@lru_cache(maxsize=16)
def _world_dataset(name: str) -> Dataset:
    return resolve_dataset(name)


# --- decoding and encoding ----------------------------------------------------------------------------------------


def _collate_images(items: Sequence[tuple[IndexedImage, Tensor | None]]) -> tuple[list[IndexedImage], Tensor]:
    """The rows, and all pixels [readable, 3, height, width] in one tensor: each from a worker costs a file handle."""
    pixels = [p for _, p in items if p is not None]
    return [row for row, _ in items], torch.stack(pixels) if pixels else torch.empty(0)


def _encode_batches(
    images: Sequence[IndexedImage], encoder: Encoder, fast_decode: bool, cluster: Cluster | None
) -> Iterator[tuple[list[IndexedImage], Callable[[list[int]], Mapping[str, Tensor]]]]:
    """Batch by batch, in order: its rows, and a function from places among the readable images to vectors."""
    with Progress("index", len(images)) as bar:
        if cluster is None:
            for rows, pixels in _decode_batches(images, Decoder(encoder.preprocess, fast_decode)):
                yield rows, partial(_encode, encoder, pixels)
                bar.update(len(rows))
        elif images:
            batches = [images[start : start + ENCODE_BATCH] for start in range(0, len(images), ENCODE_BATCH)]
            with cluster.workers(
                partial(_load_worker, encoder.spec, fast_decode, cluster.precision), len(batches)
            ) as stream:
                for rows, vectors in stream(batches):
                    yield rows, partial(_choose, vectors)
                    bar.update(len(rows))


def _encode(encoder: Encoder, pixels: Tensor, places: list[int]) -> Vectors:
    return encoder.encode_image(pixels[places])


def _choose(vectors: Vectors, places: list[int]) -> Vectors:
    return {name: values[places] for name, values in vectors.items()}


def _load_worker(
    spec: dict[str, Any], fast_decode: bool, precision: str, device: str
) -> Callable[[Sequence[IndexedImage]], tuple[list[IndexedImage], Vectors]]:
    """Loads the encoder of a cluster's worker, and returns the function that decodes and encodes a batch."""
    encoder = load_encoder(spec, device, precision)
    decoder = Decoder(encoder.preprocess, fast_decode)

    def encode(images: Sequence[IndexedImage]) -> tuple[list[IndexedImage], Vectors]:
        rows, pixels = _collate_images([image.read(decoder) for image in images])
        vectors = encoder.encode_image(pixels) if len(pixels) else {}
        return rows, {name: values.float().cpu() for name, values in vectors.items()}

    return encode


def _decode_batches(images: Sequence[IndexedImage], decoder: Decoder) -> Iterator[tuple[list[IndexedImage], Tensor]]:
    workers = loading.WORKERS if len(images) > ENCODE_BATCH else 0  # a few are decoded before a worker has started
    decoded: Any = Mapped(images, methodcaller("read", decoder))
    loader = DataLoader(decoded, ENCODE_BATCH, num_workers=workers, collate_fn=_collate_images)
    with warnings.catch_warnings():
        # LanceDB warns of forks, since its threads do not survive them: the workers never touch it.
        warnings.filterwarnings("ignore", message="lancedb fork support is experimental")
        batches = iter(loader)
    yield from loading.from_workers(batches)


# --- writing ------------------------------------------------------------------------------------------------------


def add_images(
    gallery: "Gallery",
    encoder: Encoder,
    names: Sequence[str],
    label_from_folder: bool,
    fast_decode: bool,
    cluster: Cluster | None = None,
) -> IndexSummary:
    """A streaming pass: memory holds the vectors of one write, and the names of all images.

    With a cluster, its workers decode and encode; this process alone writes, and rows keep their order.
    """
    stored = _StoredImages(gallery)
    found = find_sources(names, label_from_folder)
    fresh = [image for image in found if not stored.is_unchanged(image)]
    counts = Counter(already=len(found) - len(fresh))
    unreadable: list[str] = []
    rows: list[IndexedImage] = []
    vectors: list[Mapping[str, Tensor]] = []

    def write() -> None:
        # A changed image is deleted first: after a kill in between it is new, and the next run adds it.
        gallery.delete_rows(sorted(stored.outdated))
        stored.outdated.clear()
        if rows:
            gallery.add_rows(_table(gallery, rows, vectors))
        rows.clear()
        vectors.clear()

    for images, encode in _encode_batches(fresh, encoder, fast_decode, cluster):
        unreadable += [image.error for image in images if image.error]
        readable = [image for image in images if not image.error]
        verdicts = [stored.judge(image) for image in readable]
        counts.update(verdicts)
        if new := [i for i, verdict in enumerate(verdicts) if verdict == "new"]:
            rows += [readable[i] for i in new]
            vectors.append(encode(new))
        if len(rows) >= _WRITE:
            write()
    write()
    return IndexSummary(counts["new"], counts["duplicate"], counts["already"], tuple(unreadable))


class _StoredImages:
    """The images of a gallery, by path and by content."""

    def __init__(self, gallery: "Gallery") -> None:
        columns = gallery.rows(["path", "size", "modified_ns", "label", "sha256"])
        path, size, modified, label, sha256 = (column.to_pylist() for column in columns.columns)
        self.stamps = dict(zip(path, zip(size, modified, strict=True), strict=True))
        self.labels = dict(zip(path, label, strict=True))
        self.contents = dict(zip(path, sha256, strict=True))
        self.owners = dict(zip(sha256, path, strict=True))
        self.outdated: set[str] = set()  # paths of images that changed

    def is_unchanged(self, source: IndexedImage) -> bool:
        """Whether size and time are those that are stored, so that the file need not be read."""
        try:
            return self._has_label(source) and self.stamps.get(source.path) == source.current_stamp()
        except DearError:
            return False  # reported when it is opened

    def judge(self, row: IndexedImage) -> str:
        """ "new", "already" or "duplicate", by content; a new image counts as stored from then on."""
        path, owner = row.path, self.owners.get(row.sha256)
        if owner == path and self._has_label(row):
            return "already"
        if path in self.contents:
            self.outdated.add(path)
            self.owners.pop(self.contents.pop(path), None)
        if owner is not None and owner != path:
            return "duplicate"
        self.contents[path], self.owners[row.sha256] = row.sha256, path
        return "new"

    def _has_label(self, source: IndexedImage) -> bool:
        """The source has no label, or the one that is stored."""
        return source.label is None or self.labels.get(source.path) == source.label


def _table(gallery: "Gallery", rows: Sequence[IndexedImage], vectors: Sequence[Mapping[str, Tensor]]) -> Any:
    """An Arrow table of rows, and of the vectors [batch, dim] of each component, batch by batch."""
    import pyarrow as pa

    images = [(row.path, *row.stamp, row.sha256, row.label) for row in rows]
    columns: list[Any] = [list(column) for column in zip(*images, strict=True)]
    for component in gallery.components:
        columns.append(to_column(torch.cat([batch[component] for batch in vectors]).float().cpu().numpy()))
    return pa.table(columns, schema=table_schema(gallery.components, gallery.dim))
