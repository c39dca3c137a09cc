"""Unseen classes: how well a fitted method will do on classes without images, by leaving out classes that have some."""

import io
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from math import comb

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.data.dataset import Dataset
from dear.methods.optional import ForUnseen
from dear.methods.registry import METHODS, ZERO_SHOT
from dear.methods.shared.class_folds import LEAST
from dear.methods.shared.closed_form import Corrected
from dear.methods.shared.stacking import classes_alike
from dear.training.adapt import predict_logits
from dear.training.images import ImageSource
from dear.trials.outcome import NOVEL, Unseen, labels_of
from dear.trials.task import Task
from dear.trials.trial import Trial

STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the bias of names


def foresee(trial: Trial, data: Dataset, source: ImageSource, names: int | None = None) -> Unseen:
    """Expects the accuracy of the trial's fitted model on classes without images, in a list of `names` such classes.

    Each fold of the classes of `data`, to whose training images the model was fitted, is left out of a fit and asked
    about alone. The strength of the bias of names, where the method has one, is chosen
    there, and the model gets it. `names`: as many as there are labelled classes, and at most these (the default).
    """
    data = data.of_classes(sorted({example.label for example in data.train}))
    names = min(names or len(data.classes), len(data.classes))
    if METHODS[trial.method].trained:
        return Unseen(names, why=f"not foreseen, because {trial.method} would have to be trained again without some")
    if len(data.classes) < LEAST:
        return Unseen(names, why=f"not foreseen: that takes images of at least {LEAST} classes")
    folds = Trial(trial.method, Task.left_out_classes(data), trial.config, trial.train)
    if isinstance(folds.kind, ForUnseen):
        folds.kind, folds.config = folds.kind.for_unseen(trial.config)
    with redirect_stderr(io.StringIO()):  # many fits in seconds
        folds.run(source)
    if not folds.answers:
        return Unseen(names, why=f"{trial.method} cannot answer them")
    ((_, logits),) = folds.answers.items()
    truth = [labels_of(one.parts[NOVEL].test) for one in folds.task.rounds]
    model, strength = trial.model, 0.0
    if isinstance(model, Corrected):
        strength = best_strength(logits, truth)
        features: list[Tensor] = []
        predict_logits(model, data.train, source, "mean image", observer=lambda part, _: features.append(part[:, 0]))
        model.common, model.strength = torch.cat(features).mean(0), model.strength.new_tensor(strength)
    plain = predict_zero_shot(data, source)
    accuracies = expected_accuracies(
        [scores[own >= 0] for scores, own in zip(without_bias(logits, truth, strength), truth, strict=True)],
        [own[own >= 0] for own in truth], [labels_of(data.train)[own >= 0] for own in truth],
        zero_shot_by_length(plain, labels_of(data.train)), names,
    )  # fmt: skip
    return Unseen(names, 100 * accuracies.mean().item(), interval_of(accuracies, len(data.train), names), strength)


def without_bias(logits: Sequence[Tensor], truth: Sequence[Tensor], strength: float) -> list[Tensor]:
    """Logits [images, names] of each fold less so much of what images of the classes fitted to get, on average."""
    return [part - strength * part[own < 0].mean(0) for part, own in zip(logits, truth, strict=True)]


def best_strength(logits: Sequence[Tensor], truth: Sequence[Tensor]) -> float:
    """The strength with the lowest cross entropy on images of left-out classes, all folds and classes alike."""

    def loss(strength: float) -> float:
        parts = zip(without_bias(logits, truth, strength), truth, strict=True)
        asked = [(scores[own >= 0], own[own >= 0]) for scores, own in parts]
        losses = [
            F.cross_entropy(scores, own, reduction="none") @ classes_alike(own).to(scores) for scores, own in asked
        ]
        return sum(total.item() / len(own) for total, (_, own) in zip(losses, asked, strict=True))

    return min(STRENGTHS, key=loss)


def predict_zero_shot(data: Dataset, source: ImageSource) -> Tensor:
    """Zero-shot's logits [images, classes] of the training images."""
    model = Trial(ZERO_SHOT, Task.left_out(data)).prepare(source)
    model.set_classes(data.classes, data.template)
    ((_, logits),) = predict_logits(model, data.train, source, "zero-shot").items()
    return logits


def zero_shot_by_length(logits: Tensor, labels: Tensor) -> Callable[[int], float]:
    """Zero-shot's accuracy, the mean over classes, by the number of names in the list."""
    return lambda names: right_among(logits, labels, names)[1].mean().item()


def expected_accuracies(
    logits: Sequence[Tensor], own: Sequence[Tensor], labels: Sequence[Tensor], plain: Callable[[int], float], names: int
) -> Tensor:
    """Accuracy on each class [classes] in a list of `names`, from folds whose lists may be shorter or longer.

    `own`: the place of the true name of each image in its fold's list; `labels`: its class. For a longer list the
    accuracy falls by as much as `plain`, that of zero-shot, whose images can be asked about all labelled names.
    """
    sums, fits = torch.zeros(2, int(max(part.max() for part in labels)) + 1, dtype=torch.float64)
    for scores, place, of in zip(logits, own, labels, strict=True):
        listed = scores.shape[1]
        right, _ = right_among(scores, place, min(names, listed))
        longer = plain(names) / max(plain(listed), 1e-9) if names > listed else 1.0
        sums.index_add_(0, of, right * longer)
        fits += torch.bincount(of, minlength=len(fits))
    return (sums / fits)[fits > 0].clamp(max=1)


def right_among(logits: Tensor, labels: Tensor, names: int) -> tuple[Tensor, Tensor]:
    """The chance that each image is answered rightly among so many names drawn from the list, its own with them.

    [images], and the mean of each class [classes]. If r of the R other names score as high as the true one, all of the
    names - 1 must come from the R - r others: a hypergeometric probability.
    """
    others = logits.shape[1] - 1
    above = (logits >= logits.gather(1, labels[:, None])).sum(1) - 1
    table = [comb(others - r, names - 1) / comb(others, names - 1) for r in range(others + 1)]
    chance = torch.tensor(table, dtype=torch.float64)[above.cpu()]
    counts = torch.bincount(labels, minlength=logits.shape[1])
    sums = chance.new_zeros(len(counts)).index_add(0, labels.cpu(), chance)
    return chance, (sums / counts)[counts > 0]


def interval_of(accuracies: Tensor, images: int, names: int) -> tuple[float, float]:
    """95% interval (%) of the mean over `names` other classes, from accuracies [classes] measured on so many images.

    Both the measured and the other classes are a draw, so both count. If all were answered alike, their variance is
    not zero, but at least that of classes whose answers correlate by a fifth.
    """
    mean, classes = accuracies.mean().item(), len(accuracies)
    share = (mean * images + 1) / (images + 2)
    least = share * (1 - share) * (0.2 + 0.8 * classes / images)
    spread = max(accuracies.var().item(), least) * (1 / classes + 1 / names)
    half = student(classes - 1) * spread**0.5
    return max(0.0, 100 * (mean - half)), min(100.0, 100 * (mean + half))


def student(freedom: int) -> float:
    """The 97.5% quantile of Student's t, within a twentieth from three degrees of freedom on (Cornish and Fisher)."""
    z = 1.96
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
