"""Indexing: images are found, decoded in worker processes, encoded in batches, and written every thousand rows."""

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from dear.core.errors import DearError
from dear.core.files import sha256_of
from dear.core.progress import Progress
from dear.data import loading
from dear.data.dataset import Dataset, Picture
from dear.data.decode import Decoder
from dear.data.folder import clean_name, find_images
from dear.data.resolve import resolve_dataset
from dear.gallery.encoders import Encoder, load_encoder
from dear.gallery.storage import table_schema, to_column
from dear.parallel.cluster import Cluster

if TYPE_CHECKING:
    from dear.gallery.gallery import Gallery

WORLD = "world:"
_BATCH = 64
_WRITE = 1000  # images: a killed run loses at most this many

Vectors = dict[str, Tensor]  # component -> [images, dim]


@dataclass(frozen=True)
class IndexSummary:
    """How many of the given images were added or skipped."""

    added: int
    duplicates: int  # the gallery has an image of the same content under another path
    already: int  # in the gallery before, unchanged
    unreadable: tuple[str, ...]  # one sentence each


# --- images to index ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """An image to index. `path` is its name in the gallery: an absolute path, or world:TASK/test/NUMBER."""

    path: str
    label: str | None

    def stamp(self) -> tuple[int, int]:
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

    def read(self, decoder: Decoder) -> tuple[Tensor, str]:
        """Its pixels [3, height, width], and the SHA-256 of its content."""
        if self.path.startswith(WORLD):
            picture = world_picture(self.path).open()
            return decoder(picture), hashlib.sha256(picture.tobytes()).hexdigest()
        pixels = decoder(self.path)  # first: its errors are sentences
        return pixels, sha256_of(self.path)


def find_sources(names: Sequence[str], label_from_folder: bool) -> Iterator[Source]:
    """All images of files, folders, globs and world:TASK[:STYLE], each once."""
    seen: set[str] = set()
    for name in names:
        for source in _world_sources(name) if name.startswith(WORLD) else _file_sources(name, label_from_folder):
            if source.path not in seen:
                seen.add(source.path)
                yield source


def stored_path(path: str) -> str:
    """A path as the gallery stores it, independent of the working directory; links are not resolved."""
    return path if path.startswith(WORLD) else os.path.abspath(path)


def world_picture(path: str) -> Picture:
    """world:TASK[:STYLE]/test/NUMBER -> its scene."""
    name, _, number = path.rpartition("/test/")
    return _world_dataset(name).test[int(number)].picture


def _world_sources(name: str) -> Iterator[Source]:
    dataset = _world_dataset(name)
    for number, example in enumerate(dataset.test):
        yield Source(f"{dataset.name}/test/{number:05d}", dataset.classes[example.label])


@lru_cache(maxsize=16)
def _world_dataset(name: str) -> Dataset:
    return resolve_dataset(name)


def _file_sources(pattern: str, label_from_folder: bool) -> Iterator[Source]:
    for file in find_images([pattern]):
        path = stored_path(str(file))
        yield Source(path, clean_name(Path(path).parent.name) if label_from_folder else None)


# --- decoding and encoding ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Record:
    """The row of an image without its vectors, or the reason why it cannot be read."""

    source: Source
    stamp: tuple[int, int] = (0, 0)
    sha256: str = ""
    error: str = ""


def _decode(decoder: Decoder, source: Source) -> tuple[_Record, Tensor | None]:
    try:
        stamp = source.stamp()
        pixels, sha256 = source.read(decoder)
        return _Record(source, stamp, sha256), pixels
    except DearError as error:
        return _Record(source, error=str(error)), None


def _collate(items: Sequence[tuple[_Record, Tensor | None]]) -> tuple[list[_Record], Tensor]:
    """One tensor [readable, 3, height, width] per batch: each tensor that leaves a worker costs a file handle."""
    pixels = [p for _, p in items if p is not None]
    return [record for record, _ in items], torch.stack(pixels) if pixels else torch.empty(0)


def _encode_batches(
    sources: Sequence[Source], encoder: Encoder, fast_decode: bool, cluster: Cluster | None
) -> Iterator[tuple[list[_Record], Callable[[list[int]], Mapping[str, Tensor]]]]:
    """Batch by batch, in order: its records, and a function from places among the readable images to vectors."""
    with Progress("index", len(sources)) as bar:
        if cluster is None:
            for records, pixels in _decode_batches(sources, Decoder(encoder.preprocess, fast_decode)):
                yield records, partial(_encode, encoder, pixels)
                bar.update(len(records))
        elif sources:
            batches = [sources[start : start + _BATCH] for start in range(0, len(sources), _BATCH)]
            with cluster.workers(
                partial(_load_worker, encoder.spec, fast_decode, cluster.precision), len(batches)
            ) as stream:
                for records, vectors in stream(batches):
                    yield records, partial(_choose, vectors)
                    bar.update(len(records))


def _encode(encoder: Encoder, pixels: Tensor, places: list[int]) -> Vectors:
    return encoder.encode_image(pixels[places])


def _choose(vectors: Vectors, places: list[int]) -> Vectors:
    return {name: values[places] for name, values in vectors.items()}


def _load_worker(
    spec: dict[str, Any], fast_decode: bool, precision: str, device: str
) -> Callable[[Sequence[Source]], tuple[list[_Record], Vectors]]:
    """In a worker of a cluster: its own encoder, and a function that decodes and encodes one batch."""
    encoder = load_encoder(spec, device, precision)
    decoder = Decoder(encoder.preprocess, fast_decode)

    def encode(sources: Sequence[Source]) -> tuple[list[_Record], Vectors]:
        records, pixels = _collate([_decode(decoder, source) for source in sources])
        vectors = encoder.encode_image(pixels) if len(pixels) else {}
        return records, {name: values.float().cpu() for name, values in vectors.items()}

    return encode


def _decode_batches(sources: Sequence[Source], decoder: Decoder) -> Iterator[tuple[list[_Record], Tensor]]:
    workers = loading.WORKERS if len(sources) > _BATCH else 0  # a few are decoded before a worker has started
    loader = DataLoader(
        loading.Mapped(sources, partial(_decode, decoder)), _BATCH, num_workers=workers, collate_fn=_collate
    )
    with warnings.catch_warnings():
        # LanceDB warns of forks, since its threads do not survive them: the workers never touch it.
        warnings.filterwarnings("ignore", message="lancedb fork support is experimental")
        batches = iter(loader)
    yield from batches


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
    sources = list(find_sources(names, label_from_folder))
    fresh = [source for source in sources if not stored.is_unchanged(source)]
    added = duplicates = 0
    already = len(sources) - len(fresh)
    unreadable: list[str] = []
    rows: list[_Record] = []
    vectors: list[Mapping[str, Tensor]] = []

    def write() -> None:
        # A changed image is deleted first: after a kill in between it is new, and the next run adds it.
        gallery.delete_rows(sorted(stored.outdated))
        stored.outdated.clear()
        if rows:
            gallery.add_rows(_table(gallery, rows, vectors))
        rows.clear()
        vectors.clear()

    for records, encode in _encode_batches(fresh, encoder, fast_decode, cluster):
        unreadable += [record.error for record in records if record.error]
        readable = [record for record in records if not record.error]
        verdicts = [stored.judge(record) for record in readable]
        already += verdicts.count("already")
        duplicates += verdicts.count("duplicate")
        new = [i for i, verdict in enumerate(verdicts) if verdict == "new"]
        if new:
            rows += [readable[i] for i in new]
            vectors.append(encode(new))
            added += len(new)
        if len(rows) >= _WRITE:
            write()
    write()
    return IndexSummary(added, duplicates, already, tuple(unreadable))


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

    def is_unchanged(self, source: Source) -> bool:
        """By size and time, without reading the file."""
        try:
            return self._has_label(source) and self.stamps.get(source.path) == source.stamp()
        except DearError:
            return False  # reported when it is opened

    def judge(self, record: _Record) -> str:
        """ "new", "already" or "duplicate", by content; a new image counts as stored from then on."""
        path, owner = record.source.path, self.owners.get(record.sha256)
        if owner == path and self._has_label(record.source):
            return "already"
        if path in self.contents:
            self.outdated.add(path)
            self.owners.pop(self.contents.pop(path), None)
        if owner is not None and owner != path:
            return "duplicate"
        self.contents[path], self.owners[record.sha256] = record.sha256, path
        return "new"

    def _has_label(self, source: Source) -> bool:
        """The source has no label, or the one that is stored."""
        return source.label is None or self.labels.get(source.path) == source.label


def _table(gallery: "Gallery", rows: Sequence[_Record], vectors: Sequence[Mapping[str, Tensor]]) -> Any:
    """An Arrow table of rows, and of the vectors [batch, dim] of each component, batch by batch."""
    import pyarrow as pa

    images = [(row.source.path, *row.stamp, row.sha256, row.source.label) for row in rows]
    columns: list[Any] = [list(column) for column in zip(*images, strict=True)]
    for component in gallery.components:
        columns.append(to_column(torch.cat([batch[component] for batch in vectors]).float().cpu().numpy()))
    return pa.table(columns, schema=table_schema(gallery.components, gallery.dim))
