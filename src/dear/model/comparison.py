"""Methods compared on the labelled images themselves, each image left out of the fit that answers it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.core.metrics import calibration_error, interval_text, wilson_interval
from dear.core.table import Table
from dear.methods.shared.closed_form import Head
from dear.methods.shared.stacking import classes_alike, stack

_SHARES = (0.25, 0.5)  # of the labels of each class, in the learning curve
_WEIGHED = 2_000_000  # logits by which the temperature of a method is chosen, at most
_DRAWS, _DRAWN = 5, 200_000  # of the labels of a share, and logits of all draws of it together
_CLEAR = 1.64  # standard errors
_FEW = 4  # with fewer images of a class, more of it are asked for
_NAMED = 5  # classes in a sentence, at most


@dataclass(frozen=True)
class Candidate:
    """A method on the labelled images, each answered by a fit without it. All classes count alike."""

    method: str
    accuracy: float  # %
    interval: tuple[float, float]  # 95%, Wilson's
    cross_entropy: float  # of probabilities that are rescaled by the best temperature
    calibration_error: float  # %, of the probabilities as they are
    measured: str  # leave-one-out, or the number of folds


@dataclass(frozen=True)
class CurvePoint:
    images_per_class: float
    accuracy: float  # %


@dataclass(frozen=True)
class Comparison:
    """Why a method was chosen, how sure that is, and whether more labels would help; `str` gives all of it."""

    images: int
    classes: int
    candidates: tuple[Candidate, ...]
    chosen: str
    reason: str
    notes: tuple[str, ...] = ()  # what the figures are of, and what they say nothing of
    curve: tuple[CurvePoint, ...] = ()
    advice: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def table(self) -> Table:
        figures = ("accuracy (%)", "95% interval", "rescaled cross entropy", "calibration error (%)")
        table = Table(["method", *figures, "measured"])
        for row in self.candidates:
            mark = "* " if row.method == self.chosen else "  "
            interval = interval_text(row.interval, 1)
            entropy = f"{row.cross_entropy:.3f}"
            table.add(mark + row.method, row.accuracy, interval, entropy, row.calibration_error, row.measured)
        return table

    def __repr__(self) -> str:
        return str(self)  # what a notebook shows

    def __str__(self) -> str:
        table = [self.table().text()] if self.candidates else []
        return "\n".join([*table, *self.notes, self.reason, *([self.advice] if self.advice else [])])


def compare(logits: Mapping[str, tuple[Tensor, str]], labels: Tensor, classes: Sequence[str]) -> Comparison:
    """`logits`: method -> left-out logits [images, classes] and how they were measured, the simplest method first.

    The simplest one is chosen whose cross entropy is within a standard error of the least (Breiman's rule). Cross
    entropy is preferred to accuracy because it also says how sure an answer was: few images suffice to tell methods
    apart; every method is rescaled by its best temperature before, so that it is compared by what it knows. All classes
    count alike. Images that are the only one of their class are left aside: without it the class is unknown.
    """
    counts = torch.bincount(labels, minlength=len(classes))
    rows = counts[labels] > 1
    truth = labels[rows]
    counting = classes_alike(truth)
    as_many = len(truth) / counting.square().mean().item()  # images of equal weight that say as much
    losses, candidates = {}, []
    for name, (scores, measured) in logits.items():
        scores = scores[rows]
        some = torch.randperm(len(truth), generator=torch.Generator().manual_seed(0)).to(truth.device)
        some = some[: _WEIGHED // len(classes)]
        scale = stack([scores[some]], truth[some], counting[some])[0]
        losses[name] = F.cross_entropy(scale * scores, truth, reduction="none")
        share = _mean(scores.argmax(1) == truth, counting)[0]
        interval = wilson_interval(share * as_many, as_many)
        loss, error = _mean(losses[name], counting)[0], calibration_error(scores, truth, counting)
        candidates.append(Candidate(name, 100 * share, interval, loss, error, measured))
    chosen, reason = simplest(losses, counting)
    return Comparison(len(truth), len(classes), tuple(candidates), chosen, reason, _notes(counts, classes))


def _notes(counts: Tensor, classes: Sequence[str]) -> tuple[str, ...]:
    """What must be known beside the table, by the images of each class [classes]."""
    notes, several = [], counts[counts > 1]
    if several.min() < several.max():
        sizes = f"{several.min()} to {several.max()} images"
        notes.append(f"All figures are means over classes, each of which counts alike: they have {sizes}.")
    if alone := [name for name, count in zip(classes, counts, strict=True) if count == 1]:
        has, them = ("has", "it") if len(alone) == 1 else ("have", "them")
        names = ", ".join(_some(alone))
        notes.append(f"{len(alone)} of {len(classes)} classes {has} one image, so nothing is known of {them}: {names}.")
    return tuple(notes)


def _some(names: Sequence[str]) -> list[str]:
    others = len(names) - _NAMED
    return [*names[:_NAMED], *([f"{others} others"] if others > 0 else [])]


def _mean(values: Tensor, counting: Tensor) -> tuple[float, float]:
    """The mean of values [images], of which each counts so much, and its standard error."""
    values = values.to(counting)
    mean = (counting * values).mean()
    return mean.item(), ((counting * (values - mean)).std() / len(values) ** 0.5).item()


def simplest(losses: Mapping[str, Tensor], counting: Tensor) -> tuple[str, str]:
    """The first method whose mean loss is within a standard error of the least, and the reason in words."""
    best = min(losses, key=lambda name: _mean(losses[name], counting)[0])
    for name, loss in losses.items():
        gap, error = _mean(loss - losses[best], counting)
        if name == best or gap <= error:
            break
    if len(losses) == 1:
        return name, f"{name}, as asked."
    if name == best:
        return name, f"{name} has the least cross entropy."
    return name, f"{name} is the simplest method within a standard error of the least cross entropy, that of {best}."


def learning_curve(
    head: Head, features: Tensor, labels: Tensor, text: Tensor, classes: Sequence[str]
) -> tuple[tuple[CurvePoint, ...], str]:
    """Accuracy as of `compare` if only a share of the labels of each class had been given, and what follows from it.

    Kept images are left out of their fit, the others are not in it. Which are kept is drawn several times, as one half
    may be far better than another. Arguments as of `Head.fit`, which `head` has had.
    """
    assert head.left_out is not None
    counts = torch.bincount(labels, minlength=len(text))
    generator = torch.Generator().manual_seed(0)
    draws = max(1, min(_DRAWS, _DRAWN // (len(labels) * len(text))))
    places = [_places(labels, generator) for _ in range(draws)]
    sizes, rights = [], []
    for share in _SHARES:
        right = torch.zeros(len(labels), dtype=torch.float64, device=labels.device)
        for place in places:
            kept = place < (share * counts[labels]).ceil().clamp(min=1)
            part = type(head)(head.dim, head.temperature, features)
            part.fit(features[kept], labels[kept], text)
            assert part.left_out is not None
            scores = torch.empty_like(head.left_out)
            scores[kept] = part.left_out
            scores[~kept] = part(features[~kept], text).to(scores)
            right += (scores.argmax(1) == labels) / draws
        rights.append(right)
        sizes.append(int(kept.sum()))
    rights.append((head.left_out.argmax(1) == labels).double())
    sizes.append(len(labels))
    rows, seen = counts[labels] > 1, int((counts > 0).sum())
    counting = classes_alike(labels[rows])
    accuracies = [100 * _mean(right[rows], counting)[0] for right in rights]
    curve = tuple(CurvePoint(size / seen, accuracy) for size, accuracy in zip(sizes, accuracies, strict=True))
    gain, error = _mean(rights[-1][rows] - rights[-2][rows], counting)
    figures = f"half of these gave {accuracies[-2]:.1f}%, all give {accuracies[-1]:.1f}%"
    return curve, f"{_advice(gain > max(0, _CLEAR * error), counts.tolist(), classes)}: {figures}."


def _places(labels: Tensor, generator: torch.Generator) -> Tensor:
    """The place of each image [images] among those of its class, in random order."""
    order = torch.randperm(len(labels), generator=generator).to(labels.device)
    place = torch.empty_like(labels)
    for label in labels.unique():
        own = order[labels[order] == label]
        place[own] = torch.arange(len(own), device=labels.device)
    return place


def _advice(clear: bool, counts: Sequence[int], classes: Sequence[str]) -> str:
    """Whether more labels help, and of which classes, by the images of each class."""
    order = sorted(range(len(classes)), key=lambda label: counts[label])
    few = [f"{classes[label]} ({counts[label]})" for label in order if counts[label] < _FEW]
    if not few:
        return "More labels will probably help" if clear else "More labels of the same kind will probably change little"
    which = "all classes" if len(few) == len(classes) else ", ".join(_some(few))
    if clear:
        return f"More labels will probably help, above all of {which}"
    return f"Label more images of {which}, as fewer than {_FEW} say little of a class"
