"""Lists in which classes with and without labelled images stand together: answers that are fair to both kinds.

By themselves corrections are not: the greatest of many is large, so that a class without one is never answered.
"""

from collections.abc import Callable, Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from dear.methods.shared.class_folds import class_folds

SHARES, _NONE = (0.1, 0.25), 0.5  # of classes without images: an offset is chosen, and from there on there is none
_FOLDS, _STEPS, _GREATEST, _SCORED = 4, 101, 5.0, 500_000
Refit = Callable[[Tensor, Tensor], Tensor]
"""Which labelled images a fit may use [images], and positions of some images -> their logits [some, classes] by that
fit; an image that it may use is left out of it."""


def beside(adapted: Tensor, plain: Tensor, new: Tensor, offset: Tensor | float = 0.0) -> Tensor:
    """Logits [images, names] of a list, of whose names `new` [names] have no labelled images.

    A new name gets its plain logit, what the best of the other names has beyond its own plain logit, and the offset.
    So without offset it is answered if it is plainly better than the name that would be answered else. An image that
    gets a new name by its plain logits keeps it, and one that gets another name both by its plain logits and by those
    adapted keeps that: neither kind of class loses what plain logits give it, but where the adapted ones err.

    `plain`: logits of CLIP, whatever their weight in `adapted`.
    """
    best, at = adapted.masked_fill(new, -torch.inf).max(1, keepdim=True)
    return torch.where(new, plain + best - plain.gather(1, at) + offset, adapted)


def fair_offsets(plain: Tensor, labels: Tensor, refit: Refit) -> list[float]:
    """The offset for each of `SHARES`, by labelled images of classes that are left out, as if these had none.

    `plain`: logits [images, classes] of CLIP. Of the offsets with which the other classes are not behind `plain`, it is
    that with the greatest harmonic mean of the accuracies on images of classes left out and of others, which are left
    out of the fit, too. All classes count alike. 0: nothing can be left out.
    """
    counts = torch.bincount(labels, minlength=plain.shape[1])
    rows = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[: _SCORED // len(counts)]
    rows = rows.to(labels.device)
    plain, truth = plain[rows], labels[rows]
    weights, several = 1 / counts[truth].double(), counts[truth] > 1
    offsets = torch.linspace(0, _GREATEST, _STEPS, dtype=torch.double, device=plain.device)
    chosen = []
    for share in SHARES:
        right, total, plainly = offsets.new_zeros(2, _STEPS), offsets.new_zeros(2, 1), 0.0  # weights: other, new kind
        for out in class_folds(len(counts), share, _FOLDS) if several.any() else []:
            new = torch.zeros_like(counts, dtype=torch.bool).index_fill(0, out.to(labels.device), True)
            logits = beside(refit(~new[labels], rows), plain, new)
            (best, other), (novel_best, novel) = (logits.masked_fill(m, -torch.inf).max(1) for m in (new, ~new))
            taken = offsets[:, None] > (best - novel_best).double()  # [offsets, images]: a new name is answered
            kinds = weights * torch.stack([~new[truth] & several, new[truth]])
            right += torch.stack(
                [(~taken & (other == truth)).double() @ kinds[0], (taken & (novel == truth)).double() @ kinds[1]]
            )
            total += kinds.sum(1, keepdim=True)
            plainly += (kinds[0] * (plain.argmax(1) == truth)).sum().item()
        shares = right / total.clamp(min=1e-12)
        mean = shares.prod(0) / shares.sum(0).clamp(min=1e-12)
        chosen.append(offsets[mean.where(right[0] >= plainly - 1e-9, -1).argmax()].item())
    return chosen


def share_weights(share: float) -> list[float]:
    """Weights of the offsets of `SHARES` for a list, of whose names this share has no labelled images."""
    return [float(np.interp(share, (*SHARES, _NONE), (*each, 0))) for each in np.eye(len(SHARES))]


def list_note(names: Sequence[str], trained: Collection[str], fair: bool) -> str:
    """One sentence about a list in which only some names were trained; empty for others."""
    new = [name for name in names if name not in trained]
    if not new or len(new) == len(names):
        return ""
    some = ", ".join(new[:3]) + (", ..." if len(new) > 3 else "")
    if fair:
        rule = "each is answered where CLIP prefers its name to that of the best other class, or nearly does"
    else:
        rule = "this method may favour the others, and nothing corrects for it: gda, proker, ss-text and head-gains do"
    return f"{len(new)} of {len(names)} classes have no labelled images ({some}): {rule}."
