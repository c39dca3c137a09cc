"""Comparison of an exported model with PyTorch on the same pictures, each with its own preprocessing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dear.core.errors import DearError
from dear.core.progress import progress
from dear.data.dataset import Dataset, Example
from dear.data.resolve import resolve_dataset
from dear.model.export.folder import open_session
from dear.model.export.graph import ImageSide
from dear.training.run_folder import RunFolder


@dataclass(frozen=True)
class Pictures:
    """The pictures of a comparison; unless `labelled`, their labels are not the model's classes."""

    examples: Sequence[Example]
    source: str
    labelled: bool


def pick_pictures(run: Path, classes: Sequence[str], count: int) -> Pictures:
    """`count` test images of the run, spread evenly; pictures of Attribute World if the run's data is not here."""
    try:
        dataset, labelled = _run_data(run, classes), True
    except DearError:  # an adapter may travel without its data
        dataset, labelled = resolve_dataset("world:signs"), False
    test = dataset.test
    chosen = [test[i * len(test) // count] for i in range(count)] if len(test) > count else test
    return Pictures(chosen, f"test images of {dataset.name}", labelled)


def _run_data(run: Path, classes: Sequence[str]) -> Dataset:
    settings = RunFolder(run).settings()
    if "data" not in settings:
        raise DearError(f"{run} does not say what it was trained on.")
    dataset = resolve_dataset(settings["data"], None, settings.get("class_names"), settings.get("data_root"))
    dataset = dataset.base() if settings.get("classes") == "base" else dataset
    if dataset.classes != tuple(classes) or not dataset.test:
        raise DearError(f"{dataset.name} has other classes than the run, or no test images.")
    return dataset


@dataclass(frozen=True)
class Difference:
    """Largest absolute differences between the exported model and PyTorch, and the exported model's logits."""

    pixels: float
    features: float
    logits: float
    answers: np.ndarray  # logits of the exported model, [images, classes]

    def to_json(self) -> dict[str, float]:
        return {"pixels": self.pixels, "features": self.features, "logits": self.logits}


@torch.no_grad()
def compare(side: ImageSide, path: Path, pictures: Pictures, settings: dict[str, Any], batch: int = 16) -> Difference:
    """Compares from the picture on: PyTorch with the backbone's preprocessing, ONNX with that of classify.py."""
    from dear.model.export.assets.classify import to_pixels

    session, answers, worst = open_session(path), [], np.zeros(3)
    preprocess, device = side.model.backbone.preprocess, side.model.backbone.device
    for start in progress(range(0, len(pictures.examples), batch), "compare", "step"):
        images = [example.picture.open() for example in pictures.examples[start : start + batch]]
        pixels = torch.stack([preprocess(image) for image in images])
        own_pixels = np.stack([to_pixels(image, settings) for image in images])
        expected = [value.cpu().numpy() for value in (pixels, *side(pixels.to(device)))]
        actual = [own_pixels, *session.run(None, {"pixels": own_pixels})]
        worst = np.maximum(worst, [np.abs(a - b).max() for a, b in zip(expected, actual, strict=True)])
        answers.append(actual[2])
    pixels_apart, features_apart, logits_apart = map(float, worst)
    return Difference(pixels_apart, features_apart, logits_apart, np.concatenate(answers))


def answers_one_by_one(path: Path, pictures: Pictures, settings: dict[str, Any]) -> np.ndarray:
    """Logits [images, classes], one picture at a time: int8 scales the activations of a batch together."""
    from dear.model.export.assets.classify import to_pixels

    session, rows = open_session(path), []
    for example in progress(pictures.examples, "int8"):
        rows.append(session.run(["logits"], {"pixels": to_pixels(example.picture.open(), settings)[None]})[0])
    return np.concatenate(rows)


def accuracy(answers: np.ndarray, pictures: Pictures) -> float | None:
    """Share (%) of right answers; None if the labels are not known."""
    if not pictures.labelled:
        return None
    return 100 * float(np.mean(answers.argmax(1) == [example.label for example in pictures.examples]))


def require_agreement(difference: Difference, limit: float) -> None:
    within = difference.pixels <= limit and difference.features <= limit  # nan is not
    if not within or math.isnan(difference.logits):
        raise DearError(
            f"The exported model differs from PyTorch by {difference.features:.1e} in its features and "
            f"{difference.pixels:.1e} in its pixels, and at most {limit:.0e} is accepted: nothing was written; "
            "please report this with the backbone's name and the versions of torch and onnxruntime."
        )
