"""Outcome: how well a method answered one set of labelled images, in test.json, fit.json and benchmark cells."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from msgspec import Struct, to_builtins
from torch import Tensor

from dear.core.metrics import (
    calibration_error,
    confusions,
    interval_text,
    is_above_chance,
    reliability,
    unique_names,
    wilson_interval,
)
from dear.core.schema import Count, Finite, Name, Percent
from dear.core.table import Table

ALL, BASE, NOVEL = "all", "base", "novel"
TEST, HELD_OUT, FOLDS = "test", "held-out", "folds"
LEFT_OUT = "left-out"  # how each method does it: by exact leave-one-out, by folds, or it needs no fit
LEAVE_ONE_OUT, NO_FIT = "leave-one-out", "no fit"


class Share(NamedTuple):
    """A share of images (%) and its 95% interval; nan if there are none."""

    value: float
    interval: tuple[float, float]

    @classmethod
    def of(cls, some: int, images: int) -> "Share":
        return cls(100 * some / images, wilson_interval(some, images)) if images else cls(math.nan, (0.0, 100.0))

    @property
    def text(self) -> str:
        return interval_text(self.interval, 1)


class Outcome(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Accuracy of a method on some images, overall and per class. Printed, it is a table.

    `measured`: on test images, on held-out ones, or how each image was left out of the fit that answered it.
    """

    part: Name = ALL  # all, base or novel classes, or the dataset of a transfer
    inference: str = ""
    measured: str = TEST
    method: str = ""  # empty where the owner says it: a benchmark cell, a model
    images: Count
    accuracy: Percent
    interval: tuple[Finite, Finite]  # 95%
    ece: Finite  # expected calibration error, %
    per_class: dict[str, Percent]  # accuracy
    class_images: dict[str, Count] = {}
    confused: list[tuple[str, str, Count]]  # true class, answer, images; most frequent first
    right: str  # one bit per image, in hexadecimal: was it answered rightly?
    cross_entropy: Finite | None = None  # of probabilities that the best temperature has calibrated
    reliability: list[tuple[Finite, Finite, Finite]] = []  # bins: mean confidence, accuracy, images
    seconds: Finite | None = None  # to fit
    epochs: tuple[Count, Count] | None = None  # trained, and those of the recipe

    def __post_init__(self) -> None:
        if len(bytes.fromhex(self.right)) != math.ceil(self.images / 8):
            raise ValueError(f"right has {4 * len(self.right)} bits for {self.images} images")

    @property
    def answers(self) -> np.ndarray:
        """Which images were answered rightly, [images], as 0 and 1."""
        bits = np.unpackbits(np.frombuffer(bytes.fromhex(self.right), np.uint8))
        return bits[: self.images].astype(np.float64)

    @property
    def mean_over_classes(self) -> float:
        """The mean accuracy of the classes (%), which count alike, however many images they have."""
        return sum(self.per_class.values()) / len(self.per_class)

    @property
    def is_balanced(self) -> bool:
        return len(set(self.class_images.values())) < 2

    @property
    def could_be_guessed(self) -> bool:
        """Whether someone who guesses among the classes could reach this accuracy."""
        classes = len(self.per_class)
        return classes > 1 and not is_above_chance(int(self.answers.sum()), self.images, classes)

    def class_interval(self, name: str) -> tuple[float, float]:
        """The 95% interval of the accuracy on one class, which is also called recall."""
        return Share.of(round(self.per_class[name] / 100 * self.class_images[name]), self.class_images[name]).interval

    def precisions(self) -> dict[str, tuple["Share", "Share"]]:
        """Precision of each class, the share of its answers that are right, and F1, its harmonic mean with recall.

        F1 = 2 J / (1 + J) of J, the share of right ones among all images that are, or were taken for, the class: its
        interval is that of J.
        """
        answered = Counter(dict.fromkeys(self.per_class, 0))
        for _, answer, images in self.confused:
            answered[answer] += images
        shares = {}
        for name, accuracy in self.per_class.items():
            right = round(accuracy / 100 * self.class_images[name])
            either = Share.of(right, self.class_images[name] + answered[name])
            f1 = [200 * value / (100 + value) for value in (either.value, *either.interval)]
            shares[name] = Share.of(right, right + answered[name]), Share(f1[0], (f1[1], f1[2]))
        return shares

    def matrix(self) -> dict[str, list[int]]:
        """The confusion matrix: for each class, how many of its images were given which of these classes as answer."""
        wrong = {(true, answer): images for true, answer, images in self.confused}
        right = {name: round(share / 100 * self.class_images[name]) for name, share in self.per_class.items()}
        return {
            true: [right[true] if answer == true else wrong.get((true, answer), 0) for answer in self.per_class]
            for true in self.per_class
        }

    def worst_first(self) -> list[tuple[str, float]]:
        """Class names and accuracies, the lowest first."""
        return sorted(self.per_class.items(), key=lambda item: item[1])

    def to_json(self) -> dict[str, Any]:
        return to_builtins(self)

    def table(self) -> Table:
        shown = (
            "class",
            "images",
            "accuracy (%)",
            "95% interval",
            "precision (%)",
            "its interval",
            "F1 (%)",
            "interval of F1",
        )
        table = Table(shown)
        known = bool(self.class_images)  # cells before December 2026 do not have it
        precisions = self.precisions() if known else {}
        for name, accuracy in self.per_class.items():
            interval = interval_text(self.class_interval(name), 1) if known else None
            others = (part for share in precisions.get(name, ()) for part in (share.value, share.text))
            table.add(name, self.class_images.get(name), accuracy, interval, *(others if known else [None] * 4))
        table.add(ALL, self.images, self.accuracy, interval_text(self.interval, 1), *[None] * 4)
        return table

    def __repr__(self) -> str:
        return str(self)  # what a notebook shows

    def __str__(self) -> str:
        return self.table().text() + (f"\nmeasured on {self.measured}" if " images, " in self.measured else "")


def outcome_of(logits: Tensor, labels: Tensor, classes: Sequence[str], **fields: Any) -> Outcome:
    """The outcome of logits [images, classes] against labels [images]; `fields`: others of its fields, or the same."""
    chosen, names = logits.argmax(-1), unique_names(classes)
    right = (chosen == labels).cpu()
    own = {name: right[(labels == number).cpu()] for number, name in enumerate(names)}
    own = {name: hits for name, hits in own.items() if len(hits)}
    count, bins = int(right.sum()), reliability(logits, labels)
    measured = {
        "images": len(labels),
        "accuracy": 100 * count / len(labels),
        "interval": wilson_interval(count, len(labels)),
        "ece": calibration_error(bins),
        "per_class": {name: 100 * hits.double().mean().item() for name, hits in own.items()},
        "class_images": {name: len(hits) for name, hits in own.items()},
        "confused": [(names[true], names[answer], images) for true, answer, images in confusions(chosen, labels)],
        "reliability": [(mean, share, round(number, 3)) for mean, share, number in bins.tolist()],
        "right": np.packbits(right.numpy()).tobytes().hex(),
    }
    return Outcome(**{**measured, **fields})


def labels_of(examples: Sequence[Any]) -> Tensor:
    """Labels of examples, [images]."""
    return torch.tensor([example.label for example in examples])
