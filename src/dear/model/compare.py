"""A leaderboard: sensible methods on one dataset, the same images for all, under a time limit."""

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dear.clip import Backbone
from dear.core.errors import DearError
from dear.core.metrics import interval_text
from dear.core.table import Table
from dear.data.dataset import Dataset
from dear.methods.registry import METHODS, ZERO_SHOT, find_method, methods_for, recipe_of, simple_methods
from dear.model.evaluation import measured
from dear.model.results import (
    ALL,
    WITHIN_NOISE,
    Row,
    Scores,
    Verdict,
    compare,
    parts_of,
)
from dear.training.adapt import adapt
from dear.training.config import TrainConfig
from dear.training.estimate import RunEstimate
from dear.training.images import ImageSource, encode

TRAINED = ("head-gains", "clip-adapter", "experts", "dear")  # after the methods without training, cheap ones first
_LEAST = 5.0  # seconds: no training starts with less time left


@dataclass(frozen=True)
class Entry:
    """A method on the test images: its time to fit, and how it compares with the best one."""

    row: Row
    seconds: float
    against_best: Verdict | None  # None: the best one itself
    epochs: tuple[int, int] | None = None  # trained, and those of its recipe

    @property
    def needs_training(self) -> bool:
        return METHODS[self.row.method].trained

    @property
    def is_level(self) -> bool:
        """Whether it is the best one, or within noise of it."""
        return self.against_best is None or self.against_best.verdict == WITHIN_NOISE


def default_methods(backbone: Backbone) -> list[str]:
    """Zero-shot, the simple methods, and a few trained ones, as far as they work with the backbone."""
    usable = methods_for(backbone.image.tier, backbone.text.tier, not backbone.image.why_no_sum)
    return [name for name in (ZERO_SHOT, *simple_methods(), *TRAINED) if name in usable]


def leaderboard(
    dataset: Dataset, source: ImageSource, methods: Sequence[str], train: TrainConfig, time_limit: float
) -> tuple[list[Entry], list[str]]:
    """Entries, best first, and the methods for which there was no time.

    `dataset`: after the few-shot draw. Methods without training come first; trained ones share the time that is left,
    and have fewer epochs than their recipes if need be. Of `train` the seed, shots, device and workers are used.
    """
    if not methods:
        raise DearError("There are no methods to compare: name some.")
    deadline = time.monotonic() + time_limit
    parts, scores = parts_of(dataset, ALL), Scores()
    scores.add_images(parts)
    seconds: dict[str, float] = {}
    epochs: dict[str, tuple[int, int] | None] = {}
    skipped = []
    if not all(METHODS[name].trained for name in methods):
        # now, so that it does not count as the time of the first method
        encode((*dataset.train, *dataset.test), source)
    order = sorted(methods, key=lambda name: METHODS[name].trained)
    for number, name in enumerate(order):
        start = time.monotonic()
        left = deadline - start
        if METHODS[name].trained and left < _LEAST:
            skipped.append(name)
            continue
        share = start + left / (len(order) - number)
        kind, recipe = find_method(name), recipe_of(name)
        own = {"seed": train.seed, "shots": train.shots, "device": train.device, "workers": train.workers}
        config = TrainConfig.pick({**recipe, **own, "augment": "fixed:1"})  # the frozen layers run once per image
        with tempfile.TemporaryDirectory(prefix="dear-compare-") as work:
            estimate = RunEstimate(deadline=share)
            model = adapt(
                kind, kind.Config.pick(recipe), dataset, config, source, Path(work), pool=dataset, estimate=estimate
            )
        seconds[name], epochs[name] = time.monotonic() - start, estimate.epochs
        scores.add(name, model, parts, source)
        _, accuracy, _ = measured(scores.right(name))
        print(f"{name}: {accuracy:.1f}% ({seconds[name]:.0f} s)", flush=True)
    if not seconds:
        raise DearError(f"There was no time for {', '.join(skipped)}: raise --time-limit.")
    return _ranked(scores, seconds, epochs), skipped


def _ranked(scores: Scores, seconds: Mapping[str, float], epochs: Mapping[str, tuple[int, int] | None]) -> list[Entry]:
    right = {name: scores.right(name) for name in seconds}
    # Of equally good ones the simplest is first: zero-shot needs no images at all.
    names = sorted(right, key=lambda name: (-int(right[name].sum()), name != ZERO_SHOT, seconds[name]))
    best = names[0]
    return [
        Entry(
            Row(*measured(right[name]), name),
            seconds[name],
            None if name == best else compare(right[best], right[name], name),
            epochs[name],
        )
        for name in names
    ]


def leaderboard_table(entries: Sequence[Entry]) -> Table:
    table = Table(["method", "accuracy (%)", "95% interval", "seconds to fit", "epochs", "p against the best"])
    for entry in entries:
        p = None if entry.against_best is None else f"{entry.against_best.p:.2g}"
        row = entry.row
        table.add(
            row.method,
            row.accuracy,
            interval_text(row.interval),
            round(entry.seconds, 1),
            _epochs_text(entry.epochs),
            p,
        )
    return table


def _epochs_text(epochs: tuple[int, int] | None) -> str | None:
    return None if epochs is None else str(epochs[0]) if epochs[0] == epochs[1] else f"{epochs[0]} of {epochs[1]}"


def advised(entries: Sequence[Entry]) -> Entry:
    """The best one; the best without training, if that is within noise of it."""
    return next((entry for entry in entries if entry.is_level and not entry.needs_training), entries[0])


def advice(entries: Sequence[Entry]) -> str:
    """What follows from a leaderboard, in a few sentences."""
    best, choice = entries[0], advised(entries)
    others = ", ".join(entry.row.method for entry in entries[1:] if entry.is_level)
    found = f"{best.row.method} has the best accuracy, " + (f"within noise of {others}" if others else "beyond noise")
    found += "." if choice is best else f", and {choice.row.method} needs no training."
    if len(entries) > 1:
        found += f" As the best of {len(entries)} on the same images it looks a little better than it is."
    short = [entry.row.method for entry in entries if entry.epochs and entry.epochs[0] < entry.epochs[1]]
    if short:
        found += f" {', '.join(short)} had fewer epochs than usual, and may do better with a longer --time-limit."
    return found
