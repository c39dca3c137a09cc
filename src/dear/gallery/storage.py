"""The files of a gallery: its address, gallery.json, and the columns of its table."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np

from dear.core.errors import DearError
from dear.core.files import open_regular, parse_json, read_json, to_json, write_json
from dear.core.lock import only_writer
from dear.core.schema import Name, Positive, check_shape
from dear.core.version import __version__

INFO = "gallery.json"
GALLERY_FORMAT = 2
AGAIN = "index its images again, into a new folder"


# --- address ------------------------------------------------------------------------------------------------------


def resolve(address: str | Path) -> Any:
    """A path; for an address in an object store (s3://, gs://, az://, memory://) an object with a path's methods."""
    text = str(address)
    if "://" not in text:
        return Path(address)
    if text.startswith("file://"):
        return Path(url2pathname(urlsplit(text).path))
    try:
        from upath import UPath

        folder = UPath(text)
        folder.exists()  # the first call that needs the store: a missing package or bucket is reported now
    except ImportError as error:
        raise DearError(f"The gallery {text} needs another package: {error}.") from None
    except Exception as error:  # every store has its own
        raise DearError(f"The gallery {text} cannot be reached: {str(error).strip().rstrip('.')}.") from error
    return folder


def is_local(folder: Any) -> bool:
    return isinstance(folder, Path)


def one_writer(folder: Any) -> AbstractContextManager[None]:
    """A lock on a local folder. Object stores have no locks: each write is atomic, but two writers can overlap."""
    return only_writer(folder) if is_local(folder) else nullcontext()


# --- gallery.json -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GalleryInfo:
    """The content of gallery.json: the vectors of a gallery, and the encoder that made them."""

    encoder: dict[str, Any]  # `Encoder.spec`
    components: tuple[Name, ...]
    centred: tuple[Name, ...]
    dim: Positive

    def write(self, folder: Any) -> None:
        value = {"format": GALLERY_FORMAT, "dear": __version__, **asdict(self)}
        if is_local(folder):
            write_json(folder / INFO, value)
        else:
            (folder / INFO).write_text(to_json(value, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Any) -> "GalleryInfo":
        """Reads a file; refuses one that is missing, damaged, or of another format."""
        file = folder / INFO
        if not file.is_file():
            raise DearError(f"{folder} is not a gallery: it has no {INFO}. `dear index` makes one.")
        value = read_json(file) if is_local(file) else _read_remote_json(file)
        version = value.get("format") if isinstance(value, dict) else None
        if type(version) is not int or version != GALLERY_FORMAT:
            raise DearError(f"dear {__version__} cannot read the format of {file}: index the images again.")
        return check_shape(value, cls, str(file), "index the images again")


def _read_remote_json(file: Any) -> Any:
    try:
        return parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DearError(f"{file} cannot be read as JSON ({error}): {AGAIN}.") from None


# --- a damaged table ---------------------------------------------------------------------------------------------


@contextmanager
def read_errors(folder: Any) -> Iterator[None]:
    """Turns LanceDB's errors into a sentence, wherever a table turns out to be damaged."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        raise DearError(f"The gallery {folder} cannot be read ({reason_of_lance(error)}): {AGAIN}.") from error


def reason_of_lance(error: Exception) -> str:
    """The reason in an error of LanceDB, without the place in its own source, which it appends."""
    return " ".join(str(error).split()).removeprefix("Invalid input, ").split(", /")[0].rstrip(".")[:200]


def require_regular_files(folder: Path) -> None:
    """Raises OSError for a pipe or a device in the place of a file: LanceDB would wait for it."""
    for file in folder.rglob("*"):
        if not file.is_dir():
            open_regular(file).close()


# --- columns of the table -----------------------------------------------------------------------------------------


def vector_column(component: str) -> str:
    return f"{component}_vector"  # an attribute may itself be called "size" or "label"


def table_schema(components: Sequence[str], dim: int) -> Any:
    import pyarrow as pa

    image = [("path", pa.string()), ("size", pa.int64()), ("modified_ns", pa.int64()), ("sha256", pa.string())]
    vectors = [(vector_column(c), pa.list_(pa.float16(), dim)) for c in components]
    return pa.schema([*image, ("label", pa.string()), *vectors])


def to_column(vectors: np.ndarray) -> Any:
    """Vectors [rows, dim] -> an Arrow column."""
    import pyarrow as pa

    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.astype(np.float16).ravel()), vectors.shape[1])


def to_matrix(column: Any, dim: int) -> np.ndarray:
    """An Arrow column, of a batch or of a whole table -> vectors [rows, dim] in float32."""
    chunks = getattr(column, "chunks", [column])
    parts = [chunk.flatten().to_numpy(zero_copy_only=False).reshape(-1, dim) for chunk in chunks]
    return np.concatenate(parts).astype(np.float32) if parts else np.empty((0, dim), np.float32)
