"""Outcome: how well a method answered one set of labelled images, in test.json, fit.json and benchmark cells."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from msgspec import Struct, to_builtins
from torch import Tensor

from dear.core.metrics import (
    calibration_error,
    confusions,
    interval_text,
    is_above_chance,
    unique_names,
    wilson_interval,
)
from dear.core.schema import Count, Finite, Name, Percent
from dear.core.table import Table

ALL, BASE, NOVEL = "all", "base", "novel"
TEST, HELD_OUT, FOLDS = "test", "held-out", "folds"
LEFT_OUT_CLASSES = "left-out classes"  # each fold is fitted without some classes, and asked about these alone
LEFT_OUT = "left-out"  # how each method does it: by exact leave-one-out, by folds, or it needs no fit
LEAVE_ONE_OUT, NO_FIT = "leave-one-out", "no fit"


class Unseen(Struct, frozen=True, omit_defaults=True):
    """Accuracy on classes without images, expected from left-out ones; or why nothing can be expected."""

    names: Count  # in the list
    accuracy: Percent | None = None
    interval: tuple[Finite, Finite] | None = None  # 95%: for as many other classes of the same kind
    strength: Finite = 0.0  # of the bias of names, see `Corrected`
    why: str = ""

    def __str__(self) -> str:
        if self.accuracy is None or self.interval is None:
            return f"classes without images: {self.why}"
        expected = f"about {self.accuracy:.0f}% ({interval_text(self.interval)})"
        return f"classes without images: {expected} among {self.names}"


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
        """The 95% interval of the accuracy on one class."""
        images = self.class_images[name]
        return wilson_interval(round(self.per_class[name] / 100 * images), images)

    def worst_first(self) -> list[tuple[str, float]]:
        """Class names and accuracies, the lowest first."""
        return sorted(self.per_class.items(), key=lambda item: item[1])

    def to_json(self) -> dict[str, Any]:
        return to_builtins(self)

    def table(self) -> Table:
        table = Table(["class", "images", "accuracy (%)", "95% interval"])
        for name, accuracy in self.per_class.items():
            known = name in self.class_images  # cells before December 2026 do not have it
            interval = interval_text(self.class_interval(name), 1) if known else None
            table.add(name, self.class_images.get(name), accuracy, interval)
        table.add(ALL, self.images, self.accuracy, interval_text(self.interval, 1))
        return table

    def __repr__(self) -> str:
        return str(self)  # what a notebook shows

    def __str__(self) -> str:
        return self.table().text()


def outcome_of(logits: Tensor, labels: Tensor, classes: Sequence[str], **fields: Any) -> Outcome:
    """The outcome of logits [images, classes] against labels [images]; `fields`: others of its fields, or the same."""
    chosen, names = logits.argmax(-1), unique_names(classes)
    right = (chosen == labels).cpu()
    own = {name: right[(labels == number).cpu()] for number, name in enumerate(names)}
    own = {name: hits for name, hits in own.items() if len(hits)}
    count = int(right.sum())
    measured = {
        "images": len(labels),
        "accuracy": 100 * count / len(labels),
        "interval": wilson_interval(count, len(labels)),
        "ece": calibration_error(logits, labels),
        "per_class": {name: 100 * hits.double().mean().item() for name, hits in own.items()},
        "class_images": {name: len(hits) for name, hits in own.items()},
        "confused": [(names[true], names[answer], images) for true, answer, images in confusions(chosen, labels)],
        "right": np.packbits(right.numpy()).tobytes().hex(),
    }
    return Outcome(**{**measured, **fields})


def labels_of(examples: Sequence[Any]) -> Tensor:
    """Labels of examples, [images]."""
    return torch.tensor([example.label for example in examples])
