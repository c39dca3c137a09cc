"""Accuracy of a backbone before any training: the method `zero-shot` on the test images of a dataset."""

import math
from dataclasses import dataclass

from dear.bench.protocols import ALL, BASE, NOVEL
from dear.clip import Backbone
from dear.core.errors import DearError
from dear.data.dataset import Dataset
from dear.methods.registry import find_method
from dear.training.adapt import evaluate
from dear.training.images import ImageSource


@dataclass(frozen=True)
class ZeroShotResult:
    """Accuracies (%): over all classes, and over each half of the classes alone (nan: a half without images)."""

    classes: int
    images: int
    all: float
    base: float
    novel: float


def zero_shot(backbone: Backbone, dataset: Dataset) -> ZeroShotResult:
    """Three accuracies; every test image is encoded once, for all of them."""
    if not dataset.test:
        raise DearError(f"{dataset.name} has no test images: add a test split.")
    kind = find_method("zero-shot")
    model, source = kind(backbone, kind.Config()), ImageSource(backbone)
    accuracies = {}
    for name, part in {ALL: dataset, BASE: dataset.base(), NOVEL: dataset.novel()}.items():
        if part.test:
            model.set_classes(part.classes, part.template)
            accuracies[name] = evaluate(model, part.test, source, part.name)
        else:
            accuracies[name] = math.nan
    return ZeroShotResult(len(dataset.classes), len(dataset.test), **accuracies)
