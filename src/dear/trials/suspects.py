"""Suspects: images whose label is probably wrong, near-duplicates across classes, and outliers, from kept features."""

import csv
import math
import os
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import torch
from msgspec import Struct
from torch import Tensor
from torch.nn import functional as F

from dear.core.errors import DearError, warn
from dear.core.files import atomic_path
from dear.core.table import Table
from dear.core.words import counted
from dear.data.dataset import Dataset, Example, ImageFile
from dear.data.splits import SPLITS
from dear.methods.shared.closed_form import ClosedForm
from dear.methods.shared.leave_one_out import BLOCK, class_means
from dear.methods.shared.per_class import frozen_features
from dear.training.images import ImageSource
from dear.trials.mistakes import ALARM, write_sheet
from dear.trials.outcome import labels_of
from dear.trials.task import Task
from dear.trials.trial import uncropped_trial

LABEL, DUPLICATE, OUTLIER = "label", "near-duplicate", "outlier"
_METHOD = "gda"  # as good as the others at this (benchmarks/suspects.py), and the fastest
_SHARPER, _MIXED = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0), (0.0, 0.1, 0.2, 0.35, 0.5)
_LOGITS = 1_000_000  # by which g and h are chosen, at most
_TWIN, _LONE = 3.0, 2.0  # fences: rare on clean photos, while most images of other datasets are beyond them
_EVERYTHING = 5_000  # images up to which all pairs are compared


class Suspect(Struct, frozen=True):
    """An image in doubt: its place in the list of images, its label and the one that suits it best, how probable it is
    that the label is wrong, why it is here, and the image that it nearly equals, if that is the reason."""

    place: int
    path: str
    label: str
    better: str
    wrong: float
    reason: str
    other: str = ""


class Noise(Struct, frozen=True):
    """Which labels are wrong, `wrong` [images] as probabilities, and what share of all is, `rate`."""

    wrong: Tensor
    rate: float


def label_noise(logits: Tensor, labels: Tensor) -> Noise:
    """How probably each label is wrong, by logits [images, classes] of images that were left out.

    Model: an image has the class k with probability r_k; its label is k with probability 1 - e, else another class y
    by s_y / (1 - s_k), for likely mix-ups are more frequent. The logits l foresee *labels*, so that r = softmax(g l),
    g >= 1, is surer than they are, and s = softmax(h g l) less sure; h = 0: any other class alike. e, g and h are those
    under which the labels are most probable; then Bayes' rule answers for each image. On clean labels e is almost zero.
    """
    some = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[: _LOGITS // logits.shape[1] + 1]

    def explained(g: float, h: float, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The probability of each label [rows] if it is right, and if it is an error."""
        parts = []
        for part in rows.split(BLOCK):
            scores, own = g * logits[part].double(), labels[part, None]
            right, mixed = scores.softmax(1), (h * scores).softmax(1)
            others = right / (1 - mixed).clamp(min=1e-9)
            parts.append((right.gather(1, own)[:, 0], mixed.gather(1, own)[:, 0] *
                          (others.sum(1) - others.gather(1, own)[:, 0]).clamp(min=0)))  # fmt: skip
        rights, errors = map(torch.cat, zip(*parts, strict=True))
        return rights, errors

    def fitted(right: Tensor, error: Tensor) -> tuple[float, Noise]:
        rate = 0.1
        for _ in range(100):  # expectation-maximisation of one number
            by_error = rate * error
            total = (by_error + (1 - rate) * right).clamp(min=1e-300)
            rate = float((by_error / total).mean())
        return float(total.log().mean()), Noise(by_error / total, rate)

    best = max(product(_SHARPER, _MIXED), key=lambda at: fitted(*explained(at[0], at[1], some))[0])
    return fitted(*explained(best[0], best[1], torch.arange(len(labels))))[1]


def nearest_of_another_class(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The largest cosine of each image with one of another class [images], and which that is.

    Beyond a few thousand images only those near the same pivots are compared: near-duplicates always are, in effect,
    and time grows as images^1.5, memory as images.
    """
    count = 1 if len(features) <= _EVERYTHING else math.isqrt(len(features))
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(0))
    centre = features.mean(0)  # all are in a narrow cone around it
    pivots = F.normalize(features[order[:count]] - centre, dim=1)
    homes = torch.cat([((part - centre) @ pivots.T).topk(min(2, count)).indices for part in features.split(BLOCK)])
    cosine, which = features.new_full((len(features),), -1.0), torch.zeros_like(labels)
    for home in range(count):
        near = (homes == home).any(1).nonzero()[:, 0]
        for rows in (homes[:, 0] == home).nonzero()[:, 0].split(BLOCK):
            cosines = features[rows] @ features[near].T
            cosine[rows], place = cosines.masked_fill_(labels[rows, None] == labels[near], -1.0).max(1)
            which[rows] = near[place]
    return cosine, which


def nearest_mean(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The largest cosine of each image with the mean of a class, its own taken without it, [images]."""
    means, counts = class_means(features, labels, classes)
    rest = F.normalize(means[labels] * counts[labels, None] - features, dim=1)
    means, found = F.normalize(means, dim=1), []
    for x, y, own in zip(features.split(BLOCK), labels.split(BLOCK), rest.split(BLOCK), strict=True):
        found.append((x @ means.T).scatter(1, y[:, None], (x * own).sum(1, keepdim=True)).amax(1))
    return torch.cat(found)


def fence(distances: Tensor, spreads: float) -> float:
    """Tukey's fence: the upper quartile and so many times the distance of the quartiles; below the lower one if < 0."""
    low, high = (float(distances.kthvalue(1 + round(share * (len(distances) - 1)))[0]) for share in (0.25, 0.75))
    return (high if spreads > 0 else low) + spreads * (high - low)


def find_suspects(data: Dataset, source: ImageSource) -> tuple[list[Suspect], Noise]:
    """The images of all splits in doubt, worst first: wrong labels, then near-duplicates across classes, then outliers.

    Each image is answered by a fit to all others. An image that is the only one of its class cannot be judged.
    """
    examples, classes = all_images(data), data.classes
    labels = labels_of(examples)
    counts = torch.bincount(labels, minlength=len(classes))
    if counts.max() < 2:
        raise DearError("With one image of each class no label can be checked: label a second image of each.")
    model = uncropped_trial(_METHOD, Task.left_out(data)).prepare(source)
    assert isinstance(model, ClosedForm)
    source.encode(examples, [model], f"encoding {counted(len(examples), 'image')}")
    model.set_classes(classes, data.template)
    with torch.no_grad():
        features, truth = frozen_features(model, source.images(examples, model, "features"))
        features, text = features.float(), model.encode_text(model.classes).float()
        model.head.fit(features, truth, text)
    assert model.head.left_out is not None
    logits, features = model.head.left_out.float().cpu(), features.cpu()
    return in_doubt(logits, features, labels, examples, classes)


def in_doubt(
    logits: Tensor, features: Tensor, labels: Tensor, examples: Sequence[Example], classes: Sequence[str]
) -> tuple[list[Suspect], Noise]:
    """Suspects by logits [images, classes] of images left out, and by features [images, dim]."""
    judged = (torch.bincount(labels)[labels] > 1).nonzero()[:, 0]
    noise = label_noise(logits[judged], labels[judged])
    wrong = torch.zeros(len(labels), dtype=torch.double).index_put((judged,), noise.wrong)
    better = logits.scatter(1, labels[:, None], -math.inf).argmax(1)
    cosine, which = nearest_of_another_class(features, labels)
    distance = (1 - cosine.double()).clamp(min=1e-9).log()  # by ratios: near-duplicates are a hundred times nearer
    strangeness = 1 - nearest_mean(features, labels, len(classes)).double()
    reasons: dict[int, str] = dict.fromkeys((wrong > 0.5).nonzero()[:, 0].tolist(), LABEL)
    for place in (distance < fence(distance, -_TWIN)).nonzero()[:, 0].tolist():
        pair = place, int(which[place])
        if not any(reasons.get(one) == LABEL for one in pair):  # the label of the less probable one is in doubt
            reasons[max(pair, key=lambda one: (float(wrong[one]), one))] = DUPLICATE
    for place in (strangeness > fence(strangeness, _LONE)).nonzero()[:, 0].tolist():
        reasons.setdefault(place, OUTLIER)

    def rank(place: int) -> tuple[int, float, float]:
        kind = (LABEL, DUPLICATE, OUTLIER).index(reasons[place])
        return kind, -float(wrong[place]), -float(strangeness[place])

    suspects = []
    for place in sorted(reasons, key=rank):
        other = str(examples[int(which[place])].picture) if reasons[place] == DUPLICATE else ""
        own, rather = classes[int(labels[place])], classes[int(better[place])]
        path = str(examples[place].picture)
        suspects.append(Suspect(place, path, own, rather, float(wrong[place]), reasons[place], other))
    return suspects, noise


def all_images(data: Dataset) -> list[Example]:
    return [*data.train, *data.val, *data.test]


def suspects_table(suspects: Sequence[Suspect]) -> Table:
    table = Table(["image", "label", "rather", "wrong, %", "reason"])
    for one in suspects:
        rather = one.better if one.reason == LABEL else None
        reason = f"{one.reason} of {one.other}" if one.other else one.reason
        table.add(one.path, one.label, rather, 100 * one.wrong, reason)
    return table


def write_suspects(path: Path, suspects: Sequence[Suspect]) -> None:
    """Writes a CSV with a line for each suspect."""
    rows = [[one.path, one.label, one.better, f"{one.wrong:.4f}", one.reason, one.other] for one in suspects]
    _write_csv(path, ["path", "label", "better", "wrong", "reason", "other"], rows)


def write_suspect_sheet(path: Path, suspects: Sequence[Suspect], examples: Sequence[Example]) -> None:
    """Writes a sheet of pictures of the first suspects."""
    entries = []
    for one in suspects:
        why = f"rather {one.better}: {100 * one.wrong:.0f}%" if one.reason == LABEL else one.reason
        entries.append((examples[one.place].picture, f"labelled {one.label}", why, ALARM))
    write_sheet(path, entries)


def require_files(data: Dataset) -> None:
    """Refuses images that a list cannot name."""
    if not all(isinstance(example.picture, ImageFile) for example in all_images(data)):
        raise DearError(f"{data.name} is not made of image files, so no list can name them: use --out alone.")


def write_cleaned(path: Path, data: Dataset, suspects: Sequence[Suspect], relabel: bool) -> tuple[int, int]:
    """Writes a list that --data reads, without the suspects, or with better labels for those whose label is wrong.

    Returns the numbers of images written and changed. A class keeps its images if all of them are suspects.
    """
    examples = all_images(data)
    touched = {one.place: one.better for one in suspects if not relabel or one.reason == LABEL}
    kept = {example.label for place, example in enumerate(examples) if place not in touched}
    if lost := {example.label for example in examples} - kept:
        names = ", ".join(data.classes[label] for label in sorted(lost))
        warn(f"all images of {names} are suspects, and stay as they are: look at them")
    splits = [split for split, part in zip(SPLITS, (data.train, data.val, data.test), strict=True) for _ in part]
    rows, changed = [], 0
    for place, (example, split) in enumerate(zip(examples, splits, strict=True)):
        touch = place in touched and example.label not in lost
        changed += touch
        if relabel or not touch:
            name = touched[place] if touch else data.classes[example.label]
            rows.append([os.path.abspath(str(example.picture)), name, *([] if data.rule else [split])])
    _write_csv(path, ["path", "label", *([] if data.rule else ["split"])], rows)
    return len(rows), changed


def _write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    with atomic_path(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
