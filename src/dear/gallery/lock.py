"""One writer at a time: tidying up drops files that a second writer would still need."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from dear.errors import DearError

_in_this_process = Lock()


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Refuses while another thread or process writes; a process that is killed leaves no lock behind."""
    busy = DearError(f"Somebody else is changing the gallery {folder}: wait until that is done.")
    if not _in_this_process.acquire(blocking=False):
        raise busy
    try:
        file = os.open(folder / ".writing", os.O_WRONLY | os.O_CREAT)
    except OSError as error:
        _in_this_process.release()
        raise DearError(f"Cannot write to the gallery {folder}: {error.strerror}.") from None
    try:
        if not _lock(file):
            raise busy
        yield
    finally:
        os.close(file)
        _in_this_process.release()


def _lock(file: int) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows has no such lock
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not flock: forked workers that outlive a kill would hold it
    except OSError:
        return False
    return True
