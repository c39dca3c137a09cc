"""Progress of long work: a bar on a terminal, a line per minute in a log."""

import sys
import time
from collections.abc import Collection, Iterator
from types import TracebackType
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")
_EVERY = 60.0  # seconds between lines of a log


class Progress:
    """Counts `done` up to `total`; a context manager. Everything goes to stderr."""

    def __init__(self, title: str, total: int, unit: str = "image", done: int = 0, leave: bool = False) -> None:
        """`leave`: the full bar stays on the terminal."""
        self.title, self.total, self.unit, self.done = title, total, unit, done
        self._bar = tqdm(total=total, initial=done, desc=title, unit=unit, leave=leave, disable=None)
        self._start, self._note = done, ""
        self._began = self._printed = time.monotonic()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.close()

    def update(self, count: int = 1) -> None:
        self.done += count
        self._bar.update(count)
        if self._bar.disable and time.monotonic() - self._printed >= _EVERY:
            self._printed = time.monotonic()
            print(self, file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """Sets the text beside the count."""
        self._note = text
        self._bar.set_postfix_str(text, refresh=False)

    def write(self, text: str) -> None:
        """Prints a line to stdout, above the bar."""
        self._bar.write(text)

    def __str__(self) -> str:
        elapsed = time.monotonic() - self._began
        left = elapsed / max(1, self.done - self._start) * (self.total - self.done)
        times = f"{tqdm.format_interval(elapsed)}, about {tqdm.format_interval(left)} left"
        return f"{self.title}: {self.done} of {self.total} {self.unit}s ({times})" + f" {self._note}".rstrip()


def progress(items: Collection[T], title: str, unit: str = "image") -> Iterator[T]:
    """Yields the items and counts them on a bar."""
    with Progress(title, len(items), unit) as bar:
        for item in items:
            yield item
            bar.update()


def log_line(text: str) -> None:
    """Prints a line to a log at the end of a part; a terminal shows the bar instead."""
    if not sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)
