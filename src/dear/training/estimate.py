"""How long a run will still take, from measured steps; and how many epochs fit into a time limit."""

import re
import time
from collections.abc import Callable

from dear.core.errors import DearError

_UNITS = {"s": 1, "m": 60, "h": 3600}


def parse_duration(text: str) -> float:
    """Seconds of "90s", "5m", "1.5h" or "1h30m"."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([smh])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise DearError(f"--time-limit must be a time like 90s, 5m or 1h30m, not {text!r}.")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not 1 <= seconds <= 1e7:
        raise DearError(f"--time-limit must be from 1s to 2777h, not {text}.")
    return seconds


class RunEstimate:
    """Time left of a whole run: this training, and what comes after it.

    `after(training)`: seconds of everything after this training, given the seconds of one training. `deadline`: on the
    clock of `time.monotonic`; None: no limit.
    """

    def __init__(self, after: Callable[[float], float] = lambda training: 0.0, deadline: float | None = None) -> None:
        self.after, self.deadline = after, deadline
        self.epochs: tuple[int, int] | None = None  # after a training: its epochs, and those of its settings
        self._steps, self._began, self._first, self._last = 0, 0.0, 0.0, 0.0

    def start(self) -> None:
        """Called before the first step of a training."""
        self._steps, self._began = 0, time.monotonic()

    def step(self) -> None:
        """Called after each step."""
        self._last = time.monotonic()
        self._first = self._last if self._steps == 0 else self._first
        self._steps += 1

    @property
    def is_measured(self) -> bool:
        """Whether there is more to go by than the first step."""
        return self._steps > 1

    @property
    def step_seconds(self) -> float:
        """Mean of all steps but the first, in which workers start and caches fill."""
        if self._steps < 2:
            return self._last - self._began if self._steps else 0.0
        return (self._last - self._first) / (self._steps - 1)

    def left(self, steps: int, steps_in_all: int) -> float:
        """Seconds left in the whole run, with so many steps left of all steps of this training."""
        return self.step_seconds * steps + self.after(self.step_seconds * steps_in_all)

    def affordable_epochs(self, done: int, epochs: int, steps: int) -> int:
        """The number of epochs that end before the deadline: at least those that are done, at most `epochs`."""
        if self.deadline is None:
            return epochs
        room = self.deadline - time.monotonic() - self.after(0.0)
        return min(epochs, max(done, done + int(room / max(1e-9, self.step_seconds * steps))))
