"""One image in, an explained answer out."""

from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from dear.core.errors import DearError
from dear.core.names import DECOUPLED, inferences
from dear.core.tensors import require_finite
from dear.data.opening import as_rgb, open_picture
from dear.data.quick import FileReader
from dear.methods.base import Method
from dear.model.adapter import Adapter
from dear.model.answer import Answer, make_answer


class Predictor:
    """An adapted model. Images are paths, PIL images, or normalised pixels [batch, 3, height, width]."""

    def __init__(self, adapter: Adapter) -> None:
        self.model: Method = adapter.model
        self.classes, self.template = adapter.classes, adapter.template
        with torch.no_grad():
            self._text = self.model.encode_text()

    @property
    def dim(self) -> int:
        """Size of the features that images and texts are compared by."""
        return self._text.shape[-1]

    @torch.no_grad()
    def predict(self, image: "str | Path | Image.Image", topk: int = 3, inference: str | None = None) -> Answer:
        """The answer for one image. `inference="decoupled"` uses the class feature alone, where there is more."""
        return self.answers(self._features(self.pixels([image])), topk, inference)[0]

    def predict_batch(self, pixels: Tensor, topk: int = 3, inference: str | None = None) -> list[Answer]:
        """Answers for normalised pixels [batch, 3, height, width]."""
        return self.answers(self._features(pixels), topk, inference)

    def predict_files(
        self, files: Sequence[str | Path], topk: int = 3, inference: str | None = None, exact: bool = True
    ) -> "list[Answer | DearError]":
        """Answers for image files as one batch; in the place of an unreadable one, why it is. `exact`: `FileReader`."""
        reader = FileReader(self.model.backbone.preprocess, exact)
        found: list[Answer | DearError | None] = [None] * len(files)
        pixels = {}
        for place, file in enumerate(files):
            try:
                pixels[place] = reader.read(file)
            except DearError as error:
                found[place] = error
        if pixels:
            answers = self.predict_batch(torch.stack(list(pixels.values())), topk, inference)
            for place, answer in zip(pixels, answers, strict=True):
                found[place] = answer
        return [one for one in found if one is not None]

    def encode_image(self, images: "Tensor | Sequence[str | Path | Image.Image]") -> dict[str, Tensor]:
        """Normalised features [images, dim] of each component: {"cls": ..., "color": ..., ...}."""
        features = self._features(images if isinstance(images, Tensor) else self.pixels(images))
        return dict(zip(self.model.components, features.unbind(1), strict=True))

    def encode_text(self, sentences: Sequence[str]) -> Tensor:
        """Adapted, normalised features [sentences, dim] of any text; the classes stay as they are."""
        with torch.no_grad():
            return F.normalize(self.model.encode_text(self.model.encode_classes(sentences, "{}")), dim=-1)

    def pixels(self, images: "Sequence[str | Path | Image.Image]") -> Tensor:
        opened = (as_rgb(i) if isinstance(i, Image.Image) else open_picture(i) for i in images)
        return torch.stack([self.model.backbone.preprocess(image) for image in opened])

    @torch.no_grad()
    def _features(self, pixels: Tensor) -> Tensor:
        return self.model.encode_image(self.model.layer_input(pixels.to(self.model.backbone.device)))

    @torch.no_grad()
    def answers(self, features: Tensor, topk: int, inference: str | None = None) -> list[Answer]:
        """features [batch, components, dim] -> one answer an image."""
        if not isinstance(topk, int) or topk < 1:
            raise DearError(f"topk must be a whole number from 1 on, not {topk!r}.")
        ways = inferences(self.model.components)
        inference = inference or ways[0]
        if inference not in ways:
            raise DearError(f"This method answers by {' or '.join(ways)}, not by {inference}.")
        fused = self.model.logits(features, self._text, inference)  # [batch, classes]
        votes = self.model.votes(features, self._text)  # [batch, components, classes]
        require_finite({"answer": fused, "votes": votes}, "What the model says about an image")
        weights = self.model.fusion_weights().tolist()
        if inference == DECOUPLED:
            weights = [1.0] + [0.0] * (len(weights) - 1)
        return [
            make_answer(one, each, weights, self.classes, self.model.components, topk)
            for one, each in zip(fused.double().cpu().numpy(), votes.double().cpu().numpy(), strict=True)
        ]
