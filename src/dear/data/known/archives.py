"""Downloads archives and unpacks them. They are checked by size and checksum, and may mean harm all the same.

A download continues where it ended. Nothing that is unpacked leaves the folder; there are no links, and no more bytes
than a dataset may have.
"""

import hashlib
import lzma
import shutil
import stat
import tarfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from gzip import BadGzipFile
from pathlib import Path, PurePosixPath
from typing import IO, Any

from dear.core.errors import DearError, first_line, library_errors, needing
from dear.core.files import checksum_of
from dear.core.progress import Progress
from dear.data.known.sources import Archive

_REQUEST = 8 * 2**20  # bytes
_MB = 2**20
_SLACK, _SMALL = 2, 64  # times the rough number of MB, which is at least so large, are too many
_TRIES = 4
_WAIT = 2.0  # seconds before the second try; doubled each time
_TIMEOUT = 60.0  # seconds without an answer
_RATIO, _FLOOR = 20, 2**30  # photos do not shrink: a bomb is what grows to more than 20 times, and more than 1 GB
_MOST_FILES = 3_000_000
_DAMAGED = (ValueError, EOFError, RuntimeError, tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError,
            BadGzipFile)  # fmt: skip
_NEVER = (".pkl", ".pickle", ".pt", ".pth")  # pickles run code when they are opened, and no dataset needs one


def download(archive: Archive, folder: Path) -> Path:
    """The path of the archive in `folder`, whole and checked. An interrupted download is continued."""
    file, part = folder / archive.name, folder / (archive.name + ".part")
    if file.is_file():
        return file
    folder.mkdir(parents=True, exist_ok=True)
    for fresh in (False, True):
        continued = part.is_file() and part.stat().st_size > 0
        _fetch(archive, part)
        problem = _difference(part, archive.size, archive.checksum)
        if not problem:
            part.replace(file)
            return file
        part.unlink()
        if fresh or not continued:  # a second try only helps if the first continued a part of an older version
            raise DearError(f"{archive.url} has changed ({problem}): the download was discarded.")
    raise AssertionError


def read_member(archive: Archive, name: str, size: int, sha256: str) -> bytes:
    """One file of a zip, by its name in any folder, without downloading the rest."""
    errors = library_errors(f"{name} cannot be read from {archive.url}")  # those below fsspec raise many kinds
    with errors, _open_remote(archive.url) as remote, zipfile.ZipFile(remote) as zipped:
        member = next((i for i in zipped.infolist() if i.filename.rpartition("/")[2] == name), None)
        if member is None or member.file_size != size:
            raise DearError(f"{archive.url} has no {name} of {size} bytes.")
        data = zipped.read(member)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise DearError(f"{name} in {archive.url} has changed (its SHA-256 differs): the download was discarded.")
    return data


def _fetch(archive: Archive, part: Path) -> None:
    """Downloads an archive to `part`; after a broken connection it tries again, from where it broke."""
    wait, block = _WAIT, _REQUEST
    for number in range(_TRIES):
        before = part.stat().st_size if part.is_file() else 0
        try:
            _copy(archive, part, block)
            return
        except DearError:
            raise
        except Exception as error:  # the libraries below fsspec raise many kinds
            if block and isinstance(error, ValueError) and "range requests" in str(error):
                block = 0  # this server sends a file from its start only
                continue
            advanced = part.is_file() and part.stat().st_size > before
            missing = isinstance(error, FileNotFoundError) or getattr(error, "status", None) in (401, 403, 404)
            if missing or (number == _TRIES - 1 and not advanced):
                raise DearError(f"{archive.url} cannot be downloaded: {first_line(error)}.") from None
        time.sleep(wait)
        wait *= 2
    raise DearError(f"The connection to {archive.url} keeps breaking: run the command again to continue.")


def _copy(archive: Archive, part: Path, request: int) -> None:
    with _open_remote(archive.url, request) as remote, part.open("ab" if request else "wb") as local:
        size = getattr(remote, "size", None) or archive.size
        most = archive.size or _SLACK * max(archive.megabytes, _SMALL) * _MB  # no server may fill the disk
        if archive.size and size != archive.size:
            raise DearError(f"{archive.url} has changed ({size} bytes, not {archive.size}): nothing was downloaded.")
        if request:
            remote.seek(local.tell())
        with Progress(archive.name, (size or 0) // _MB, "MB", local.tell() // _MB) as bar:
            while not size or local.tell() < size:
                block = remote.read(_REQUEST if not size else min(_REQUEST, size - local.tell()))
                if not block:
                    if size:
                        raise EOFError("it ends too early")
                    return
                if local.tell() + len(block) > most:
                    local.truncate(0)
                    raise DearError(f"{archive.url} has far more than {archive.megabytes} MB: nothing was kept.")
                local.write(block)
                bar.update(local.tell() // _MB - bar.done)


def _open_remote(url: str, request: int = _REQUEST) -> Any:
    """An open remote file. `request`: bytes to ask for at once; 0 for a stream from the start."""
    with needing("Downloads need fsspec and aiohttp", "'dear-vlm[data]'"):
        import fsspec

        options: dict[str, Any] = {}
        if url.startswith("http"):
            from aiohttp import ClientTimeout

            options = {"client_kwargs": {"timeout": ClientTimeout(None, sock_connect=_TIMEOUT, sock_read=_TIMEOUT)}}
            options["skip_instance_cache"] = True
        files, path = fsspec.core.url_to_fs(url, **options)
    return files.open(path, "rb", block_size=request, cache_type="readahead")


def _difference(file: Path, size: int | None, checksum: str | None) -> str:
    """How a file differs from the known size and checksum; empty if it does not."""
    if size is not None and file.stat().st_size != size:
        return f"it has {file.stat().st_size} bytes instead of {size}"
    if checksum is None:
        return ""
    kind, _, expected = checksum.partition(":")
    actual = checksum_of(file, kind)
    return "" if actual == expected else f"its {kind.upper()} is {actual} instead of {expected}"


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
    if not path.parts or path.is_absolute() or ".." in path.parts or "\\" in name or ":" in path.parts[0]:
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


def _archive_errors(archive: Path) -> AbstractContextManager[None]:
    return library_errors(f"{archive.name} cannot be unpacked", *_DAMAGED)
