"""Evaluates a predictor on labelled images, and warns of those it was trained on."""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from dear.core.errors import DearError, warn
from dear.data.dataset import Dataset, Example
from dear.data.memory import ImageInMemory
from dear.data.resolve import resolve_dataset
from dear.data.splits import OWN_SPLIT, divide_again
from dear.model.predictor import Predictor, check_inference
from dear.training.adapt import predict_logits
from dear.training.images import ImageSource
from dear.training.run_folder import RunFolder
from dear.trials.outcome import Outcome, labels_of, outcome_of

_CHOICES = ("train", "val", "test", "all")


def evaluate_predictor(
    predictor: Predictor,
    origin: RunFolder | Collection[str] | None,
    data: Any,
    split: str,
    data_root: str | Path | None,
    class_names: str | Path | None,
    inference: str | None,
) -> Outcome:
    """The work of `Predictor.evaluate`; `origin`: the run, or the names of the images that it was fitted to."""
    root, names = (None if path is None else str(path) for path in (data_root, class_names))
    data = _divided_as_in_training(resolve_dataset(data, None, names, root), origin)
    examples, inference = _images_of_split(data, split), check_inference(predictor.model, inference)
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
    return outcome_of(logits, labels_of(examples), classes, method=predictor.method, inference=inference)


def _divided_as_in_training(data: Dataset, origin: RunFolder | Collection[str] | None) -> Dataset:
    """Divides the user's images as the run divided them, so that no image that was trained on is a test image."""
    if not data.rule or origin is None:
        return data
    if not isinstance(origin, RunFolder):
        _warn_of_trained(data, origin, "`model.comparison`")
        return data
    if not (settings := origin.settings()):
        return data
    if origin.uses_all_images:
        _warn_of_trained(data, [name for name, _ in origin.few_shot().get("train", ())], "the run")
        return data
    return divide_again(data, settings.get("split") or OWN_SPLIT)


def _warn_of_trained(data: Dataset, names: Collection[str], owner: str) -> None:
    """Warns if images of the data are among those of these names; `owner`: what has an accuracy without them."""
    images = (*data.train, *data.val, *data.test)
    in_memory = any(isinstance(example.picture, ImageInMemory) for example in images)
    if in_memory or not any(map(os.path.exists, names)):  # names do not tell; or the files have moved
        what = "all images that it was given: if these are among them, its accuracy on them is too high"
    else:
        files = {os.path.realpath(name) for name in names}
        count = sum(os.path.realpath(str(example.picture)) in files for example in images)
        if not count:
            return
        share = "all" if count == len(images) else f"{count}"
        what = f"{share} of the {len(images)} images of {data.name}: on these its accuracy is too high"
    warn(f"this adapter was trained on {what}; {owner} has the one that was measured without them.")


def _images_of_split(data: Dataset, split: str) -> tuple[Example, ...]:
    if split not in _CHOICES:
        raise DearError(f"There is no split {split!r}: choose from {', '.join(_CHOICES)}.")
    examples = (*data.train, *data.val, *data.test) if split == "all" else getattr(data, split)
    if not examples:
        raise DearError(f"{data.name} has no {split} images: choose another split.")
    return examples
