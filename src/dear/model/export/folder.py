"""The export folder: an adapted model as ONNX, with all that its users must know. Needs neither PyTorch nor ONNX.

model.onnx         pixels [batch, 3, height, width] -> features [batch, components, dim], logits [batch, classes]
model_int8.onnx    the same in 8 bits, one image at a time, where it was asked for
text_features.npy  features of the classes, [classes, dim]
model.json         `Export`
classify.py        an example that needs onnxruntime alone
"""

import hashlib
import json
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import numpy as np
from msgspec import Meta, Struct, convert, to_builtins

from dear.core.errors import DearError, first_line
from dear.core.files import checksum_of, read_bytes, read_json, write_json
from dear.core.identity import BackboneIdentity
from dear.core.schema import Count, Finite, Name, Percent, check_shape, damaged

EXAMPLE = Path(__file__).parent / "assets" / "classify.py"
_EXPORT_AGAIN = "export the run again"
_SHA256 = "sha256"
_LARGEST_TEXT = 2**33  # bytes
_Side = Annotated[int, Meta(ge=1, le=4096)]
_Mean = Annotated[float, Meta(ge=-1e3, le=1e3)]
_Std = Annotated[float, Meta(ge=1e-3, le=1e3)]
_Weight = Annotated[float, Meta(ge=-1e3, le=1e3)]
_Temperature = Annotated[float, Meta(ge=1e-6, le=1e4)]


class PixelSettings(TypedDict):
    """How classify.py turns a picture into the pixels that the backbone expects."""

    size: tuple[_Side, _Side]  # height, width
    resize: Literal["shortest", "squash"]  # the shorter side to the size, then the centre; or both sides
    interpolation: Literal["bilinear", "bicubic"]
    mean: tuple[_Mean, _Mean, _Mean]
    std: tuple[_Std, _Std, _Std]


class ExportedModel(Struct, frozen=True):
    """One of the exported models: its size, and how often it answers as fp32 does, and correctly."""

    file: Name
    megabytes: Finite
    same_answer: Percent
    accuracy: Percent | None  # None: the labels are not known


class Agreement(Struct, frozen=True):
    """Agreement with PyTorch on `images` pictures."""

    images: Count
    source: str
    largest_difference: dict[str, Finite]
    models: tuple[ExportedModel, ...]


class Export(Struct, frozen=True):
    """The content of model.json. The hash binds it to the graph and the features: one of them alone is refused."""

    format: Literal[2]
    dear: str
    adapter_sha256: str
    backbone: BackboneIdentity
    classes: Annotated[tuple[str, ...], Meta(min_length=1)]
    template: str
    components: Annotated[tuple[Name, ...], Meta(min_length=1)]
    fusion_weights: tuple[_Weight, ...]
    temperature: _Temperature
    pixels: PixelSettings
    compared: Agreement
    sha256: str = ""


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
        self.write_info(to_builtins(convert({"format": 2, **about}, Export, strict=True)))

    def write_info(self, about: dict[str, Any]) -> None:
        """Writes model.json with the hash that binds it to the other files."""
        write_json(self.info, {**about, _SHA256: self._hash(about)})

    def open(self) -> "OpenExport":
        """Reads everything and tries the model once. Refuses what was changed, or what no export can hold."""
        about = read_json(self.info)
        export = check_shape(about, Export, str(self.info), _EXPORT_AGAIN)
        if export.sha256 != self._hash(about):
            raise DearError(
                f"The files in {self.path} do not belong together, or were changed (their checksum differs): "
                f"{_EXPORT_AGAIN}."
            )
        opened = OpenExport(export, self._read_text(), open_session(self.model))
        with damaged(str(self.path), _EXPORT_AGAIN):
            opened.check()
        return opened

    def _hash(self, about: dict[str, Any]) -> str:
        """SHA-256 of model.json without its hash, the graph, its weights if they lie apart, and the text features."""
        rest = {key: value for key, value in about.items() if key != _SHA256}
        digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode())
        for file in (self.model, self.model.with_name(f"{self.model.name}.data"), self.text):
            digest.update(f"{file.name} {checksum_of(file) if file.exists() else None}".encode())
        return digest.hexdigest()

    def _read_text(self) -> np.ndarray:
        """Normalised features of the classes, [classes, dim]."""
        try:
            return np.load(BytesIO(read_bytes(self.text, _LARGEST_TEXT)), allow_pickle=False)
        except DearError:
            raise
        except Exception as error:  # a damaged file may raise anything
            raise DearError(f"{self.text} is damaged ({error}): {_EXPORT_AGAIN}.") from error


@dataclass(frozen=True)
class OpenExport:
    """An export folder in use: its description, text features and onnxruntime session."""

    about: Export
    text: np.ndarray  # features of the classes, [classes, dim]
    session: Any

    def run(self, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pixels [batch, 3, height, width] -> features [batch, components, dim] and logits [batch, classes]."""
        features, logits = self.session.run(["features", "logits"], {"pixels": pixels})
        if not (np.isfinite(features).all() and np.isfinite(logits).all()):
            raise DearError(f"The exported model gives numbers that are not finite: {_EXPORT_AGAIN}.")
        return features, logits

    def check(self) -> None:
        """ValueError unless description, features and graph agree, in the answer to one grey picture, too."""
        about, text = self.about, self.text
        parts, classes = len(about.components), len(about.classes)
        if len(about.fusion_weights) != parts:
            raise ValueError(f"{len(about.fusion_weights)} fusion weights for {parts} components")
        if text.dtype != np.float32 or text.ndim != 2 or len(text) != classes or not np.isfinite(text).all():
            raise ValueError(f"the text features are not {classes} rows of finite numbers")
        expected = [3, *about.pixels["size"]]
        if [value.shape[1:] for value in self.session.get_inputs()] != [expected]:
            raise ValueError(f"the graph does not take pixels of {expected}")
        try:
            features, logits = self.run(np.zeros((1, *expected), np.float32))
        except DearError:
            raise
        except Exception as error:  # as above
            raise ValueError(first_line(error)[:200]) from None
        if features.shape != (1, parts, text.shape[1]) or logits.shape != (1, classes):
            raise ValueError(f"the graph gives {features.shape} and {logits.shape}")


def open_session(path: Path) -> Any:
    """An onnxruntime session of the model in a file; refuses a damaged one."""
    try:
        import onnxruntime

        return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except ImportError:
        raise DearError("An exported model needs onnxruntime: pip install onnxruntime.") from None
    except Exception as error:  # onnxruntime has exceptions of its own, without a common base
        raise DearError(f"{path} is damaged ({first_line(error)[:200]}): {_EXPORT_AGAIN}.") from error
