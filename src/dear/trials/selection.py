"""Selection: which method `dear fit` takes, by the labelled images themselves, each left out of its own fit."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from msgspec import Struct, to_builtins
from torch import Tensor
from torch.nn import functional as F

from dear.core.metrics import calibration_error, reliability, wilson_interval
from dear.core.table import Table
from dear.methods.shared.stacking import classes_alike, stack
from dear.trials.curve import CurvePoint, mean_and_error, some_names
from dear.trials.leaderboard import Leaderboard, leaderboard
from dear.trials.outcome import outcome_of

_WEIGHED = 2_000_000  # logits by which the temperature of a method is chosen, at most


class Selection(Struct, frozen=True):
    """Which method was chosen and why, how sure that is, and whether more labels would help; `str` gives all of it."""

    classes: int
    board: Leaderboard | None  # None: no class has two images, so nothing can be measured
    chosen: str
    reason: str
    notes: tuple[str, ...] = ()  # how the figures are to be read
    curve: tuple[CurvePoint, ...] = ()
    advice: str = ""

    @property
    def images(self) -> int:
        """Number of labelled images that were left out and answered."""
        return 0 if self.board is None else self.board.best.images

    def to_json(self) -> dict[str, Any]:
        return to_builtins(self)

    def table(self) -> Table:
        return Table(["method"]) if self.board is None else self.board.table(self.chosen)

    def __repr__(self) -> str:
        return str(self)  # what a notebook shows

    def __str__(self) -> str:
        table = [] if self.board is None else [self.table().text()]
        return "\n".join([*table, *self.notes, self.reason, *([self.advice] if self.advice else [])])


def select(answers: Mapping[str, tuple[Tensor, str]], labels: Tensor, classes: Sequence[str]) -> Selection:
    """Chooses the simplest method whose cross entropy is within one standard error of the least (Breiman's rule).

    This is a rule of selection, not a comparison: it may prefer a method that is behind another in accuracy. `answers`:
    logits [images, classes] of each method for images that it was not fitted to, and how that was done; the simplest
    method first. Cross entropy also says how sure an answer was, so that fewer images suffice; every method is rescaled
    by its best temperature before. All classes count alike. An image that is the only one of its class is left aside:
    without it the class is unknown.
    """
    counts = torch.bincount(labels, minlength=len(classes))
    rows = counts[labels] > 1
    truth = labels[rows]
    weights = classes_alike(truth)
    as_many = len(truth) / weights.square().mean().item()  # images of equal weight that say as much
    losses, outcomes = {}, []
    for name, (scores, measured) in answers.items():
        scores = scores[rows]
        some = torch.randperm(len(truth), generator=torch.Generator().manual_seed(0)).to(truth.device)
        some = some[: _WEIGHED // len(classes)]
        scale = stack([scores[some]], truth[some], weights[some])[0]
        losses[name] = F.cross_entropy(scale * scores, truth, reduction="none")
        share = mean_and_error(scores.argmax(1) == truth, weights)[0]
        outcome = outcome_of(
            scores, truth, classes, method=name, measured=measured,
            interval=wilson_interval(share * as_many, as_many),
            cross_entropy=mean_and_error(losses[name], weights)[0],
            accuracy=100 * share, ece=calibration_error(reliability(scores, truth, weights)),
        )  # fmt: skip
        outcomes.append(outcome)
    chosen, reason = simplest(losses, weights)
    board = leaderboard(outcomes, weights=weights.cpu().numpy())
    return Selection(len(classes), board, chosen, reason, _notes(counts, classes))


def simplest(losses: Mapping[str, Tensor], weights: Tensor) -> tuple[str, str]:
    """The first method whose mean loss is within a standard error of the least, and the reason in words."""
    best = min(losses, key=lambda name: mean_and_error(losses[name], weights)[0])
    for name, loss in losses.items():
        gap, error = mean_and_error(loss - losses[best], weights)
        if name == best or gap <= error:
            break
    if len(losses) == 1:
        return name, f"{name}, as asked."
    if name == best:
        return name, f"{name} has the lowest cross entropy."
    return name, f"{name} is the simplest method within one standard error of the lowest cross entropy ({best})."


def _notes(counts: Tensor, classes: Sequence[str]) -> tuple[str, ...]:
    """How to read the table, by the number of images of each class [classes]."""
    notes, several = [], counts[counts > 1]
    if several.min() < several.max():
        sizes = f"{several.min()} to {several.max()} images"
        notes.append(f"Accuracies are means over classes, which count alike: they have {sizes}.")
    if alone := [name for name, count in zip(classes, counts, strict=True) if count == 1]:
        has, them = ("has", "it") if len(alone) == 1 else ("have", "them")
        names = ", ".join(some_names(alone))
        notes.append(f"{len(alone)} of {len(classes)} classes {has} one image, so {them} cannot be measured: {names}.")
    return tuple(notes)
