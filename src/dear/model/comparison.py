"""Methods compared on the labelled images themselves, each image left out of the fit that answers it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.core.metrics import accuracy, calibration_error, interval_text, wilson_interval
from dear.core.table import Table
from dear.methods.shared.closed_form import Head
from dear.methods.shared.stacking import stack

_SHARES = (0.25, 0.5)  # of the labels of each class, in the learning curve
_WEIGHED = 2_000_000  # logits by which the temperature of a method is chosen, at most
_CLEAR = 1.64  # standard errors


@dataclass(frozen=True)
class Candidate:
    """A method on the labelled images, each answered by a fit without it."""

    method: str
    accuracy: float  # %
    interval: tuple[float, float]  # 95%, Wilson's
    cross_entropy: float  # of calibrated probabilities
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
    curve: tuple[CurvePoint, ...] = ()
    advice: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def table(self) -> Table:
        table = Table(["method", "accuracy (%)", "95% interval", "cross entropy", "calibration error (%)", "measured"])
        for row in self.candidates:
            mark = "* " if row.method == self.chosen else "  "
            interval = interval_text(row.interval, 1)
            entropy = f"{row.cross_entropy:.3f}"
            table.add(mark + row.method, row.accuracy, interval, entropy, row.calibration_error, row.measured)
        return table

    def __str__(self) -> str:
        table = [self.table().text()] if self.candidates else []
        return "\n".join([*table, self.reason, *([self.advice] if self.advice else [])])


def compare(logits: Mapping[str, tuple[Tensor, str]], labels: Tensor, classes: int) -> Comparison:
    """`logits`: method -> left-out logits [images, classes] and how they were measured, the simplest method first.

    The simplest one is chosen whose cross entropy is within a standard error of the least (Breiman's rule). Cross
    entropy is preferred to accuracy because it also says how sure an answer was: few images suffice to tell methods
    apart. Images that are the only one of their class are left aside: without it the class is unknown.
    """
    counts = torch.bincount(labels, minlength=classes)
    rows = counts[labels] > 1
    losses, candidates = {}, []
    for name, (scores, measured) in logits.items():
        scores, truth = scores[rows], labels[rows]
        some = torch.randperm(len(truth), generator=torch.Generator().manual_seed(0)).to(truth.device)
        some = some[: _WEIGHED // classes]
        scale = stack([scores[some]], truth[some])[0]
        losses[name] = F.cross_entropy(scale * scores, truth, reduction="none")
        right = int((scores.argmax(1) == truth).sum())
        interval, error = wilson_interval(right, len(truth)), calibration_error(scores, truth)
        candidates.append(
            Candidate(name, accuracy(scores, truth), interval, losses[name].mean().item(), error, measured)
        )
    chosen, reason = simplest(losses)
    return Comparison(int(rows.sum()), classes, tuple(candidates), chosen, reason)


def simplest(losses: Mapping[str, Tensor]) -> tuple[str, str]:
    """The first method whose mean loss is within a standard error of the least, and the reason in words."""
    best = min(losses, key=lambda name: losses[name].mean().item())
    for name, loss in losses.items():
        gap = loss - losses[best]
        if name == best or gap.mean() <= gap.std() / len(gap) ** 0.5:
            break
    if len(losses) == 1:
        return name, f"{name}, as asked."
    if name == best:
        return name, f"{name} has the least cross entropy."
    return name, f"{name} is the simplest method within a standard error of the least cross entropy, that of {best}."


def learning_curve(head: Head, features: Tensor, labels: Tensor, text: Tensor) -> tuple[tuple[CurvePoint, ...], str]:
    """Accuracy on all images if only a share of the labels of each class had been given, and what follows from it.

    Kept images are left out of their fit, the others are not in it. Arguments as of `Head.fit`, which `head` has had.
    """
    assert head.left_out is not None
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).to(labels.device)
    counts = torch.bincount(labels, minlength=len(text))
    place = torch.empty_like(labels)  # of each image among those of its class, in random order
    for label in labels.unique():
        own = order[labels[order] == label]
        place[own] = torch.arange(len(own), device=labels.device)
    points, rights = [], []
    for share in _SHARES:
        kept = place < (share * counts[labels]).ceil().clamp(min=1)
        part = type(head)(head.dim, head.temperature, features)
        part.fit(features[kept], labels[kept], text)
        assert part.left_out is not None
        scores = torch.empty_like(head.left_out)
        scores[kept] = part.left_out
        scores[~kept] = part(features[~kept], text).to(scores)
        rights.append(scores.argmax(1) == labels)
        points.append((kept, rights[-1]))
    rights.append(head.left_out.argmax(1) == labels)
    points.append((torch.ones_like(rights[-1]), rights[-1]))
    seen = (counts > 0).sum()
    curve = tuple(CurvePoint(float(kept.sum() / seen), 100 * right.float().mean().item()) for kept, right in points)
    gain = rights[-1].float() - rights[-2].float()
    clear = gain.mean() > _CLEAR * gain.std() / len(gain) ** 0.5 and gain.mean() > 0
    verdict = "will probably help" if clear else "of the same kind will probably change little"
    figures = f"half of these gave {curve[-2].accuracy:.1f}%, all give {curve[-1].accuracy:.1f}%"
    return curve, f"More labels {verdict}: {figures}."
