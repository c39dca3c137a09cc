"""The two kinds of adapted model that can be served: a run, with PyTorch, and what `dear export` wrote, without."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dear.core.errors import DearError
from dear.core.files import read_json
from dear.core.names import inferences
from dear.model.answer import Answer, make_answer
from dear.server.model_thread import Engine
from dear.server.responses import RefusedError

if TYPE_CHECKING:
    from dear.model.predictor import Predictor

_ABOUT, _MODEL, _TEXT = "model.json", "model.onnx", "text_features.npy"
_FORMAT = 1
_DECOUPLED = "decoupled"


def open_engine(folder: Path) -> Engine:
    """A run folder, or a folder made by `dear export`."""
    if (folder / _ABOUT).is_file():
        return OnnxEngine(folder)
    from dear import load

    return TorchEngine(load(folder))


class TorchEngine:
    runtime = "PyTorch"

    def __init__(self, predictor: "Predictor") -> None:
        self.predictor = predictor
        self.classes, self.components = predictor.classes, predictor.model.components
        self.inferences = inferences(predictor.model.components)
        self.backbone: str = predictor.model.backbone.identity.model

    def pixels(self, image: Any) -> Any:
        return self.predictor.pixels([image])[0]

    def look(self, pixels: Sequence[Any]) -> Any:
        import torch

        return torch.stack(list(self.predictor.encode_image(torch.stack(list(pixels))).values()), dim=1)

    def features(self, seen: Any) -> Any:
        return seen

    def answers(self, seen: Any, topk: int, inference: str) -> list[Answer]:
        return self.predictor.answers(seen, topk, inference)

    def encode_text(self, sentences: Sequence[str]) -> Any:
        return self.predictor.encode_text(sentences)


class OnnxEngine:
    """Answers as the run did; it has no text side, so its classes are fixed and sentences cannot be embedded."""

    runtime = "ONNX"

    def __init__(self, folder: Path) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise DearError("An exported model needs onnxruntime: pip install onnxruntime.") from None
        about = read_json(folder / _ABOUT)
        if not isinstance(about, dict) or about.get("format") != _FORMAT:
            raise DearError(f"{folder / _ABOUT} is not one that this version of dear can read: export the run again.")
        try:
            self.classes, self.components = tuple(about["classes"]), tuple(about["components"])
            several = len(self.components) > 1
            self.inferences: tuple[str, ...] = ("fusion", _DECOUPLED) if several else ("plain",)
            self.backbone: str = about["backbone"]["model"]
            self._pixels = about["pixels"]
            self._weights = np.array(about["fusion_weights"], np.float32)
            self._temperature = np.float32(about["temperature"])
            self._text = np.load(folder / _TEXT, allow_pickle=False)  # [classes, dim]
            self._session = onnxruntime.InferenceSession(folder / _MODEL, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has exceptions of its own, without a common base
            reason = " ".join(str(error).split())[:200]
            raise DearError(f"The exported model in {folder} is damaged ({reason}): export the run again.") from error
        if self._text.shape[0] != len(self.classes) or self._weights.shape != (len(self.components),):
            raise DearError(f"The files in {folder} do not belong together: export the run again.")

    def pixels(self, image: Any) -> np.ndarray:
        from dear.model.export.assets.classify import to_pixels

        return to_pixels(image, self._pixels)

    def look(self, pixels: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        features, logits = self._session.run(["features", "logits"], {"pixels": np.stack(pixels)})
        return features, logits

    def features(self, seen: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        return seen[0]

    def answers(self, seen: tuple[np.ndarray, np.ndarray], topk: int, inference: str) -> list[Answer]:
        features, logits = seen
        # A method with one component may answer by more than its cosines: what that says is what all say.
        votes = self._temperature * features @ self._text.T if len(self.components) > 1 else logits[:, None]
        weights = self._weights
        if inference == _DECOUPLED:
            weights, logits = np.eye(1, len(weights))[0], votes[:, 0]
        return [
            make_answer(fused, each, weights.tolist(), self.classes, self.components, topk)
            for fused, each in zip(logits, votes, strict=True)
        ]

    def encode_text(self, sentences: Sequence[str]) -> np.ndarray:
        raise RefusedError(400, "An exported model has no text side: serve the run itself to use sentences.")
