"""Images into a gallery: decoded in worker processes, embedded in batches, written every thousand."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from dear.core.errors import DearError
from dear.core.progress import Progress
from dear.data import loading
from dear.data.quick import FileReader
from dear.gallery.columns import as_vectors, schema
from dear.gallery.sources import Source, find_sources
from dear.parallel.cluster import Cluster

if TYPE_CHECKING:
    from dear.gallery.encoders import Encoder
    from dear.gallery.store import Gallery

_BATCH = 64
_WRITE = 1000  # images: a killed run loses at most so many


@dataclass(frozen=True)
class IndexSummary:
    """What became of the images that were given."""

    added: int
    duplicates: int  # an image of the same content is there under another path
    already: int  # was there, unchanged
    unreadable: tuple[str, ...]  # one sentence each


@dataclass(frozen=True)
class _Read:
    """A picture that was opened, or why it was not."""

    source: Source
    stamp: tuple[int, int] = (0, 0)
    sha256: str = ""
    error: str = ""


class _Decoder(TorchDataset):
    def __init__(self, sources: Sequence[Source], reader: FileReader) -> None:
        self.sources, self.reader = sources, reader

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> tuple[_Read, Tensor | None]:
        source = self.sources[index]
        try:
            stamp = source.stamp()
            pixels, sha256 = source.read(self.reader)
            return _Read(source, stamp, sha256), pixels
        except DearError as error:
            return _Read(source, error=str(error)), None


def _collate(items: list[tuple[_Read, Tensor | None]]) -> tuple[list[_Read], Tensor]:
    """One tensor a batch, [readable, 3, height, width]: each one that leaves a worker costs it a file handle."""
    pixels = [p for _, p in items if p is not None]
    return [read for read, _ in items], torch.stack(pixels) if pixels else torch.empty(0)


def _encoded(
    sources: Sequence[Source], encoder: "Encoder", exact: bool, cluster: Cluster | None
) -> Iterator[tuple[list[_Read], Callable[[list[int]], dict[str, Tensor]]]]:
    """Batch by batch, in order: what became of its images, and the vectors of those that are asked for."""
    starts = range(0, len(sources), _BATCH)
    with Progress("index", len(sources)) as bar:
        if cluster is None:
            for reads, pixels in _batches(sources, FileReader(encoder.preprocess, exact)):
                yield reads, partial(_encode, encoder, pixels)
                bar.update(len(reads))
        elif sources:
            with cluster.workers(partial(_load, encoder.source, exact), len(starts)) as stream:
                for reads, vectors in stream(sources[at : at + _BATCH] for at in starts):
                    yield reads, partial(_choose, vectors)
                    bar.update(len(reads))


def _encode(encoder: "Encoder", pixels: Tensor, chosen: list[int]) -> dict[str, Tensor]:
    return encoder.encode_image(pixels[chosen])


def _choose(vectors: dict[str, Tensor], chosen: list[int]) -> dict[str, Tensor]:
    return {name: values[chosen] for name, values in vectors.items()}


def _load(
    source: dict[str, Any], exact: bool, device: str
) -> Callable[[Sequence[Source]], tuple[list[_Read], dict[str, Tensor]]]:
    """In a worker: an encoder of its own, for all readable images of a batch."""
    from dear.gallery.encoders import load_encoder

    encoder = load_encoder(source, device)
    reader = FileReader(encoder.preprocess, exact)

    def encode(sources: Sequence[Source]) -> tuple[list[_Read], dict[str, Tensor]]:
        decoder = _Decoder(sources, reader)
        reads, pixels = _collate([decoder[i] for i in range(len(sources))])
        vectors = encoder.encode_image(pixels) if len(pixels) else {}
        return reads, {name: values.float().cpu() for name, values in vectors.items()}

    return encode


def _batches(sources: Sequence[Source], reader: FileReader) -> Iterator[tuple[list[_Read], Tensor]]:
    workers = loading.WORKERS if len(sources) > _BATCH else 0  # a few are read before a worker is up
    loader = DataLoader(_Decoder(sources, reader), _BATCH, num_workers=workers, collate_fn=_collate)
    with warnings.catch_warnings():
        # LanceDB warns of forks, since its threads do not survive them: the workers never touch it.
        warnings.filterwarnings("ignore", message="lancedb fork support is experimental")
        batches = iter(loader)
    yield from batches


def add_images(
    gallery: "Gallery",
    encoder: "Encoder",
    given: Sequence[str],
    label_from_folder: bool,
    exact: bool,
    cluster: Cluster | None = None,
) -> IndexSummary:
    """A streaming pass: no more is held than the features of one write, and the names of all images.

    With a cluster, its workers read and encode; who writes is this process alone, and rows keep their order.
    """
    known = _Known(gallery)
    sources = list(find_sources(given, label_from_folder))
    fresh = [source for source in sources if not known.unchanged(source)]
    added = duplicates = 0
    already = len(sources) - len(fresh)
    unreadable: list[str] = []
    rows: list[_Read] = []
    features: list[dict[str, Tensor]] = []

    def write() -> None:
        # A changed image is taken out first: after a kill in between it is new, and the next run adds it.
        gallery.delete_rows(sorted(known.outdated))
        known.outdated.clear()
        if rows:
            gallery.add_rows(_table(gallery, rows, features))
        rows.clear()
        features.clear()

    for reads, encode in _encoded(fresh, encoder, exact, cluster):
        unreadable += [read.error for read in reads if read.error]
        readable = [read for read in reads if not read.error]
        verdicts = [known.judge(read) for read in readable]
        already += verdicts.count("already")
        duplicates += verdicts.count("duplicate")
        new = [i for i, verdict in enumerate(verdicts) if verdict == "new"]
        if new:
            rows += [readable[i] for i in new]
            features.append(encode(new))
            added += len(new)
        if len(rows) >= _WRITE:
            write()
    write()
    return IndexSummary(added, duplicates, already, tuple(unreadable))


class _Known:
    """What the gallery holds, by path and by content."""

    def __init__(self, gallery: "Gallery") -> None:
        columns = gallery.rows(["path", "size", "modified_ns", "label", "sha256"])
        path, size, modified, label, sha256 = (column.to_pylist() for column in columns.columns)
        self.stamps = dict(zip(path, zip(size, modified, strict=True), strict=True))
        self.labels = dict(zip(path, label, strict=True))
        self.contents = dict(zip(path, sha256, strict=True))
        self.owners = dict(zip(sha256, path, strict=True))
        self.outdated: set[str] = set()  # rows of images that changed

    def unchanged(self, source: Source) -> bool:
        """By size and time, without reading it."""
        try:
            return self._has_label(source) and self.stamps.get(source.path) == source.stamp()
        except DearError:
            return False  # it will be reported when it is opened

    def judge(self, read: _Read) -> str:
        """ "new", "already" or "duplicate", by content; what is new is known from then on."""
        path, owner = read.source.path, self.owners.get(read.sha256)
        if owner == path and self._has_label(read.source):
            return "already"
        if path in self.contents:
            self.outdated.add(path)
            self.owners.pop(self.contents.pop(path), None)
        if owner is not None and owner != path:
            return "duplicate"
        self.contents[path], self.owners[read.sha256] = read.sha256, path
        return "new"

    def _has_label(self, source: Source) -> bool:
        """No label was asked for, or it is the one that is stored."""
        return source.label is None or self.labels.get(source.path) == source.label


def _table(gallery: "Gallery", rows: Sequence[_Read], features: Sequence[dict[str, Tensor]]) -> Any:
    """An Arrow table of rows and the features [batch, dim] of each component, batch by batch."""
    import pyarrow as pa

    columns: list[Any] = [
        [row.source.path for row in rows],
        [row.stamp[0] for row in rows],
        [row.stamp[1] for row in rows],
        [row.sha256 for row in rows],
        [row.source.label for row in rows],
    ]
    for component in gallery.components:
        values = torch.cat([batch[component] for batch in features]).float().cpu().numpy()
        columns.append(as_vectors(values))
    return pa.table(columns, schema=schema(gallery.components, gallery.dim))
