"""Where a gallery lies: in a folder, or in an object store that LanceDB and fsspec know."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from dear.core.errors import DearError
from dear.core.lock import only_writer


def place(given: str | Path) -> Any:
    """A path, or for an address (s3://, gs://, az://, memory://) what has the methods of one."""
    text = str(given)
    if "://" not in text:
        return Path(given)
    if text.startswith("file://"):
        return Path(url2pathname(urlsplit(text).path))
    try:
        from upath import UPath

        found = UPath(text)
        found.exists()  # the first that needs the store: what is missing is said now
    except ImportError as error:
        raise DearError(f"The gallery {text} needs another package: {error}.") from None
    except Exception as error:  # every store has its own
        raise DearError(f"The gallery {text} cannot be reached: {str(error).strip().rstrip('.')}.") from error
    return found


def is_folder(where: Any) -> bool:
    return isinstance(where, Path)


def one_writer(where: Any) -> AbstractContextManager[None]:
    """Object stores have no locks: there, each write is whole, but nobody is told to wait for another."""
    return only_writer(where) if is_folder(where) else nullcontext()
