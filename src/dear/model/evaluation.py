"""Evaluates a predictor on labelled images, and warns of those it was trained on."""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dear.core.errors import DearError, warn
from dear.core.names import PLAIN
from dear.data.dataset import Dataset, Example
from dear.data.memory import ImageInMemory
from dear.data.resolve import resolve_dataset
from dear.data.splits import OWN_SPLIT, divide_again
from dear.methods.base import Method
from dear.methods.registry import UNFITTED, ZERO_SHOT
from dear.model.predictor import Predictor, check_inference
from dear.training.adapt import predict_logits
from dear.training.images import ImageSource
from dear.training.run_folder import RunFolder
from dear.trials.outcome import ALL, TEST, labels_of, outcome_of
from dear.trials.run_result import RunResult, result_of

_CHOICES = ("train", "val", TEST, ALL)


class Evaluation(NamedTuple):
    """Results on labelled images: those of the predictor, and of zero-shot beside it if both were asked for."""

    result: RunResult
    examples: Mapping[str, Sequence[Example]]
    fact: str  # which images


def evaluate_predictor(
    predictor: Predictor,
    data: Any,
    split: str | None = None,
    data_root: str | Path | None = None,
    class_names: str | Path | None = None,
    inference: str | None = None,
    beside_zero_shot: bool = False,
) -> Evaluation:
    """The work of `Predictor.evaluate`."""
    root, names = (None if path is None else str(path) for path in (data_root, class_names))
    data, which = _divided_as_in_training(resolve_dataset(data, None, names, root), predictor._origin)
    split = split or which
    examples, inference = _images_of_split(data, split), check_inference(predictor.model, inference)
    share = f"{split} images, {len(examples)} of {len(_all_images(data))}"
    measured = share if data.rule else TEST
    why = ": it has no split of its own, and none of its images was trained on" if which == ALL == split else ""
    model, classes, template = predictor.model, predictor.classes, predictor.template
    if data.classes != classes and set(data.classes) <= set(classes):
        places = [classes.index(name) for name in data.classes]
        examples = tuple(Example(example.picture, places[example.label]) for example in examples)
    elif data.classes != classes:
        classes, template = data.classes, data.template
        if not model.can_answer(classes):
            raise DearError(f"{predictor.method} answers with its own classes only, and {data.name} has others.")
    zero_shot = beside_zero_shot and predictor.method not in UNFITTED
    models = {ZERO_SHOT: Method(model.backbone, Method.Config())} if zero_shot else {}
    models[predictor.method] = model
    source, labels = ImageSource(model.backbone), labels_of(examples)
    source.encode(examples, models.values())
    outcomes = []
    try:
        for name, one in models.items():
            one.set_classes(classes, template)
            way = inference if one is model else PLAIN
            logits = predict_logits(one, examples, source, f"{split} images", [way])[way]
            outcomes.append(outcome_of(logits, labels, classes, method=name, measured=measured, inference=way))
    finally:
        model.set_classes(predictor.classes, predictor.template)
    fact = f"{predictor.method} on {data.name}, {share}{why}"
    return Evaluation(result_of(outcomes, predictor.method, logits, examples, classes), {ALL: examples}, fact)


def _divided_as_in_training(data: Dataset, origin: RunFolder | Collection[str] | None) -> tuple[Dataset, str]:
    """Divides the user's images as the run divided them, so that no image that was trained on is a test image.

    `origin`: the run, or the names of the images that the model was fitted to.

    Also returns the usual split: the test images, or all of a dataset that the run has not seen and that has no split.
    """
    if not data.rule or origin is None:
        return data, TEST
    if isinstance(origin, RunFolder):
        run, drawn = origin, origin.few_shot()
        names: Collection[str] = [name for part in ("train", "val") for name, _ in drawn.get(part, ())]
    else:
        run, names = None, origin
    images = _all_images(data)
    in_memory = any(isinstance(example.picture, ImageInMemory) for example in images)
    told = not in_memory and any(map(os.path.exists, names))  # else names do not tell, or the files have moved
    files = {os.path.realpath(name) for name in names}
    seen = sum(os.path.realpath(str(example.picture)) in files for example in images) if told else 0
    if told and not seen:
        return data, ALL
    if run and not run.uses_all_images:
        settings = run.settings()
        return (divide_again(data, settings.get("split") or OWN_SPLIT) if settings else data), TEST
    what = "all images that it was given: if these are among them, its accuracy on them is too high"
    if told:
        share = "all" if seen == len(images) else f"{seen}"
        what = f"{share} of the {len(images)} images of {data.name}: on these its accuracy is too high"
    owner = "the run" if run else "`model.comparison`"
    warn(f"this adapter was trained on {what}; {owner} has the one that was measured without them.")
    return data, TEST


def _all_images(data: Dataset) -> tuple[Example, ...]:
    return (*data.train, *data.val, *data.test)


def _images_of_split(data: Dataset, split: str) -> tuple[Example, ...]:
    if split not in _CHOICES:
        raise DearError(f"There is no split {split!r}: choose from {', '.join(_CHOICES)}.")
    examples = _all_images(data) if split == ALL else getattr(data, split)
    if not examples:
        raise DearError(f"{data.name} has no {split} images: choose another split.")
    return examples
