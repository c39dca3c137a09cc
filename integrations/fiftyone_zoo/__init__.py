"""Labels a FiftyOne dataset with a run of dear. FiftyOne calls the two functions below; README.md shows how."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fiftyone as fo
import numpy as np
from fiftyone.core.models import Model
from PIL import Image

import dear


def download_model(model_name: str, model_path: str) -> None:
    """Fetches nothing, for the run is a folder of yours; FiftyOne wants a file that shows that the model is there."""
    Path(model_path).write_text(json.dumps({"model": model_name, "dear": dear.__version__}), encoding="utf-8")


def load_model(model_name: str, model_path: str, run: str | None = None, **options: Any) -> "RunModel":
    """The model of a run; `options` are those of `dear.load`, such as `device`."""
    if run is None:
        raise dear.DearError(f'{model_name} needs a run: load_zoo_model("{model_name}", run="runs/pets").')
    return RunModel(dear.load(run, **options))


class RunModel(Model):
    """Answers of a run as classifications, with the probability as confidence."""

    media_type = "image"
    ragged_batches = False  # pictures of several sizes are prepared one by one
    transforms = None
    preprocess = True

    def __init__(self, predictor: "dear.Predictor") -> None:
        self.predictor = predictor

    def predict(self, arg: np.ndarray) -> fo.Classification:
        """One picture [height, width, 3] of bytes."""
        return self.predict_all([arg])[0]

    def predict_all(self, args: Sequence[np.ndarray]) -> list[fo.Classification]:
        """Pictures, each [height, width, 3] of bytes."""
        answers = self.predictor.predict([Image.fromarray(np.asarray(picture)).convert("RGB") for picture in args])
        return [fo.Classification(label=answer.choice, confidence=answer.probability) for answer in answers]
