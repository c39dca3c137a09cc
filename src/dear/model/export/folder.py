"""The export folder: an adapted model as ONNX, with all that its users must know. Needs neither PyTorch nor ONNX.

model.onnx         pixels [batch, 3, height, width] -> features [batch, components, dim], logits [batch, classes]
model_int8.onnx    the same in 8 bits, one image at a time, where it was asked for
text_features.npy  features of the classes, [classes, dim]
model.json         `Export`
classify.py        an example that needs onnxruntime alone
"""

from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import numpy as np
from msgspec import Meta, Struct, convert, to_builtins

from dear.core.errors import DearError
from dear.core.files import read_json, write_json
from dear.core.schema import BackboneIdentity, Count, Finite, Name, Percent, Positive, check_shape

EXAMPLE = Path(__file__).parent / "assets" / "classify.py"
_AGAIN = "export the run again"
_Three = tuple[Finite, Finite, Finite]


class PixelSettings(TypedDict):
    """How classify.py turns a picture into the pixels that the backbone expects."""

    size: tuple[Positive, Positive]  # height, width
    resize: Literal["shortest", "squash"]  # the shorter side to the size, then the centre; or both sides
    interpolation: Literal["bilinear", "bicubic"]
    mean: _Three
    std: _Three


class Variant(Struct, frozen=True):
    """One of the exported models: its size, and how often it answers as fp32 does, and correctly."""

    file: Name
    megabytes: Finite
    same_answer: Percent
    accuracy: Percent | None  # None: the labels are not known


class Comparison(Struct, frozen=True):
    """Agreement with PyTorch on `images` pictures."""

    images: Count
    source: str
    largest_difference: dict[str, Finite]
    models: tuple[Variant, ...]


class Export(Struct, frozen=True):
    """The content of model.json."""

    format: Literal[1]
    dear: str
    adapter_sha256: str
    backbone: BackboneIdentity
    classes: Annotated[tuple[str, ...], Meta(min_length=1)]
    template: str
    components: Annotated[tuple[Name, ...], Meta(min_length=1)]
    fusion_weights: tuple[Finite, ...]
    temperature: Finite
    pixels: PixelSettings
    compared: Comparison


class ExportFolder:
    """Paths, reading and writing of an export folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.info = path / "model.json"
        self.model, self.int8 = path / "model.onnx", path / "model_int8.onnx"
        self.text = path / "text_features.npy"

    @property
    def exists(self) -> bool:
        return self.info.is_file()

    def write(self, about: dict[str, Any], text: np.ndarray) -> None:
        """Writes everything beside the graphs; model.json, with the fields of `Export`, last."""
        np.save(self.text, text)
        (self.path / EXAMPLE.name).write_bytes(EXAMPLE.read_bytes())
        write_json(self.info, to_builtins(convert(about, Export, strict=True)))

    def read(self) -> Export:
        return check_shape(read_json(self.info), Export, str(self.info), _AGAIN)

    def read_text(self, export: Export) -> np.ndarray:
        """Normalised features of the classes, [classes, dim]."""
        try:
            text = np.load(self.text, allow_pickle=False)
        except Exception as error:  # a damaged file may raise anything
            raise DearError(f"{self.text} is damaged ({error}): {_AGAIN}.") from error
        if text.ndim != 2 or len(text) != len(export.classes) or len(export.fusion_weights) != len(export.components):
            raise DearError(f"The files in {self.path} do not belong together: {_AGAIN}.")
        return text

    def open_session(self) -> Any:
        """An onnxruntime session of the model in full precision."""
        try:
            return open_session(self.model)
        except ImportError:
            raise DearError("An exported model needs onnxruntime: pip install onnxruntime.") from None
        except Exception as error:  # onnxruntime has exceptions of its own, without a common base
            reason = " ".join(str(error).split())[:200]
            raise DearError(f"{self.model} is damaged ({reason}): {_AGAIN}.") from error


def open_session(path: Path) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
