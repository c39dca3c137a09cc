"""A gallery of a few hundred pictures, held in memory: nothing is written, and nothing more must be installed."""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image

from dear.core.progress import progress
from dear.data.dataset import Picture
from dear.gallery.encoders import Encoder
from dear.gallery.search import Hit

_BATCH = 64


class MemoryGallery:
    """Pictures by name, in the order given."""

    def __init__(self, encoder: Encoder, pictures: dict[str, Picture]) -> None:
        self.encoder, self._pictures, self._paths = encoder, pictures, list(pictures)
        self.components = encoder.components
        starts = range(0, len(self._paths), _BATCH)
        found = [self._encode(self._paths[start : start + _BATCH]) for start in progress(starts, "look", "batch")]
        vectors = {name: np.concatenate([part[name] for part in found]) for name in encoder.components}
        self._means = {name: vectors[name].mean(0) * (name in encoder.centred) for name in vectors}
        self._vectors = {name: _unit(values - self._means[name]) for name, values in vectors.items()}

    def image(self, path: str) -> Image.Image:
        return self._pictures[path].open()

    def search(self, query: Image.Image, by: str, k: int) -> list[Hit]:
        """The k most alike in one component, best first."""
        vector = self._of([query])[by] - self._means[by]
        cosines = self._vectors[by] @ _unit(vector)[0]
        order = np.argsort(-cosines, kind="stable")[:k]
        return [Hit(self._paths[i], None, float(cosines[i]), {by: float(cosines[i])}) for i in order]

    def _encode(self, paths: Sequence[str]) -> dict[str, np.ndarray]:
        return self._of([self.image(path) for path in paths])

    def _of(self, pictures: Sequence[Image.Image]) -> dict[str, np.ndarray]:
        pixels = torch.stack([self.encoder.preprocess(picture) for picture in pictures])
        return {name: values.float().cpu().numpy() for name, values in self.encoder.encode_image(pixels).items()}


def _unit(values: np.ndarray) -> np.ndarray:
    return values / np.maximum(np.linalg.norm(values, axis=-1, keepdims=True), 1e-12)
