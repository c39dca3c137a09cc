"""Export of an adapted model to ONNX: a folder that runs with onnxruntime alone and agrees with PyTorch.

Both are compared on the same pictures, each with its own preprocessing, before the folder gets its name.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace as with_fields

from dear.core.errors import DearError, warn
from dear.core.extras import require_extra
from dear.core.files import atomic_folder
from dear.core.progress import progress
from dear.core.version import __version__
from dear.data.dataset import Dataset, Example
from dear.data.resolve import resolve_dataset
from dear.decisions.decision import FULL, read_decision
from dear.heads.pictures import spread_evenly
from dear.methods.registry import METHODS
from dear.model.export.folder import Agreement, ExportedModel, ExportFolder, open_session
from dear.model.export.graph import ImageSide, write_graph, write_int8
from dear.training.adapter import Adapter, load_adapter, read_config
from dear.training.run_folder import RunFolder

LIMIT = 1e-4


def export_run(run: Path, out: Path, int8: bool = False, check: int = 100) -> Agreement:
    """Exports the adapter in `run` into the new folder `out`, unless it disagrees with PyTorch on `check` images."""
    require_extra("Export", "export")
    if check < 1:
        raise DearError("--check must be at least 1: a model that was never compared is not written.")
    adapter = load_adapter(run)
    model = adapter.model
    if model.backbone.precision is not torch.float32:
        raise DearError(f"{run} was made in bf16, but an export is exact: make it again in fp32 (--precision fp32).")
    if METHODS[adapter.method].texts_per_image:
        raise DearError(
            f"{adapter.method} computes class texts per image, so it cannot be exported: choose another method."
        )
    settings = pixel_settings(adapter)
    pictures = pick_pictures(run, adapter.classes, check)
    text = model.encode_text(model.classes)
    with atomic_folder(out) as temporary:
        folder = ExportFolder(temporary)
        write_graph(model, text, folder.model)
        difference, answers = compare_with_pytorch(ImageSide(model, text), folder.model, pictures, settings)
        require_agreement(difference)
        models = [_described(folder.model, answers, answers, pictures)]
        if int8:
            write_int8(folder.model, folder.int8)
            small = _answers_one_by_one(folder.int8, pictures, settings)
            models.append(_described(folder.int8, small, answers, pictures))
        agreement = Agreement(len(pictures.examples), pictures.source, difference, tuple(models))
        about = {
            "dear": __version__,
            "adapter_sha256": read_config(run)["weights_sha256"],
            "backbone": model.backbone.identity.to_json(),
            "classes": adapter.classes,
            "template": adapter.template,
            "components": model.components,
            "fusion_weights": model.fusion_weights().tolist(),
            "temperature": model.backbone.temperature.item(),
            "pixels": settings,
            "compared": agreement,
        }
        folder.write(about, text.numpy())
        _write_decision(run, temporary, about["adapter_sha256"])
    return agreement


def _write_decision(run: Path, out: Path, adapter: str) -> None:
    """Writes the decision of the run, if it has one, for the exported adapter."""
    if (found := read_decision(run, lambda: read_config(run)["config_sha256"])) is None:
        return
    decision, words = found
    if decision.coverage is not None and decision.coverage.how == FULL:
        warn("sets by full conformal need the labelled images, and are left out of the export")
        decision = with_fields(decision, coverage=None)
    with_fields(decision, adapter=adapter).write(out, words)


def pixel_settings(adapter: Adapter) -> dict[str, Any]:
    """The preprocessing of the adapter's backbone, for classify.py."""
    from open_clip.transform import PreprocessCfg

    backbone = adapter.model.backbone
    config = PreprocessCfg(**backbone.pictures)
    height, width = backbone.image.image_size
    if config.resize_mode != "squash" and (config.resize_mode != "shortest" or height != width):
        raise DearError(
            f"{backbone.name} fits pictures into {height} x {width} by the mode {config.resize_mode!r}, which the "
            "exported preprocessing does not know: use a backbone with square pictures, as nearly all are."
        )
    return {
        "size": (height, width),
        "resize": config.resize_mode,
        "interpolation": "bilinear" if config.interpolation == "bilinear" else "bicubic",
        "mean": backbone.mean,
        "std": backbone.std,
    }


@dataclass(frozen=True)
class ComparedPictures:
    """The pictures of a comparison; unless `labelled`, their labels are not the model's classes."""

    examples: Sequence[Example]
    source: str
    labelled: bool


def pick_pictures(run: Path, classes: Sequence[str], count: int) -> ComparedPictures:
    """`count` test images of the run, spread evenly; pictures of Attribute World if the run's data is not here."""
    try:
        dataset, labelled = _run_data(run, classes), True
    except DearError:  # an adapter may travel without its data
        dataset, labelled = resolve_dataset("world:signs"), False
    return ComparedPictures(spread_evenly(dataset.test, count), f"test images of {dataset.name}", labelled)


def _run_data(run: Path, classes: Sequence[str]) -> Dataset:
    """The data that the run was trained on; an error if it is not here, or has other classes."""
    settings = RunFolder(run).settings()
    if "data" not in settings:
        raise DearError(f"{run} does not say what it was trained on.")
    dataset = resolve_dataset(settings["data"], None, settings.get("class_names"), settings.get("data_root"))
    dataset = dataset.base() if settings.get("classes") == "base" else dataset
    if dataset.classes != tuple(classes) or not dataset.test:
        raise DearError(f"{dataset.name} has other classes than the run, or no test images.")
    return dataset


@torch.no_grad()
def compare_with_pytorch(
    side: ImageSide, path: Path, pictures: ComparedPictures, settings: dict[str, Any], batch: int = 16
) -> tuple[dict[str, float], np.ndarray]:
    """Largest absolute differences of pixels, features and logits, and the exported model's logits [images, classes].

    From the picture on: PyTorch has the backbone's preprocessing, ONNX that of classify.py.
    """
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
    return dict(zip(("pixels", "features", "logits"), map(float, worst), strict=True)), np.concatenate(answers)


def require_agreement(difference: dict[str, float]) -> None:
    """Refuses an exported model whose pixels or features differ from PyTorch's by more than rounding."""
    within = difference["pixels"] <= LIMIT and difference["features"] <= LIMIT  # nan is not
    if not within or math.isnan(difference["logits"]):
        raise DearError(
            f"The exported model differs from PyTorch by {difference['features']:.1e} in its features and "
            f"{difference['pixels']:.1e} in its pixels, and at most {LIMIT:.0e} is accepted: nothing was written; "
            "please report this with the backbone's name and the versions of torch and onnxruntime."
        )


def _answers_one_by_one(path: Path, pictures: ComparedPictures, settings: dict[str, Any]) -> np.ndarray:
    """Logits [images, classes], one picture at a time: int8 scales the activations of a batch together."""
    from dear.model.export.assets.classify import to_pixels

    session, rows = open_session(path), []
    for example in progress(pictures.examples, "int8"):
        rows.append(session.run(["logits"], {"pixels": to_pixels(example.picture.open(), settings)[None]})[0])
    return np.concatenate(rows)


def _described(path: Path, logits: np.ndarray, in_fp32: np.ndarray, pictures: ComparedPictures) -> ExportedModel:
    """The size of the model in `path`, and how its answers agree with those in fp32 and with the labels."""
    size = sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))  # weights may be apart
    answers, labels = logits.argmax(1), [example.label for example in pictures.examples]
    accuracy = 100 * float(np.mean(answers == labels)) if pictures.labelled else None
    return ExportedModel(path.name, size / 1e6, 100 * float(np.mean(answers == in_fp32.argmax(1))), accuracy)
