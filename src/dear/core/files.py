"""Writing files so that a full disk or a killed run never leaves half of one, and reading what may be anything.

One rule for temporary files: they lie beside what they become, begin with a dot and say who writes them
(`.dear-MACHINE-PROCESS-NUMBER.part`), and the next one who writes into that folder removes those whose writer is gone.
"""

import itertools
import json
import os
import platform
import re
import shutil
import stat
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dear.core.errors import DearError

_LARGEST = 2**29  # bytes of a text file: four times what ImageNet's split would take
_MACHINE = f"{zlib.crc32(platform.node().encode()):08x}"
_TEMPORARY = re.compile(r"\.dear-([0-9a-f]{8})-(\d+)-\d+\.part(\..*)?")
_DAY = 86400.0
_numbers = itertools.count()
_in_use: set[str] = set()  # names of temporary files of this process
_tidied: set[Path] = set()


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; it takes the place of `path` only if the block succeeds."""
    path = Path(path)
    with _said(path):
        if not path.name or path.is_dir():
            raise DearError(f"Cannot write {path}: it is a folder.")
        path = Path(os.path.realpath(path)) if path.is_symlink() else path  # a link stays one
        if path.exists() and not path.is_file():  # /dev/null would be replaced, too
            raise DearError(f"Cannot write {path}: it is not a regular file.")
        path.parent.mkdir(parents=True, exist_ok=True)
        with _temporary(path) as temporary:
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
            mode = temporary.stat().st_mode
            yield temporary
            _settle(temporary, mode)
            os.replace(temporary, path)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yields a temporary folder beside `path`; it becomes `path`, which must be new or empty, if the block succeeds."""
    path = Path(path)
    with _said(path):
        if not path.name:
            raise DearError(f"Cannot write {path}: name a new folder.")
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise DearError(f"{path} already exists and is not an empty folder: choose another.")
        path.parent.mkdir(parents=True, exist_ok=True)
        with _temporary(path) as temporary:
            temporary.mkdir()
            yield temporary
            for file in temporary.iterdir():
                _settle(file, 0o666 & temporary.stat().st_mode)
            if path.exists():
                path.rmdir()
            temporary.rename(path)


@contextmanager
def _said(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError) and not re.search("null byte|surrogates", str(error)):
            raise  # not the name's fault
        raise DearError(f"Cannot write {path}: {getattr(error, 'strerror', None) or error}.") from error


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """A name nobody has; short, so that wherever `path` fits this one does. Writers see the suffix they know."""
    if path.parent not in _tidied:  # once is enough: this process leaves nothing behind
        _tidied.add(path.parent)
        clear_leftovers(path.parent)
    suffix = path.suffix if len(path.suffix) <= 12 else ""
    temporary = path.with_name(f".dear-{_MACHINE}-{os.getpid()}-{next(_numbers)}.part{suffix}")
    _in_use.add(temporary.name)
    try:
        yield temporary
    finally:
        _remove(temporary)  # it is gone after a success, and may never have been possible
        _in_use.discard(temporary.name)


def _settle(file: Path, mode: int) -> None:
    """On the disk for good, with the rights that new files have here, whatever the library that wrote it gave it."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
    if stat.S_IMODE(file.stat().st_mode) != stat.S_IMODE(mode):
        file.chmod(stat.S_IMODE(mode))


def is_temporary(path: Path) -> bool:
    """Is it, or was it, being written? Such a file is nobody's result."""
    return path.name.startswith(".") and ".part" in path.name


def clear_leftovers(folder: Path) -> None:
    """Removes temporary files and folders whose writer is gone."""
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            if (found := _TEMPORARY.fullmatch(entry.name)) and _is_left(found, Path(entry.path)):
                _remove(Path(entry.path))


def _is_left(name: "re.Match[str]", path: Path) -> bool:
    """Its process has ended; or, if that cannot be known from here, nobody touched it for a day."""
    machine, process = name[1], int(name[2])
    if machine == _MACHINE and process == os.getpid():
        return name[0] not in _in_use
    if machine == _MACHINE and os.name == "posix":
        try:
            os.kill(process, 0)
        except (ProcessLookupError, OverflowError):
            return True
        except OSError:
            return False
        return False
    with suppress(OSError):
        return time.time() - path.stat().st_mtime > _DAY
    return False


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def write_bytes(path: str | Path, data: bytes) -> None:
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: str | Path, text: str) -> None:
    """As UTF-8; what has no place there (a file name that is not UTF-8) is written as \\udc.. ."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_json(path: str | Path, value: Any) -> None:
    write_text(path, to_json(value, indent=1) + "\n")


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON that every reader takes: no NaN; readable letters, unless one of them has no place in UTF-8."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent, allow_nan=False)
    return text


def read_bytes(path: str | Path, largest: int = _LARGEST) -> bytes:
    """All of a file, if it is not larger than anything we would read."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(largest + 1) if os.fstat(file.fileno()).st_size <= largest else None
    except FileNotFoundError:
        raise DearError(f"{path} does not exist.") from None
    except (OSError, ValueError) as error:
        raise DearError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    if data is None or len(data) > largest:  # or it has no end, as /dev/zero
        raise DearError(f"{path} has more than {largest // 2**20} MB: it can't be what is looked for.")
    return data


def read_text(path: str | Path) -> str:
    """UTF-8, with or without a byte order mark, which is not part of the text."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DearError(f"{path} cannot be read: it is not UTF-8 ({error.reason} at byte {error.start}).") from None


def read_json(path: str | Path) -> Any:
    text = read_text(path)
    try:
        return parse_json(text)
    except ValueError as error:
        raise DearError(f"{path} cannot be read as JSON: {error}.") from None


def parse_json(text: str) -> Any:
    """Strict: no NaN, nothing nested deeper than Python can go. Raises ValueError, whatever is wrong."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")
