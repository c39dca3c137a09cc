"""A leaderboard: methods measured on the same images, the best first, each compared with one of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from dear.core.metrics import interval_text
from dear.core.table import Digits, Table
from dear.methods.registry import METHODS, ZERO_SHOT
from dear.trials.outcome import TEST, Outcome
from dear.trials.paired import AHEAD, BEHIND, Comparison, compare_once


class Leaderboard(Struct, frozen=True):
    """`reference`: the method that the others are compared with, by its difference: theirs minus that of it."""

    outcomes: tuple[Outcome, ...]
    reference: str
    comparisons: dict[str, Comparison]

    def __getitem__(self, method: str) -> Outcome:
        return next(outcome for outcome in self.outcomes if outcome.method == method)

    @property
    def best(self) -> Outcome:
        return self.outcomes[0]

    def table(self, chosen: str = "") -> Table:
        """Columns that no method has are left out; `chosen`: a method to mark with an asterisk."""
        against = f"against {self.reference}"
        header = ["method", "images", "accuracy (%)", "95% interval", against, "verdict", "p"]
        optional: dict[str, list[Any]] = {
            "cross entropy": [
                None if o.cross_entropy is None else Digits(o.cross_entropy, ".3f") for o in self.outcomes
            ],
            "calibration error (%)": [None if o.cross_entropy is None else o.ece for o in self.outcomes],
            "measured": [None if o.measured == TEST else o.measured for o in self.outcomes],
            "seconds to fit": [None if o.seconds is None else round(o.seconds, 1) for o in self.outcomes],
            "epochs": [_epochs_text(o.epochs) for o in self.outcomes],
        }
        shown = {name: cells for name, cells in optional.items() if any(cell is not None for cell in cells)}
        if len(self.outcomes) == 1:
            header = header[:4]
        table = Table([*header, *shown])
        for row, outcome in enumerate(self.outcomes):
            name, comparison = outcome.method, self.comparisons.get(outcome.method)
            mark = "" if not chosen else "* " if name == chosen else "  "
            cells: list[object] = [mark + name, outcome.images, outcome.accuracy, interval_text(outcome.interval, 1)]
            p = None if comparison is None or comparison.p is None else Digits(comparison.p, ".2g")
            cells += [comparison, None if comparison is None else comparison.verdict, p][: len(header) - len(cells)]
            table.add(*cells, *(column[row] for column in shown.values()))
        return table

    def advised(self) -> Outcome:
        """The best method, or the best of those without training that are not behind it."""
        behind = [name for name, comparison in self.comparisons.items() if comparison.verdict == BEHIND]
        simple = (o for o in self.outcomes if not METHODS[o.method].trained and o.method not in behind)
        return next(simple, self.outcomes[0])

    def advice(self) -> str:
        """The conclusion in a few lines, for a board whose reference is the best."""
        best, choice = self.best, self.advised()
        groups: dict[str, list[str]] = {}
        for outcome in self.outcomes[1:]:
            groups.setdefault(self.comparisons[outcome.method].verdict, []).append(outcome.method)
        words = [f"{word}: {', '.join(names)}" for word, names in groups.items()]
        lines = [f"{best.method} has the best accuracy" + (f"; {'; '.join(words)}." if words else ".")]
        if choice is not best:
            lines.append(f"{choice.method} needs no training.")
        if len(self.outcomes) > 1:
            several = f"Picked as the best of {len(self.outcomes)} on the same images, so"
            lines.append(f"{several} its accuracy is slightly optimistic.")
        short = [o.method for o in self.outcomes if o.epochs and o.epochs[0] < o.epochs[1]]
        if short:
            fewer = f"{', '.join(short)} had fewer epochs than usual"
            lines.append(f"{fewer}, and may do better with a longer --time-limit.")
        return "\n".join(lines)


def leaderboard(
    outcomes: Sequence[Outcome], reference: str | None = None, weights: np.ndarray | None = None
) -> Leaderboard:
    """The outcomes of different methods on the same images, ranked and compared with the best, or another reference.

    Among equally good methods the simplest is first: zero-shot, then whatever was fitted fastest. `weights`: see
    `compare_once`.
    """
    ranked = sorted(outcomes, key=lambda o: (-o.accuracy, o.method != ZERO_SHOT, o.seconds or 0.0))
    name = reference or ranked[0].method
    other = next(outcome for outcome in ranked if outcome.method == name)
    comparisons = {
        outcome.method: compare_once(outcome.answers, other.answers, weights)
        for outcome in ranked
        if outcome is not other
    }
    return Leaderboard(tuple(ranked), name, comparisons)


def verdict(board: Leaderboard) -> str:
    """How the reference compares with zero-shot and the best method without training, in a line each."""
    others = [outcome for outcome in board.outcomes if outcome.method != board.reference]
    others.sort(key=lambda outcome: outcome.method != ZERO_SHOT)
    lines = []
    for other in others:
        comparison = board.comparisons[other.method].turned()
        line = comparison.sentence(board.reference, other.method)
        if other.method != ZERO_SHOT and not METHODS[other.method].trained and comparison.verdict != AHEAD:
            line += f" {other.method} needs no training."
        lines.append(line)
    return "\n".join(lines)


def _epochs_text(epochs: tuple[int, int] | None) -> str | None:
    return None if epochs is None else str(epochs[0]) if epochs[0] == epochs[1] else f"{epochs[0]} of {epochs[1]}"
