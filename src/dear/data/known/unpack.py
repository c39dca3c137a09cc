"""Unpacks archives that others made: nothing leaves the folder, no links, no more bytes than a dataset may have."""

import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from gzip import BadGzipFile
from pathlib import Path, PurePosixPath
from typing import IO

from dear.core.errors import DearError, first_line
from dear.core.progress import Progress

_RATIO, _FLOOR = 20, 2**30  # photos do not shrink: a bomb is what grows to more than 20 times, and more than 1 GB
_MOST_FILES = 3_000_000
_DAMAGED = (zlib.error, lzma.LZMAError, BadGzipFile)
_NEVER = (".pkl", ".pickle", ".pt", ".pth")  # pickles run code when they are opened, and no dataset needs one


def unpack(archive: Path, folder: Path, take: dict[str, str]) -> None:
    """Unpacks each folder or file that `take` names to its place in `folder`, and nothing else."""
    limit = max(_FLOOR, _RATIO * archive.stat().st_size)
    total = 0
    with _archive_errors(archive), Progress(f"unpacking {archive.name}", 0, "file") as bar:
        for number, (name, size, stream) in enumerate(_members(archive)):
            total += size
            if total > limit or number > _MOST_FILES:
                raise ValueError("it unpacks to far more than a dataset of its size can have")
            target = _target(name, folder, take)
            if target is not None:
                target.parent.mkdir(parents=True, exist_ok=True)
                with stream as source, target.open("wb") as file:
                    shutil.copyfileobj(source, file, 2**20)
                bar.update()


def zip_names(archive: Path) -> list[str]:
    """File names in a zip."""
    with _archive_errors(archive), zipfile.ZipFile(archive) as zipped:
        return zipped.namelist()


def _target(name: str, folder: Path, take: dict[str, str]) -> Path | None:
    """The place of a file, or None if it is not wanted. Refuses a name that would lie outside the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in path.parts[0]:
        raise ValueError(f"it has a file {name!r}, which would leave the folder")
    if path.suffix.lower() in _NEVER or "__MACOSX" in path.parts:
        return None
    for inside, place in take.items():
        if path == PurePosixPath(inside):
            return folder / place / path.name
        if inside in ("", ".") or PurePosixPath(inside) in path.parents:
            return folder / place / path.relative_to(inside or ".")
    return None


def _members(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Name, size and content of each regular file."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                kind = stat.S_IFMT(info.external_attr >> 16)
                if not info.is_dir() and kind in (0, stat.S_IFREG):
                    yield info.filename, info.file_size, zipped.open(info)
        return
    if not hasattr(tarfile, "data_filter"):
        raise DearError(
            f"{archive.name} needs Python 3.10.12, 3.11.4 or newer: older ones do not check names in archives."
        )
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isreg():
                data = tar.extractfile(member)
                assert data is not None  # as the file is regular
                yield tarfile.data_filter(member, ".").name, member.size, data


@contextmanager
def _archive_errors(archive: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, EOFError, RuntimeError, tarfile.TarError, zipfile.BadZipFile, *_DAMAGED) as error:
        raise DearError(f"{archive.name} cannot be unpacked: {first_line(error)}.") from None
