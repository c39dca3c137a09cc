"""A gallery: gallery.json (what its vectors were made with) and a LanceDB table of images, in a folder or a bucket."""

import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from dear.core.errors import DearError
from dear.core.lock import LOCK
from dear.gallery.about import ABOUT, GalleryInfo, read_info
from dear.gallery.codes import Snapshot, unit
from dear.gallery.columns import as_matrix, schema, vector_column
from dear.gallery.encoders import Encoder, check_source, describe, load_encoder
from dear.gallery.index import IndexSummary, add_images
from dear.gallery.place import is_folder, one_writer, place
from dear.gallery.search import Hit, find
from dear.gallery.sources import WORLD, absolute, world_picture
from dear.parallel.cluster import Cluster

_TABLE = "images"


class Gallery:
    """Images and the vectors one encoder gave them. Make one with `create`, come back to it with `open`."""

    def __init__(self, folder: Any, about: GalleryInfo, table: Any) -> None:
        self.folder, self.about = folder, about
        self.components, self.centred, self.dim = about.components, about.centred, about.dim
        self.table = table  # None until the first image is there
        self._snapshot: Snapshot | None = None
        self._lock = Lock()

    @classmethod
    def open(cls, folder: str | Path) -> "Gallery":
        """Read-only: nothing is made or repaired. `folder`: or an address, as s3://BUCKET/NAME."""
        where = place(folder)
        about = read_info(where)
        check_source(about.encoder, str(where / ABOUT))
        expected = schema(about.components, about.dim)
        try:
            table = _connect(where).open_table(_TABLE)
            found = table.schema
        except (OSError, RuntimeError, ValueError) as error:
            if not (where / f"{_TABLE}.lance").is_dir():
                raise DearError(
                    f"The gallery {where} has lost its table ({_TABLE}.lance): index its images into a new folder."
                ) from None
            raise DearError(f"The gallery {where} cannot be read: {error}.") from error
        if not found.equals(expected):
            raise DearError(f"{where / ABOUT} does not fit the table beside it: index the images again.")
        return cls(where, about, table)

    @classmethod
    def create(cls, folder: str | Path, encoder: Encoder) -> "Gallery":
        """A new gallery, on disk from its first image on, or the one that is there if it was made with this encoder."""
        where = place(folder)
        if (where / ABOUT).is_file():
            gallery = cls.open(where)
            gallery.require(encoder)
            if encoder.source != gallery.about.encoder:  # the same, in another place
                gallery.about = replace(gallery.about, encoder=encoder.source)
                gallery.about.write(where)
            return gallery
        # A table without a gallery.json is what a run left that was killed when it began.
        if where.exists() and (not where.is_dir() or {f.name for f in where.iterdir()} - {f"{_TABLE}.lance", LOCK}):
            raise DearError(f"{where} is there but is not a gallery: choose another --out.")
        _lancedb()
        return cls(where, GalleryInfo(encoder.source, encoder.components, encoder.centred, encoder.dim), None)

    # --- what its vectors were made with --------------------------------------------------------------------------

    def require(self, encoder: Encoder) -> None:
        """Refuses an encoder whose vectors do not compare with those of the gallery."""
        if not encoder.fits(self.about.encoder):
            raise DearError(
                f"The gallery {self.folder} was made with {describe(self.about.encoder)}, and not with "
                f"{describe(encoder.source)}: their vectors do not compare; choose another gallery."
            )

    def encoder(self, device: str = "auto") -> Encoder:
        """What this gallery was made with, ready to encode a query."""
        return load_encoder(self.about.encoder, device)

    def query(
        self, encoder: Encoder, given: Image.Image | str, components: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        """A picture or a sentence -> what `search` takes: a vector [dim] of each component (by default of all)."""
        names = self.components if components is None else components
        if isinstance(given, str):
            features = encoder.encode_text(given)
            return {name: features[name].float().cpu().numpy() for name in names}
        features = encoder.encode_image(encoder.preprocess(given.convert("RGB"))[None])
        return {name: features[name][0].float().cpu().numpy() - self._shift(name) for name in names}

    def _shift(self, component: str) -> np.ndarray | float:
        """What is taken off an image's vector before it is compared."""
        return self.snapshot().codes(component, True).shift if component in self.centred and len(self) else 0.0

    # --- images ---------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return 0 if self.table is None else self.table.count_rows()

    def rows(self, columns: Sequence[str]) -> Any:
        """Columns of all images, as an Arrow table, always in the same order."""
        if self.table is None:
            return schema(self.components, self.dim).empty_table().select(columns)
        return self.table.search().select(list(columns)).to_arrow()

    def paths(self) -> list[str]:
        return self.rows(["path"])["path"].to_pylist()

    def vectors(self, component: str) -> np.ndarray:
        """The unit vectors of all images as they are compared, [images, dim], in the order of `paths`."""
        stored = as_matrix(self.rows([vector_column(component)])[vector_column(component)], self.dim)
        return unit(stored - stored.mean(0)) if component in self.centred else unit(stored)

    def add(
        self,
        encoder: Encoder,
        sources: Sequence[str | Path],
        label_from_folder: bool = False,
        exact: bool = False,
        cluster: Cluster | None = None,
    ) -> IndexSummary:
        """Embeds what is not there yet: image files, folders, globs, or world:TASK[:STYLE].

        The label is the name of an image's folder if asked for, and the class in Attribute World. `exact`: pixels to
        the last bit, more slowly (`dear.data.quick`).
        """
        self.require(encoder)
        with one_writer(self.folder):
            if self.table is None and (self.folder / ABOUT).is_file():  # somebody else began it meanwhile
                begun = Gallery.create(self.folder, encoder)
                self.about, self.table = begun.about, begun.table
            added = add_images(self, encoder, [str(source) for source in sources], label_from_folder, exact, cluster)
            self._tidy()
        return added

    def remove(self, paths: Sequence[str | Path]) -> int:
        """Takes images out; they may be gone from the disk already. A folder means all below it; globs work too."""
        wanted = [absolute(str(path)) for path in paths]
        with one_writer(self.folder):
            gone = [
                stored
                for stored in self.paths()
                if any(stored == w or stored.startswith(w.rstrip("/") + "/") or fnmatchcase(stored, w) for w in wanted)
            ]
            self.delete_rows(gone)
            self._tidy()
        return len(gone)

    def delete_rows(self, paths: Sequence[str]) -> None:
        with self._writing():
            for start in range(0, len(paths), 1000):
                self.table.delete(f"path IN ({', '.join(map(_quoted, paths[start : start + 1000]))})")

    def add_rows(self, rows: Any) -> None:
        """rows: an Arrow table of this gallery's schema."""
        with self._writing():
            if self.table is None:
                database = _connect(self.folder)
                # Of a run that was killed here.
                if is_folder(self.folder):
                    shutil.rmtree(self.folder / f"{_TABLE}.lance", ignore_errors=True)
                else:
                    database.drop_table(_TABLE, ignore_missing=True)
                self.table = database.create_table(_TABLE, rows)
                self.about.write(self.folder)  # last: a folder that has it is whole
            else:
                self.table.add(rows)

    def image(self, path: str) -> Image.Image:
        """The picture, RGB, of a path in the gallery; no other file is ever opened."""
        from dear.data.dataset import ImageFile

        if self.table is None or not self.table.count_rows(f"path = {_quoted(path)}"):
            raise DearError(f"The gallery has no image {path}.")
        return world_picture(path).open() if path.startswith(WORLD) else ImageFile(Path(path)).open()

    def search(
        self,
        query: "Mapping[str, np.ndarray | Tensor]",
        weights: Mapping[str, float],
        k: int = 10,
        where: str | None = None,
    ) -> list[Hit]:
        """The k images most alike, best first: the mean of the components' cosines under `weights`.

        query: a vector [dim] of each weighted component; where: an SQL filter on path, size and label.
        """
        return find(self, query, weights, k, where)

    def snapshot(self) -> Snapshot:
        """The images as they are now; the first search of a version reads the vectors it needs into memory."""
        with self._lock:
            if self._snapshot is None or not self._snapshot.is_current():
                self._snapshot = Snapshot(self.table, self.dim)
            return self._snapshot

    def _tidy(self) -> None:
        """Merges the small files of single writes, and drops what they replaced."""
        if self.table is None:
            return
        with self._writing(), warnings.catch_warnings():
            # It warns of readers of older versions; ours notice, and read again.
            warnings.filterwarnings("ignore", message=r"optimize\(cleanup_older_than=0\)")
            self.table.optimize(cleanup_older_than=timedelta(0))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError) as error:  # a full disk, say
            raise DearError(f"Cannot write to the gallery {self.folder}: {error}.") from error


def _lancedb() -> Any:
    try:
        import lancedb
        import numkong  # noqa: F401 - needed only by a search, but better missed now
    except ImportError:
        raise DearError("A gallery needs LanceDB and NumKong: pip install 'dear-vlm[gallery]'.") from None
    return lancedb


def _connect(folder: Any) -> Any:
    # Every read looks for a newer version first: what another process added or removed is seen at once.
    return _lancedb().connect(str(folder), read_consistency_interval=timedelta(0))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
