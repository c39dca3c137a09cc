"""A gallery on disk: a folder with gallery.json (whose features these are) and a LanceDB table of images."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from torch import Tensor

from dear.adapter import CONFIG
from dear.backbone.identity import hash_weights
from dear.errors import DearError
from dear.files import read_json, write_json
from dear.gallery.ann import refresh_indices
from dear.gallery.columns import schema, vector_column
from dear.gallery.index import Added, add_images
from dear.gallery.search import Hit, find
from dear.gallery.sources import WORLD, absolute, world_picture
from dear.lock import only_writer
from dear.version import __version__

if TYPE_CHECKING:
    from dear.predictor import Predictor

ABOUT, _TABLE, _FORMAT = "gallery.json", "images", 1
_PARTS = {"adapter", "components", "dim"}
_HASHES = ("config_sha256", "weights_sha256")


class Gallery:
    """Images and the features one adapter gave them. Make one with `create`, come back to it with `open`."""

    def __init__(self, folder: Path, about: dict[str, Any]) -> None:
        self.folder, self.about = folder, about
        self.components: tuple[str, ...] = tuple(about["components"])
        self.dim: int = about["dim"]
        self.table = _open_table(folder, self.components, self.dim)

    @classmethod
    def open(cls, folder: str | Path) -> "Gallery":
        folder = Path(folder)
        if not (folder / ABOUT).is_file():
            raise DearError(f"{folder} is not a gallery: it has no {ABOUT}. `dear index` makes one.")
        about = read_json(folder / ABOUT)
        if not isinstance(about, dict) or about.get("format") != _FORMAT or not set(about) >= _PARTS:
            raise DearError(f"{folder / ABOUT} is not one that dear {__version__} can read: index the images again.")
        return cls(folder, about)

    @classmethod
    def create(cls, folder: str | Path, run: str | Path, predictor: "Predictor") -> "Gallery":
        """A new gallery for the adapter in `run`, or the one that is there if it was made with this adapter."""
        folder = Path(folder)
        if (folder / ABOUT).is_file():
            gallery = cls.open(folder)
            gallery.require_run(run)
            return gallery
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise DearError(f"{folder} is there but is not a gallery: choose another --out.")
        adapter = {**_adapter_of(run), "parameters": hash_weights(predictor.model)}
        about = {"format": _FORMAT, "adapter": adapter, "components": list(predictor.model.components)}
        about |= {"dim": predictor.model.backbone.dim, "dear": __version__}
        write_json(folder / ABOUT, about)
        return cls(folder, about)

    # --- the adapter ------------------------------------------------------------------------------------------

    def require_run(self, run: str | Path) -> None:
        """Refuses a run folder with another adapter; remembers where the right one is now."""
        adapter, given = self.about["adapter"], _adapter_of(run)
        if any(given[key] != adapter[key] for key in _HASHES):
            raise DearError(
                f"The gallery {self.folder} was made with the adapter in {adapter['folder']}, and {run} has another "
                "one: their features do not compare; choose another --out."
            )
        if given["folder"] != adapter["folder"]:
            adapter["folder"] = given["folder"]
            write_json(self.folder / ABOUT, self.about)

    def require_predictor(self, predictor: "Predictor") -> None:
        if hash_weights(predictor.model) != self.about["adapter"]["parameters"]:
            raise DearError(
                f"The gallery {self.folder} was made with another adapter: load the one in "
                f"{self.about['adapter']['folder']}."
            )

    def predictor(self, device: str = "auto") -> "Predictor":
        """The adapted model this gallery was made with."""
        from dear import load

        run = Path(self.about["adapter"]["folder"])
        if not (run / CONFIG).is_file():
            raise DearError(
                f"The adapter of this gallery is no longer in {run}: tell where it is with "
                f"`dear index RUN --out {self.folder}`."
            )
        self.require_run(run)
        return load(run, device=device)

    # --- images -----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.table.count_rows()

    def paths(self) -> list[str]:
        return self.table.search().select(["path"]).to_arrow()["path"].to_pylist()

    def add(self, predictor: "Predictor", sources: Sequence[str | Path], label_from_folder: bool = False) -> Added:
        """Embeds what is not there yet: image files, folders, globs, or world:TASK[:STYLE].

        The label is the name of an image's folder if asked for, and the class in Attribute World.
        """
        self.require_predictor(predictor)
        with only_writer(self.folder):
            added = add_images(self, predictor, [str(source) for source in sources], label_from_folder)
            self._tidy()
        return added

    def remove(self, paths: Sequence[str | Path]) -> int:
        """Takes images out; they may be gone from the disk already. A folder means all below it; globs work too."""
        wanted = [absolute(str(path)) for path in paths]
        with only_writer(self.folder):
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
            self.table.add(rows)

    def image(self, path: str) -> Image.Image:
        """The picture, RGB, of a path in the gallery; no other file is ever opened."""
        from dear.data.dataset import ImageFile

        if not self.table.count_rows(f"path = {_quoted(path)}"):
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

    def _tidy(self) -> None:
        """Merges the small files of single writes, drops what they replaced, and brings the ANN indices up to date."""
        with self._writing(), warnings.catch_warnings():
            # It warns of readers of older versions; ours take the newest at every read.
            warnings.filterwarnings("ignore", message=r"optimize\(cleanup_older_than=0\)")
            refresh_indices(self.table, [vector_column(c) for c in self.components])
            self.table.optimize(cleanup_older_than=timedelta(0))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError) as error:  # a full disk, say
            raise DearError(f"Cannot write to the gallery {self.folder}: {error}.") from error


def _open_table(folder: Path, components: Sequence[str], dim: int) -> Any:
    try:
        import lancedb
    except ImportError:
        raise DearError("A gallery needs LanceDB: pip install 'dear-vlm[gallery]'.") from None
    try:
        # Every read looks for a newer version first: what another process added or removed is seen at once.
        database = lancedb.connect(folder, read_consistency_interval=timedelta(0))
        return database.create_table(_TABLE, schema=schema(components, dim), exist_ok=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise DearError(f"The gallery {folder} cannot be read: {error}.") from error


def _adapter_of(run: str | Path) -> dict[str, str]:
    config = read_json(Path(run) / CONFIG) if (Path(run) / CONFIG).is_file() else None
    if not isinstance(config, dict) or not set(_HASHES) <= set(config):
        raise DearError(f"{run} is not an adapter: give a folder made by `dear train`.")
    return {"folder": absolute(str(run)), **{key: config[key] for key in _HASHES}}


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
