"""An adapted model as ONNX: a folder that runs with onnxruntime alone, and is known to agree with PyTorch."""

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dear.core.errors import DearError
from dear.core.files import atomic_folder, read_json, write_json
from dear.core.version import __version__
from dear.methods.registry import METHODS
from dear.model.adapter import CONFIG, Adapter, load_adapter, read_config
from dear.model.export.check import (
    Difference,
    Pictures,
    accuracy,
    answers_one_by_one,
    compare,
    pick_pictures,
    require_agreement,
)
from dear.model.export.graph import MODEL, ImageSide, require_packages, write_graph
from dear.model.export.int8 import INT8, write_int8

LIMIT = 1e-4
_EXAMPLE = Path(__file__).parent / "assets" / "classify.py"
_FORMAT = 1


@dataclass(frozen=True)
class Variant:
    """One of the models written: how large it is, how often it answers as fp32 does, how often it is right."""

    file: str
    megabytes: float
    same_answer: float  # %
    accuracy: float | None  # %; None: the labels are not known


@dataclass(frozen=True)
class Exported:
    pictures: Pictures
    difference: Difference
    variants: tuple[Variant, ...]


def export_run(run: Path, out: Path, int8: bool = False, check: int = 100) -> Exported:
    """Writes the adapted model in folder `run` into the new folder `out`, compared on `check` images; or nothing."""
    require_packages()
    if check < 1:
        raise DearError("--check must be at least 1: a model that was never compared is not written.")
    adapter = load_adapter(run)
    method = read_config(run)["method"]
    if METHODS[method].texts_per_image:
        raise DearError(f"{method} computes class texts per image, so it cannot be exported: choose another method.")
    settings = pixel_settings(adapter)
    pictures = pick_pictures(run, adapter.classes, check)
    text = adapter.model.encode_text()
    with atomic_folder(out) as folder:
        write_graph(adapter.model, text, folder / MODEL)
        difference = compare(ImageSide(adapter.model, text), folder / MODEL, pictures, settings)
        require_agreement(difference, LIMIT)
        variants = [_variant(folder / MODEL, difference.answers, difference, pictures)]
        if int8:
            write_int8(folder / MODEL, folder / INT8)
            answers = answers_one_by_one(folder / INT8, pictures, settings)
            variants.append(_variant(folder / INT8, answers, difference, pictures))
        np.save(folder / "text_features.npy", text.numpy())
        shutil.copyfile(_EXAMPLE, folder / _EXAMPLE.name)
        about = {
            "format": _FORMAT,
            "dear": __version__,
            "adapter_sha256": read_json(run / CONFIG)["weights_sha256"],
            "backbone": adapter.model.backbone.identity.to_json(),
            "classes": adapter.classes,
            "template": adapter.template,
            "components": adapter.model.components,
            "fusion_weights": adapter.model.fusion_weights().tolist(),
            "temperature": adapter.model.backbone.temperature.item(),
            "pixels": settings,
            "compared": {
                "images": len(pictures.examples),
                "source": pictures.source,
                "largest_difference": difference.to_json(),
                "models": [asdict(variant) for variant in variants],
            },
        }
        write_json(folder / "model.json", about)
    return Exported(pictures, difference, tuple(variants))


def pixel_settings(adapter: Adapter) -> dict[str, Any]:
    """All that classify.py must know to see pictures as the backbone does."""
    from open_clip.transform import PreprocessCfg

    backbone = adapter.model.backbone
    config = PreprocessCfg(**backbone.model.visual.preprocess_cfg)
    height, width = backbone.image.image_size
    if config.resize_mode != "squash" and (config.resize_mode != "shortest" or height != width):
        raise DearError(
            f"{backbone.name} fits pictures into {height} x {width} by the mode {config.resize_mode!r}, which the "
            "exported preprocessing does not know: use a backbone with square pictures, as nearly all are."
        )
    return {
        "size": [height, width],
        "resize": config.resize_mode,  # shortest: the shorter side to the size, then the middle; squash: both sides
        "interpolation": "bilinear" if config.interpolation == "bilinear" else "bicubic",
        "mean": backbone.mean,
        "std": backbone.std,
    }


def _variant(path: Path, answers: np.ndarray, difference: Difference, pictures: Pictures) -> Variant:
    size = sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))  # with its weights, if apart
    same = 100 * float(np.mean(answers.argmax(1) == difference.answers.argmax(1)))
    return Variant(path.name, size / 1e6, same, accuracy(answers, pictures))
