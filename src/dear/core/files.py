"""Atomic writing, so that a full disk or a killed run never leaves half a file, and reading of untrusted files.

Temporary files lie beside their target and are named after their writer (`.dear-MACHINE-PROCESS-NUMBER.part`). The next
writer in that folder removes those whose process has ended.
"""

import errno
import hashlib
import itertools
import json
import math
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
from typing import Any, BinaryIO, NoReturn

from dear.core.errors import DearError, reason_of

_MAX_BYTES = 2**29  # bytes of a text file: four times what ImageNet's split would take
_MACHINE = f"{zlib.crc32(platform.node().encode()):08x}"
_TEMPORARY = re.compile(r"\.dear-([0-9a-f]{8})-(\d+)-\d+\.part(\..*)?")
_DAY = 86400.0
_numbers = itertools.count()
_in_use: set[str] = set()  # names of temporary files of this process
_tidied: set[Path] = set()  # folders whose leftovers were removed


def user_cache() -> Path:
    """The folder of what is kept between commands for this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dear"


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; it takes the place of `path` only if the block succeeds."""
    path = Path(path)
    with _write_errors(path):
        if "\0" in str(path):  # newer Pythons would find it only at the end
            raise ValueError("embedded null byte")
        if not path.name or path.is_dir():
            raise DearError(f"Cannot write {path}: it is a folder.")
        path = Path(os.path.realpath(path)) if path.is_symlink() else path  # a link stays one
        if path.exists() and not path.is_file():  # /dev/null would be replaced, too
            raise DearError(f"Cannot write {path}: it is not a regular file.")
        path.parent.mkdir(parents=True, exist_ok=True)
        with _temporary_name(path) as temporary:
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
            mode = temporary.stat().st_mode
            yield temporary
            _settle(temporary, mode)
            os.replace(temporary, path)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yields a temporary folder beside `path`; it becomes `path`, which must be new or empty, if the block succeeds."""
    path = Path(path)
    with _write_errors(path):
        if "\0" in str(path):
            raise ValueError("embedded null byte")
        if not path.name:
            raise DearError(f"Cannot write {path}: name a new folder.")
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise DearError(f"{path} already exists and is not an empty folder: choose another.")
        path.parent.mkdir(parents=True, exist_ok=True)
        with _temporary_name(path) as temporary:
            temporary.mkdir()
            yield temporary
            for file in temporary.iterdir():
                _settle(file, 0o666 & temporary.stat().st_mode)
            if path.exists():
                path.rmdir()
            temporary.rename(path)


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    """Turns errors of the system into a sentence that names the target instead of the temporary file."""
    try:
        yield
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError) and not re.search("null (byte|character)|surrogates", str(error)):
            raise  # not the name's fault
        raise DearError(f"Cannot write {path}: {reason_of(error)}.") from error


@contextmanager
def _temporary_name(path: Path) -> Iterator[Path]:
    """An unused name beside `path`; short, so that it fits wherever `path` does, and with the same suffix."""
    if path.parent not in _tidied:  # once is enough: this process removes its own
        _tidied.add(path.parent)
        clear_leftovers(path.parent)
    suffix = path.suffix if len(path.suffix) <= 12 else ""
    temporary = path.with_name(f".dear-{_MACHINE}-{os.getpid()}-{next(_numbers)}.part{suffix}")
    _in_use.add(temporary.name)
    try:
        yield temporary
    finally:
        _remove(temporary)  # after a success there is none
        _in_use.discard(temporary.name)


def _settle(file: Path, mode: int) -> None:
    """Flushes a file to the disk and gives it the rights of new files here, whichever library wrote it."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
    if stat.S_IMODE(file.stat().st_mode) != stat.S_IMODE(mode):
        file.chmod(stat.S_IMODE(mode))


def is_temporary(path: Path) -> bool:
    """Whether it is, or was, being written: such a file is not a result."""
    return path.name.startswith(".") and ".part" in path.name


def clear_leftovers(folder: Path) -> None:
    """Removes temporary files and folders whose writer is gone."""
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            if (name := _TEMPORARY.fullmatch(entry.name)) and _is_left(name, Path(entry.path)):
                _remove(Path(entry.path))


def _is_left(name: "re.Match[str]", path: Path) -> bool:
    """Whether its process has ended; or, on another machine, whether it is older than a day."""
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
    """Writes UTF-8; a letter that UTF-8 lacks (in a file name that is not UTF-8) becomes \\udc.. ."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_json(path: str | Path, value: Any) -> None:
    write_text(path, to_json(value, indent=1) + "\n")


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON that every reader accepts: no NaN; letters unescaped, unless UTF-8 lacks one of them."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent, allow_nan=False)
    return text


def open_regular(path: str | Path) -> BinaryIO:
    """A file opened for reading; OSError for anything else. Opening a pipe would wait until somebody writes."""
    file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    kind = os.fstat(file).st_mode
    if not stat.S_ISREG(kind):
        os.close(file)
        reason = "it is a folder" if stat.S_ISDIR(kind) else "it is not a regular file"
        raise OSError(errno.EINVAL, reason, str(path))
    return os.fdopen(file, "rb")


def read_bytes(path: str | Path, largest: int = _MAX_BYTES) -> bytes:
    """The content of a regular file of at most `largest` bytes; no more memory is taken than the file has."""
    with _read_errors(path), open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > largest:
            raise DearError(f"{path} has more than {largest // 2**20} MB: it is too large to be the right file.")
        data = file.read(size)
        if len(data) < size or file.read(1):
            raise DearError(f"{path} changed while it was read: wait until it is written, then try again.")
    return data


def checksum_of(path: str | Path, kind: str = "sha256") -> str:
    """The checksum of a regular file of any size, by an algorithm of hashlib."""
    digest = hashlib.new(kind)
    with _read_errors(path), open_regular(path) as file:
        while part := file.read(2**20):
            digest.update(part)
    return digest.hexdigest()


@contextmanager
def _read_errors(path: str | Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise DearError(f"{path} does not exist: check its name and folder.") from None
    except (OSError, ValueError) as error:
        raise DearError(f"{path} cannot be read: {reason_of(error)}.") from None


def require_folder(path: Path | None, option: str) -> None:
    """Refuses a file where a folder is asked for; a folder that is not there yet will be made."""
    if path is not None and os.path.exists(path) and not os.path.isdir(path):
        raise DearError(f"{path} is a file: give a folder as {option}.")


def read_text(path: str | Path) -> str:
    """The text of a UTF-8 file, without its byte order mark."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DearError(f"{path} cannot be read: it is not UTF-8 ({error.reason} at byte {error.start}).") from None


def read_json(path: str | Path) -> Any:
    text = read_text(path)
    try:
        return parse_json(text)
    except ValueError as error:
        raise DearError(f"{path} cannot be read as JSON ({error}): correct it, or make it again.") from None


def parse_json(text: str) -> Any:
    """Strict: no NaN, no infinity, no nesting beyond Python's limit. Raises ValueError, whatever is wrong."""
    try:
        return json.loads(text, parse_constant=_refuse_number, parse_float=_finite_float, parse_int=_small_int)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"{text[:30]} is not a finite number")


def _finite_float(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse_number(text)


def _small_int(text: str) -> int:
    if len(text) > 1000:  # Python's own limit is 4,300 digits, and its advice is for programmers
        raise ValueError(f"a number has {len(text)} digits")
    return int(text)
