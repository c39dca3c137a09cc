"""Export of an adapted model to ONNX: a folder that runs with onnxruntime alone and agrees with PyTorch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dear.core.errors import DearError
from dear.core.files import atomic_folder
from dear.core.version import __version__
from dear.methods.registry import METHODS
from dear.model.export.check import (
    Difference,
    Pictures,
    accuracy,
    answers_one_by_one,
    compare,
    pick_pictures,
    require_agreement,
)
from dear.model.export.folder import Comparison, ExportFolder, Variant
from dear.model.export.graph import ImageSide, require_packages, write_graph
from dear.model.export.int8 import write_int8
from dear.training.adapter import Adapter, load_adapter, read_config

LIMIT = 1e-4


@dataclass(frozen=True)
class ExportResult:
    pictures: Pictures
    difference: Difference
    variants: tuple[Variant, ...]


def export_run(run: Path, out: Path, int8: bool = False, check: int = 100) -> ExportResult:
    """Exports the adapter in `run` into the new folder `out`, unless it disagrees with PyTorch on `check` images."""
    require_packages()
    if check < 1:
        raise DearError("--check must be at least 1: a model that was never compared is not written.")
    adapter = load_adapter(run)
    model = adapter.model
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
        difference = compare(ImageSide(model, text), folder.model, pictures, settings)
        require_agreement(difference, LIMIT)
        variants = [_variant(folder.model, difference.answers, difference, pictures)]
        if int8:
            write_int8(folder.model, folder.int8)
            answers = answers_one_by_one(folder.int8, pictures, settings)
            variants.append(_variant(folder.int8, answers, difference, pictures))
        compared = Comparison(len(pictures.examples), pictures.source, difference.to_json(), tuple(variants))
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
            "compared": compared,
        }
        folder.write(about, text.numpy())
    return ExportResult(pictures, difference, tuple(variants))


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


def _variant(path: Path, answers: np.ndarray, difference: Difference, pictures: Pictures) -> Variant:
    size = sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))  # weights may be apart
    same = 100 * float(np.mean(answers.argmax(1) == difference.answers.argmax(1)))
    return Variant(path.name, size / 1e6, same, accuracy(answers, pictures))
