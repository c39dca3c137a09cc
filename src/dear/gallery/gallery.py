"""A gallery: gallery.json (which encoder made its vectors) and a LanceDB table of images, in a folder or a bucket."""

import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from PIL import Image

from dear.core.errors import DearError, needing
from dear.core.lock import LOCK
from dear.data.dataset import ImageFile
from dear.data.decode import Decoder
from dear.gallery.encoders import Encoder, check_spec, describe_encoder, load_encoder
from dear.gallery.index import WORLD, IndexSummary, add_images, stored_path, world_picture
from dear.gallery.search import Snapshot, search_gallery, unit
from dear.gallery.storage import (
    AGAIN,
    INFO,
    GalleryInfo,
    is_local,
    one_writer,
    read_errors,
    reason_of_lance,
    require_regular_files,
    resolve,
    table_schema,
    to_matrix,
    vector_column,
)
from dear.parallel.cluster import Cluster

_TABLE = "images"


class Gallery:
    """Images and the vectors that one encoder gave them. `create` makes one, `open` opens it again."""

    def __init__(self, folder: Any, info: GalleryInfo, table: Any) -> None:
        self.folder, self.info = folder, info
        self.components, self.centred, self.dim = info.components, info.centred, info.dim
        self.table = table  # None until the first image is added
        self._snapshot: Snapshot | None = None
        self._lock = Lock()

    @classmethod
    def open(cls, folder: str | Path) -> "Gallery":
        """Opens a gallery to read; nothing is created or repaired. `folder`: a path, or an address such as s3://BUCKET/NAME."""
        place = resolve(folder)
        info = GalleryInfo.read(place)
        check_spec(info.encoder, str(place / INFO))
        expected = table_schema(info.components, info.dim)
        data = place / f"{_TABLE}.lance"
        if not data.is_dir():
            raise DearError(f"The gallery {place} has lost its table ({data.name}): {AGAIN}.")
        with read_errors(place):
            if is_local(place):
                require_regular_files(data)
            table = _connect(place).open_table(_TABLE)
            schema = table.schema
        if not schema.equals(expected):
            raise DearError(f"{place / INFO} does not fit the table beside it: index the images again.")
        return cls(place, info, table)

    @classmethod
    def create(cls, folder: str | Path, encoder: Encoder) -> "Gallery":
        """A new gallery, written with its first image; or the existing one, if this encoder made it."""
        place = resolve(folder)
        if (place / INFO).is_file():
            gallery = cls.open(place)
            gallery.require(encoder)
            if encoder.spec != gallery.info.encoder:  # the same encoder in another folder
                gallery.info = replace(gallery.info, encoder=encoder.spec)
                gallery.info.write(place)
            return gallery
        # A table without a gallery.json is left by a run that was killed at its start.
        if place.exists() and (not place.is_dir() or {f.name for f in place.iterdir()} - {f"{_TABLE}.lance", LOCK}):
            raise DearError(f"{place} exists but is not a gallery: choose another --out.")
        _lancedb()
        return cls(place, GalleryInfo(encoder.spec, encoder.components, encoder.centred, encoder.dim), None)

    # --- encoder --------------------------------------------------------------------------------------------------

    def require(self, encoder: Encoder) -> None:
        """Refuses an encoder whose vectors are not comparable with those of the gallery."""
        if not encoder.fits(self.info.encoder):
            raise DearError(
                f"The gallery {self.folder} was made with {describe_encoder(self.info.encoder)}, and not with "
                f"{describe_encoder(encoder.spec)}: their vectors are not comparable; choose another gallery."
            )

    def encoder(self, device: str = "auto", precision: str = "auto") -> Encoder:
        """The encoder that made this gallery, loaded to encode queries."""
        return load_encoder(self.info.encoder, device, precision)

    def query(
        self, encoder: Encoder, query: Image.Image | str, components: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        """A picture or a sentence -> the query of `search`: a vector [dim] per component (default: all)."""
        names = self.components if components is None else components
        if isinstance(query, str):
            features = encoder.encode_text(query)
            return {name: features[name].float().cpu().numpy() for name in names}
        features = encoder.encode_image(Decoder(encoder.preprocess)(query)[None])
        return {name: features[name][0].float().cpu().numpy() - self._mean(name) for name in names}

    def _mean(self, component: str) -> np.ndarray | float:
        """The mean over all images of a centred component; 0 for others."""
        if component not in self.centred or not len(self):
            return 0.0
        with read_errors(self.folder):
            return self.snapshot().codes(component).shift

    # --- images ---------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        with read_errors(self.folder):
            return 0 if self.table is None else self.table.count_rows()

    def rows(self, columns: Sequence[str]) -> Any:
        """Columns of all images as an Arrow table, always in the same order."""
        if self.table is None:
            return table_schema(self.components, self.dim).empty_table().select(columns)
        with read_errors(self.folder):
            return self.table.search().select(list(columns)).to_arrow()

    def paths(self) -> list[str]:
        return self.rows(["path"])["path"].to_pylist()

    def vectors(self, component: str) -> np.ndarray:
        """The unit vectors of all images that a search compares, [images, dim], in the order of `paths`."""
        stored = to_matrix(self.rows([vector_column(component)])[vector_column(component)], self.dim)
        return unit(stored - stored.mean(0)) if component in self.centred else unit(stored)

    def image(self, path: str) -> Image.Image:
        """The picture, RGB, of a path in the gallery; no other file is ever opened."""
        with read_errors(self.folder):
            is_there = self.table is not None and self.table.count_rows(f"path = {_quote(path)}")
        if not is_there:
            raise DearError(f"The gallery has no image {path}.")
        return world_picture(path).open() if path.startswith(WORLD) else ImageFile(Path(path)).open()

    search = search_gallery

    def snapshot(self) -> Snapshot:
        """The current version of the table; the first search of a version reads its vectors into memory."""
        with self._lock:
            if self._snapshot is None or not self._snapshot.is_current():
                self._snapshot = Snapshot(self.table, self.dim, self.centred)
            return self._snapshot

    # --- writing --------------------------------------------------------------------------------------------------

    def add(
        self,
        encoder: Encoder,
        sources: Sequence[str | Path],
        label_from_folder: bool = False,
        fast_decode: bool = False,
        cluster: Cluster | None = None,
    ) -> IndexSummary:
        """Indexes new images: files, folders, globs, or world:TASK[:STYLE].

        The label is the name of an image's folder if `label_from_folder`, and the class in Attribute World.
        `fast_decode`: see `dear.data.decode.Decoder`.
        """
        self.require(encoder)
        with one_writer(self.folder):
            if self.table is None and (self.folder / INFO).is_file():  # another process created it meanwhile
                gallery = Gallery.create(self.folder, encoder)
                self.info, self.table = gallery.info, gallery.table
            names = [str(source) for source in sources]
            summary = add_images(self, encoder, names, label_from_folder, fast_decode, cluster)
            self.compact()
        return summary

    def remove(self, paths: Sequence[str | Path]) -> int:
        """Removes images, which may be gone from disk already. A folder means all images below it; globs work too."""
        patterns = [stored_path(str(path)) for path in paths]
        with one_writer(self.folder):
            matches = [
                path
                for path in self.paths()
                if any(path == p or path.startswith(p.rstrip("/") + "/") or fnmatchcase(path, p) for p in patterns)
            ]
            self.delete_rows(matches)
            self.compact()
        return len(matches)

    def delete_rows(self, paths: Sequence[str]) -> None:
        with self._write_errors():
            for start in range(0, len(paths), 1000):
                self.table.delete(f"path IN ({', '.join(map(_quote, paths[start : start + 1000]))})")

    def add_rows(self, rows: Any) -> None:
        """Writes rows, an Arrow table of this gallery's schema."""
        with self._write_errors():
            if self.table is None:
                database = _connect(self.folder)
                # A table of a run that was killed here.
                if is_local(self.folder):
                    shutil.rmtree(self.folder / f"{_TABLE}.lance", ignore_errors=True)
                else:
                    database.drop_table(_TABLE, ignore_missing=True)
                self.table = database.create_table(_TABLE, rows)
                self.info.write(self.folder)  # last: a folder that has it is complete
            else:
                self.table.add(rows)

    def compact(self) -> None:
        """Merges the small files of single writes, and deletes the versions before."""
        if self.table is None:
            return
        with self._write_errors(), warnings.catch_warnings():
            # LanceDB warns of readers of older versions; a search notices the change and reads again.
            warnings.filterwarnings("ignore", message=r"optimize\(cleanup_older_than=0\)")
            self.table.optimize(cleanup_older_than=timedelta(0))

    @contextmanager
    def _write_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError) as error:  # a full disk, say
            raise DearError(f"Cannot write to the gallery {self.folder}: {reason_of_lance(error)}.") from error


def _lancedb() -> Any:
    with needing("A gallery needs LanceDB and NumKong", "'dear-vlm[gallery]'"):
        import lancedb
        import numkong  # noqa: F401 - only a search needs it, but its absence is better reported at once
    return lancedb


def _connect(folder: Any) -> Any:
    # Every read looks for a newer version first: changes by other processes are visible at once.
    return _lancedb().connect(str(folder), read_consistency_interval=timedelta(0))


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
