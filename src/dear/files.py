"""Writing files so that a full disk or a killed run never leaves half of one."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dear.errors import DearError


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; it takes the place of `path` only if the block succeeds."""
    path = Path(path)
    if not path.name:
        raise DearError(f"Cannot write {path}: it is a folder.")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise DearError(f"Cannot write {path}: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):  # it is gone after a success, and may never have been possible
            temporary.unlink()


def write_text(path: str | Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_json(path: str | Path) -> Any:
    path = Path(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DearError(f"{path} does not exist.") from None
    except (OSError, ValueError) as error:
        raise DearError(f"{path} cannot be read as JSON: {error}.") from None
