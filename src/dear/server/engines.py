"""The two kinds of model that can be served: a run, with PyTorch, and an export folder, with onnxruntime alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dear.core.names import DECOUPLED, inferences
from dear.core.progress import report
from dear.core.words import backbone_line
from dear.decisions.decision import Decider, read_decision
from dear.model.answer import Answer, make_answer
from dear.model.export.folder import ExportFolder
from dear.server.limits import RefusedError
from dear.server.model_thread import Engine

if TYPE_CHECKING:
    from dear.model.predictor import Predictor


def open_engine(folder: Path, device: str = "auto", precision: str = "auto") -> Engine:
    """A run folder, or a folder made by `dear export`."""
    if ExportFolder(folder).exists:
        engine = OnnxEngine(folder)
        report(backbone_line(engine.backbone, None, ", exported"))
        return engine
    from dear import load

    return TorchEngine(load(folder, device=device, precision=precision))


class TorchEngine:
    """A run, with PyTorch."""

    runtime = "PyTorch"

    def __init__(self, predictor: "Predictor") -> None:
        self.predictor = predictor
        self.classes, self.components = predictor.classes, predictor.model.components
        self.inferences = inferences(predictor.model.components)
        self.backbone: str = predictor.model.backbone.identity.model

    def pixels(self, image: Any) -> Any:
        return self.predictor.preprocess(image)

    def forward(self, pixels: Sequence[Any]) -> Any:
        import torch

        from dear.model.predictor import encode_pixels

        return encode_pixels(self.predictor, torch.stack(list(pixels)))

    def features(self, output: Any) -> Any:
        return output

    def answers(self, output: Any, topk: int, inference: str) -> list[Answer]:
        from dear.model.predictor import answer_features

        return answer_features(self.predictor, output, topk, inference)

    def encode_text(self, sentences: Sequence[str]) -> Any:
        return self.predictor.encode_text(sentences)


class OnnxEngine:
    """Answers as the run does. It has no text side, so its classes are fixed and sentences cannot be embedded."""

    runtime = "ONNX"

    def __init__(self, folder: Path) -> None:
        self._opened = ExportFolder(folder).open()
        self._export, self._text = self._opened.about, self._opened.text  # [classes, dim]
        self.classes, self.components = self._export.classes, self._export.components
        self.inferences = inferences(self.components)
        self.backbone: str = self._export.backbone.model
        found = read_decision(folder, lambda: self._export.adapter_sha256)
        tau = float(self._export.temperature)
        self._decider = None if found is None else Decider(found[0], self.classes, self._text, found[1], tau)

    def pixels(self, image: Any) -> np.ndarray:
        from dear.model.export.assets.classify import to_pixels

        return to_pixels(image, dict(self._export.pixels))

    def forward(self, pixels: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        return self._opened.run(np.stack(pixels))

    def features(self, output: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        return output[0]

    def answers(self, output: tuple[np.ndarray, np.ndarray], topk: int, inference: str) -> list[Answer]:
        features, logits = output
        # A method with one component may answer by more than its cosines: its vote is the answer.
        several = len(self.components) > 1
        votes = np.float32(self._export.temperature) * features @ self._text.T if several else logits[:, None]
        weights = np.array(self._export.fusion_weights, np.float32)
        if inference == DECOUPLED:
            weights, logits = np.eye(1, len(weights))[0], votes[:, 0]
        decided: list[dict[str, Any]] = [{}] * len(logits)
        if self._decider is not None and inference in ("", self.inferences[0]):
            logits, votes = (values / self._decider.decision.temperature for values in (logits, votes))
            decided = self._decider(logits, features[:, 0])
        return [
            make_answer(fused, each, weights.tolist(), self.classes, self.components, topk, fields)
            for fused, each, fields in zip(logits, votes, decided, strict=True)
        ]

    def encode_text(self, sentences: Sequence[str]) -> np.ndarray:
        raise RefusedError(400, "An exported model has no text side: serve the run itself to use sentences.")
