"""One writer at a time per folder: a second one is refused, so that neither loses anything."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from dear.core.errors import DearError, reason_of
from dear.core.files import clear_leftovers, is_temporary

LOCK = ".writing"
_guard = Lock()
_locked: set[str] = set()  # folders of this process, whose own file locks would not stop it


@contextmanager
def only_writer(folder: str | Path) -> Iterator[None]:
    """Makes the folder, and refuses while another thread or process writes there. The lock of a killed one is void.

    Folders that were made here and stayed empty are removed again.
    """
    folder = Path(folder)
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise DearError(f"{folder} is a file: name a folder.")
    try:
        place = os.path.realpath(folder)
    except ValueError as error:  # characters that no name can have
        raise DearError(f"Cannot write to {folder}: {error}.") from None
    busy = DearError(f"Somebody else is writing to {folder}: wait until that is done, or choose another folder.")
    with _guard:
        if place in _locked:
            raise busy
        _locked.add(place)
    try:
        new_folders = [path for path in (folder, *folder.parents) if not os.path.exists(path)]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = _take(folder / LOCK)
        except OSError as error:
            raise DearError(f"Cannot write to {folder}: {reason_of(error)}.") from None
        if file is None:
            raise busy
        try:
            clear_leftovers(folder)
            yield
        finally:
            with suppress(OSError):
                os.unlink(folder / LOCK)  # while it is ours: one who waits for it notices, and makes a new one
            os.close(file)
            for path in new_folders:
                with suppress(OSError):  # it is not empty
                    path.rmdir()
    finally:
        _locked.discard(place)


def names_in(folder: Path) -> list[str]:
    """The names in a folder, without the lock and temporary files."""
    return sorted(p.name for p in folder.iterdir() if p.name != LOCK and not is_temporary(p)) if folder.is_dir() else []


def _take(path: Path) -> int | None:
    """An open file with a lock; None if another process has it."""
    while True:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_NONBLOCK", 0), 0o666)  # a pipe would wait
        if not _lock(file):
            os.close(file)
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), os.stat(path)):
                return file
        os.close(file)  # its last owner removed it between our two steps


def _lock(file: int) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows has no such lock
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not flock: forked workers that outlive a kill would hold it
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EAGAIN)  # a file system without locks does without
    return True
