"""Accuracy of an adapted model on labelled images, with intervals."""

import os
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dear.core.errors import DearError
from dear.core.metrics import evaluation, interval_text, unique_names, wilson_interval
from dear.core.table import Table
from dear.data.dataset import Dataset, Example
from dear.data.memory import Item
from dear.data.resolve import resolve_dataset
from dear.data.splits import COOP_SPLIT, divide_again
from dear.model.predictor import Predictor
from dear.training.adapt import predict_logits
from dear.training.images import ImageSource
from dear.training.run_folder import RunFolder

_SPLITS = ("train", "val", "test", "all")


@dataclass(frozen=True)
class Measured:
    """An accuracy on some images."""

    images: int
    accuracy: float  # %
    interval: tuple[float, float]  # 95%, Wilson's


@dataclass(frozen=True)
class Evaluation(Measured):
    """Accuracies of a model on all images and per class; printed, it is a table."""

    calibration_error: float  # %
    per_class: dict[str, Measured]
    confused: tuple[tuple[str, str, int], ...]  # (true class, answer, images), most frequent first

    @property
    def mean_over_classes(self) -> float:
        """In %, each class counting the same, however many images it has."""
        return sum(own.accuracy for own in self.per_class.values()) / len(self.per_class)

    @property
    def is_balanced(self) -> bool:
        return len({own.images for own in self.per_class.values()}) == 1

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def table(self) -> Table:
        table = Table(["class", "images", "accuracy (%)", "95% interval"])
        for name, part in [*self.per_class.items(), ("all", self)]:
            table.add(name, part.images, part.accuracy, interval_text(part.interval, 1))
        return table

    def __repr__(self) -> str:
        return str(self)  # what a notebook shows

    def __str__(self) -> str:
        return self.table().text()


def evaluate(
    predictor: Predictor,
    data: Any,
    split: str = "test",
    data_root: str | Path | None = None,
    class_names: str | Path | None = None,
    inference: str | None = None,
) -> Evaluation:
    """See `Predictor.evaluate`."""
    root, names = (None if path is None else str(path) for path in (data_root, class_names))
    data = _divided_as_in_training(resolve_dataset(data, None, names, root), predictor)
    examples, inference = _examples(data, split), predictor.check_inference(inference)
    model, classes, template = predictor.model, predictor.classes, predictor.template
    if data.classes != classes and set(data.classes) <= set(classes):
        places = [classes.index(name) for name in data.classes]
        examples = tuple(Example(example.picture, places[example.label]) for example in examples)
    elif data.classes != classes:
        classes, template = data.classes, data.template
        if not model.can_answer(classes):
            raise DearError(f"{predictor.method} answers with its own classes only, and {data.name} has others.")
    try:
        model.set_classes(classes, template)
        logits = predict_logits(model, examples, ImageSource(model.backbone), f"{split} images", [inference])[inference]
    finally:
        model.set_classes(predictor.classes, predictor.template)
    return evaluation_of(logits, torch.tensor([example.label for example in examples]), classes)


def evaluation_of(logits: Tensor, labels: Tensor, classes: Sequence[str]) -> Evaluation:
    """From logits [images, classes] and labels [images]."""
    right = logits.argmax(-1) == labels
    metrics = evaluation(logits, labels, classes)
    per_class = {
        name: Measured(*measured(right[own]))
        for own, name in ((labels == number, name) for number, name in enumerate(unique_names(classes)))
        if own.any()
    }
    confused = tuple((true, answer, count) for true, answer, count in metrics["confused"])
    return Evaluation(*measured(right), metrics["ece"], per_class, confused)


def measured(right: Tensor) -> tuple[int, float, tuple[float, float]]:
    """The fields of `Measured` for answers that are right or not, [images]."""
    count, images = int(right.sum()), len(right)
    return images, 100 * count / images, wilson_interval(count, images)


def _divided_as_in_training(data: Dataset, predictor: Predictor) -> Dataset:
    """Images that we divide are divided as the run divided them: no image that was trained on is a test image."""
    if not data.rule:
        return data
    if predictor.fitted:
        _warn_of_trained(data, predictor.fitted, "`model.comparison`")
        return data
    run = None if predictor.folder is None else RunFolder(predictor.folder)
    settings = {} if run is None else run.settings()
    if run is None or not settings:
        return data
    if run.uses_all_images:
        _warn_of_trained(data, [name for name, _ in run.few_shot().get("train", ())], "the run")
        return data
    return divide_again(data, settings.get("split") or COOP_SPLIT)  # none is stored by older versions


def _warn_of_trained(data: Dataset, names: Collection[str], owner: str) -> None:
    """Warns if images of the data are among those of these names; `owner`: what has an accuracy without them."""
    images = (*data.train, *data.val, *data.test)
    count = _trained(images, names)
    if count == 0:
        return
    if count is None:
        what = "all images that it was given: if these are among them, its accuracy on them is too high"
    else:
        share = "all" if count == len(images) else f"{count}"
        what = f"{share} of the {len(images)} images of {data.name}: on these its accuracy is too high"
    print(
        f"dear: warning: this adapter was trained on {what}; {owner} has the one that was measured without them.",
        file=sys.stderr,
    )


def _trained(examples: Sequence[Example], names: Collection[str]) -> int | None:
    """How many were trained on; None: names do not tell, as those of images in memory, or of files that have moved."""
    if any(isinstance(example.picture, Item) for example in examples) or not any(map(os.path.exists, names)):
        return None
    files = {os.path.realpath(name) for name in names}
    return sum(os.path.realpath(str(example.picture)) in files for example in examples)


def _examples(data: Dataset, split: str) -> tuple[Example, ...]:
    if split not in _SPLITS:
        raise DearError(f"There is no split {split!r}: choose from {', '.join(_SPLITS)}.")
    examples = (*data.train, *data.val, *data.test) if split == "all" else getattr(data, split)
    if not examples:
        raise DearError(f"{data.name} has no {split} images: choose another split.")
    return examples
