"""Progress of long work: a bar on a terminal, a line per minute in a log."""

import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")
_EVERY = 60.0  # seconds between lines of a log
_SOON = 1.0  # seconds; what takes less is not worth a line


class Progress:
    """Counts `done` up to `total`; a context manager. Everything goes to stderr."""

    def __init__(
        self,
        title: str,
        total: int,
        unit: str = "image",
        done: int = 0,
        leave: bool = False,
        left: Callable[[], float] | None = None,
    ) -> None:
        """`leave`: the full bar stays on the terminal. `left`: a better estimate of the seconds that are left, of more
        than this work."""
        self.title, self.total, self.unit, self.done, self.left = title, total, unit, done, left
        self._bar = tqdm(
            total=total, initial=done, desc=title, unit=unit, leave=leave,
            disable=sys.stderr is None or None,
            bar_format=None if left is None else "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]",
        )  # fmt: skip
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
        if sys.stdout is not None:
            self._bar.write(text)

    def __str__(self) -> str:
        elapsed = time.monotonic() - self._began
        times = tqdm.format_interval(elapsed)
        if self.left is None:  # else the note beside the count has it
            left = elapsed / max(1, self.done - self._start) * (self.total - self.done)
            times += f", about {duration(left)} left"
        return f"{self.title}: {self.done} of {self.total} {self.unit}s ({times})" + f" {self._note}".rstrip()


def progress(items: Collection[T], title: str, unit: str = "image") -> Iterator[T]:
    """Yields the items and counts them on a bar."""
    with Progress(title, len(items), unit) as bar:
        for item in items:
            yield item
            bar.update()


def duration(seconds: float) -> str:
    """Hours, minutes and seconds as "02:10" or "1:02:10"."""
    return tqdm.format_interval(seconds)


_reports_phases = False


@contextmanager
def reporting_phases() -> Iterator[None]:
    """Inside it, `phase` prints. The command line and `dear.train` use it; other Python code loads in silence."""
    global _reports_phases
    before, _reports_phases = _reports_phases, True
    try:
        yield
    finally:
        _reports_phases = before


@contextmanager
def phase(title: str, has_bar: bool = False) -> Iterator[None]:
    """A part of long work: after a second its name is printed, unless it has a bar, and at its end how long it took."""
    if not _reports_phases:
        yield
        return
    start = time.monotonic()
    said = threading.Event()

    def say() -> None:
        said.set()
        _print_part(f"{title} ...")

    timer = threading.Timer(_SOON, say)
    timer.daemon = True
    if not has_bar:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        seconds = time.monotonic() - start
        if said.is_set():
            timer.join()
            _print_part(f" {seconds:.0f} s\n")
        elif has_bar and seconds >= _SOON:
            _print_part(f"{title}: {seconds:.0f} s\n")


def report(text: str) -> None:
    """Prints a line to stderr inside `reporting_phases`."""
    if _reports_phases:
        _print_part(f"{text}\n")


def _print_part(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)


def log_line(text: str) -> None:
    """Prints a line to a log at the end of a part; a terminal shows the bar instead."""
    if sys.stderr is not None and not sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)
