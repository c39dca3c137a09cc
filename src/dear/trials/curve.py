"""The learning curve: accuracy with a part of the labels, and whether more labels would help."""

from collections.abc import Sequence

import torch
from msgspec import Struct
from torch import Tensor

from dear.methods.shared.closed_form import CorrectionHead
from dear.methods.shared.leave_one_out import places_in_class
from dear.methods.shared.stacking import classes_alike
from dear.trials.paired import AHEAD, compare_values

_SHARES = (0.25, 0.5)  # of the labels of each class
_DRAWS, _DRAWN = 5, 200_000  # draws of a share, and the most logits of all its draws together
_FEW = 4  # with fewer images of a class, more of it are asked for
_NAMED = 5  # classes in a sentence, at most


class CurvePoint(Struct, frozen=True):
    images_per_class: float
    accuracy: float  # %


def learning_curve(
    head: CorrectionHead, features: Tensor, labels: Tensor, text: Tensor, classes: Sequence[str]
) -> tuple[tuple[CurvePoint, ...], str]:
    """Left-out accuracy with a quarter, half and all of the labels of each class, and advice on labelling more.

    Kept images are left out of their fit, the others are not in it. Which are kept is drawn several times, as one half
    may be far better than another. The arguments are those of `CorrectionHead.fit`, which has been called on `head`.
    """
    assert head.left_out is not None
    counts = torch.bincount(labels, minlength=len(text))
    generator = torch.Generator().manual_seed(0)
    draws = max(1, min(_DRAWS, _DRAWN // (len(labels) * len(text))))
    orders = [torch.randperm(len(labels), generator=generator).to(labels.device) for _ in range(draws)]
    places = [places_in_class(labels, order.argsort()) for order in orders]
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
    weights = classes_alike(labels[rows])
    accuracies = [100 * mean_and_error(right[rows], weights)[0] for right in rights]
    curve = tuple(CurvePoint(size / seen, accuracy) for size, accuracy in zip(sizes, accuracies, strict=True))
    gain = compare_values((rights[-1] - rights[-2])[rows].cpu().numpy(), weights.cpu().numpy())
    figures = f"half of these gave {accuracies[-2]:.1f}%, all give {accuracies[-1]:.1f}%"
    return curve, f"{_labelling_advice(gain.verdict == AHEAD, counts.tolist(), classes)}: {figures}."


def mean_and_error(values: Tensor, weights: Tensor) -> tuple[float, float]:
    """The mean of values [images] with weights [images], 1 on average, and its standard error."""
    values = values.to(weights)
    mean = (weights * values).mean()
    return mean.item(), ((weights * (values - mean)).std() / len(values) ** 0.5).item()


def some_names(names: Sequence[str]) -> list[str]:
    """At most five names, and the number of the others."""
    others = len(names) - _NAMED
    return [*names[:_NAMED], *([f"{others} others"] if others > 0 else [])]


def _labelling_advice(helps: bool, counts: Sequence[int], classes: Sequence[str]) -> str:
    """Whether more labels help, and for which classes, by the number of images of each class."""
    order = sorted(range(len(classes)), key=lambda label: counts[label])
    few = [f"{classes[label]} ({counts[label]})" for label in order if counts[label] < _FEW]
    if not few:
        return "More labels will probably help" if helps else "More labels of the same kind will probably change little"
    which = "all classes" if len(few) == len(classes) else ", ".join(some_names(few))
    if helps:
        return f"More labels will probably help, most of all for {which}"
    return f"Label more images of {which}: fewer than {_FEW} images say little about a class"
