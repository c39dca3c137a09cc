"""One image in, an explained answer out."""

from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from dear.core.errors import DearError
from dear.core.tensors import require_finite
from dear.data.decode import Decoder, as_rgb, open_picture
from dear.methods.base import DECOUPLED, Method
from dear.model.adapter import Adapter
from dear.model.answer import Answer, make_answer


class Predictor:
    """An adapted model. Images are paths, PIL images, or normalised pixels [batch, 3, height, width]."""

    def __init__(self, adapter: Adapter) -> None:
        self.model: Method = adapter.model
        self.classes, self.template = adapter.classes, adapter.template
        with torch.no_grad():
            self._text = self.model.text_features()

    @torch.no_grad()
    def predict(self, image: "str | Path | Image.Image", topk: int = 3, inference: str | None = None) -> Answer:
        """The answer for one image. `inference="decoupled"` uses the class feature alone, where there is more."""
        return self.answers(self._features(self.pixels([image])), topk, inference)[0]

    def predict_batch(self, pixels: Tensor, topk: int = 3, inference: str | None = None) -> list[Answer]:
        """Answers for normalised pixels [batch, 3, height, width]."""
        return self.answers(self._features(pixels), topk, inference)

    def predict_files(
        self, files: Sequence[str | Path], topk: int = 3, inference: str | None = None, fast_decode: bool = False
    ) -> "list[Answer | DearError]":
        """Answers for image files as one batch, with the error in place of an unreadable one.

        `fast_decode`: see `dear.data.decode.Decoder`.
        """
        decoder = Decoder(self.model.backbone.preprocess, fast_decode)
        pixels: list[Tensor] = []
        errors: dict[int, DearError] = {}
        for place, file in enumerate(files):
            try:
                pixels.append(decoder(file))
            except DearError as error:
                errors[place] = error
        answers = iter(self.predict_batch(torch.stack(pixels), topk, inference) if pixels else ())
        return [errors[place] if place in errors else next(answers) for place in range(len(files))]

    def encode_image(self, images: "Tensor | Sequence[str | Path | Image.Image]") -> dict[str, Tensor]:
        """Normalised features [images, dim] of each component: {"cls": ..., "color": ..., ...}."""
        features = self._features(images if isinstance(images, Tensor) else self.pixels(images))
        return dict(zip(self.model.components, features.unbind(1), strict=True))

    def encode_text(self, sentences: Sequence[str]) -> Tensor:
        """Adapted, normalised features [sentences, dim] of any text; the classes stay as they are."""
        return self.model.encode_text(sentences)

    def pixels(self, images: "Sequence[str | Path | Image.Image]") -> Tensor:
        opened = (as_rgb(i) if isinstance(i, Image.Image) else open_picture(i) for i in images)
        return torch.stack([self.model.backbone.preprocess(image) for image in opened])

    @torch.no_grad()
    def _features(self, pixels: Tensor) -> Tensor:
        return self.model.image_features(self.model.trunk(pixels.to(self.model.backbone.device)))

    @torch.no_grad()
    def answers(self, features: Tensor, topk: int, inference: str | None = None) -> list[Answer]:
        """features [batch, components, dim] -> one answer an image."""
        if not isinstance(topk, int) or topk < 1:
            raise DearError(f"topk must be a whole number from 1 on, not {topk!r}.")
        inference = inference or self.model.inferences[0]
        if inference not in self.model.inferences:
            raise DearError(f"This method answers by {' or '.join(self.model.inferences)}, not by {inference}.")
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
