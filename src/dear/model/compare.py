"""A leaderboard: sensible methods on one dataset, the same images for all, under a time limit."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dear.clip import Backbone
from dear.core.errors import DearError
from dear.core.table import Table
from dear.data.dataset import Dataset
from dear.methods.registry import METHODS, ZERO_SHOT, find_method, methods_for, recipe_of, simple_methods
from dear.model.results import ALL, Row, Scores, Verdict, compare, interval_text, make_row, parts_of
from dear.training.adapt import adapt
from dear.training.config import TrainConfig
from dear.training.estimate import RunEstimate
from dear.training.images import ImageSource

TRAINED = ("clip-adapter", "experts", "dear")  # after the methods without training, cheap ones first
_LEAST = 5.0  # seconds: no training starts with less time left


@dataclass(frozen=True)
class Entry:
    """A method on the test images: its time to fit, and how it compares with the best one."""

    row: Row
    seconds: float
    against_best: Verdict | None  # None: the best one itself


def default_methods(backbone: Backbone) -> list[str]:
    """Zero-shot, the simple methods, and a few trained ones, as far as they work with the backbone."""
    usable = methods_for(backbone.image.tier, backbone.text.tier)
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
    skipped = []
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
        seconds[name] = time.monotonic() - start
        scores.add(name, model, parts, source)
        print(f"{name}: {make_row(name, scores.right(name)).accuracy:.1f}% ({seconds[name]:.0f} s)", flush=True)
    if not seconds:
        raise DearError(f"There was no time for {', '.join(skipped)}: raise --time-limit.")
    return _ranked(scores, seconds), skipped


def _ranked(scores: Scores, seconds: dict[str, float]) -> list[Entry]:
    right = {name: scores.right(name) for name in seconds}
    names = sorted(right, key=lambda name: (-int(right[name].sum()), seconds[name]))
    best = names[0]
    return [
        Entry(
            make_row(name, right[name]),
            seconds[name],
            None if name == best else compare(right[best], right[name], name),
        )
        for name in names
    ]


def leaderboard_table(entries: Sequence[Entry]) -> Table:
    table = Table(["method", "accuracy (%)", "95% interval", "seconds to fit", "p against the best"])
    for entry in entries:
        p = None if entry.against_best is None else f"{entry.against_best.p:.2g}"
        row = entry.row
        table.add(row.method, row.accuracy, interval_text(row.interval), round(entry.seconds, 1), p)
    return table


def advice(entries: Sequence[Entry]) -> str:
    """The cheapest method that is not beyond noise below the best one."""
    level = [e for e in entries if e.against_best is None or e.against_best.p >= 0.05]
    cheapest = min(level, key=lambda entry: entry.seconds)
    best = entries[0].row
    if cheapest.row.method == best.method:
        return f"{best.method} is the best, and no cheaper one is within noise of it."
    others = ", ".join(e.row.method for e in level if e.row.method != best.method)
    return (
        f"{best.method} is ahead, but within noise of {others} (p of at least 0.05 on the same images); "
        f"the cheapest of these is {cheapest.row.method}."
    )
