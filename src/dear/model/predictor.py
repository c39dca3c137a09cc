"""An adapted model in use: answers, evaluation, explanation, features."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from dear.core.errors import DearError, library_errors
from dear.core.names import DECOUPLED, inferences
from dear.core.runtime import to_device
from dear.core.tensors import LOWER_RATE, require_finite
from dear.data.decode import ImageLike, open_image
from dear.data.memory import images_of
from dear.heads.gains import NOT_FROZEN, gain_text, named_gains, require_sum, with_gains
from dear.methods.base import Method
from dear.methods.shared.role_settings import roles_of
from dear.model.answer import Answer, make_answer
from dear.training.adapter import CONFIG, Adapter, save_adapter

if TYPE_CHECKING:
    from dear.training.run_folder import RunFolder
    from dear.trials.outcome import Outcome
    from dear.trials.selection import Selection

_IMAGES_AT_ONCE = 32


class Predictor:
    """An adapted model: what `dear.load`, `dear.train` and `dear.fit` return.

    `classes`: the names that it answers with, and `template` their prompt; `method`: the name of the method, and
    `model` its towers with all that was learned; `gain`: the gains of heads given to `with_gain`.
    """

    comparison: "Selection | None" = None
    """Why `dear.fit` chose this method; also of a run that is loaded."""

    def __init__(
        self,
        adapter: Adapter,
        origin: "RunFolder | Collection[str] | None" = None,
        comparison: "Selection | None" = None,
    ) -> None:
        """`origin`: the run, or the names of the images that `dear.fit` was given, to warn of in an evaluation."""
        self.model: Method = adapter.model
        self.method, self.classes, self.template = adapter.method, adapter.classes, adapter.template
        self.gain: dict[str, float] = {}
        self.comparison, self._origin = comparison, origin
        with torch.no_grad():
            self._text = self.model.encode_text(self.model.classes)

    def __repr__(self) -> str:
        names = ", ".join(self.classes[:3]) + (", ..." if len(self.classes) > 3 else "")
        gain = f", gain {gain_text(self.gain)}" if self.gain else ""
        return f"<dear {self.method} on {self.model.backbone.name}{gain}, {len(self.classes)} classes: {names}>"

    @overload
    def predict(self, images: ImageLike, topk: int = 3, inference: str | None = None) -> Answer: ...

    @overload
    def predict(
        self, images: "list[Any] | tuple[Any, ...]", topk: int = 3, inference: str | None = None
    ) -> list[Answer]: ...

    def predict(
        self, images: ImageLike | Sequence[ImageLike], topk: int = 3, inference: str | None = None
    ) -> Answer | list[Answer]:
        """The answer for one image, or a list of answers for several: a list, an array [images, height, width, 3], a
        tensor [images, 3, height, width], a DataFrame with a column of images, a dataset of torch or Hugging Face.

        `topk`: number of classes in `Answer.top`. `inference="decoupled"` uses the class feature alone.
        """
        several, is_one = _as_sequence(images), _is_one(images)
        starts = range(0, len(several), _IMAGES_AT_ONCE)
        parts = (self._pixels(_part(several, start)) for start in starts)
        answers = [answer for part in parts for answer in self.predict_batch(part, topk, inference)]
        return answers[0] if is_one else answers

    def predict_batch(self, pixels: Tensor, topk: int = 3, inference: str | None = None) -> list[Answer]:
        """Answers for normalised pixels [batch, 3, height, width], such as a loader with `preprocess` gives."""
        return answer_features(self, encode_pixels(self, pixels), topk, inference)

    def evaluate(
        self,
        data: Any,
        *,
        split: str | None = None,
        data_root: str | Path | None = None,
        class_names: str | Path | None = None,
        inference: str | None = None,
        out: str | Path | None = None,
    ) -> "Outcome":
        """Accuracy on labelled images: overall, and with precision and F1 per class, each with a 95% interval.

        `data`: anything that `dear.train` takes; `split`: train, val, test, or all (default: test, or all of images
        that have no split and that the model has not seen). The model chooses among its own classes if these include
        all of the data's, else among the data's classes. `out`: a page to write, with zero-shot beside it, the
        confusion matrix, a reliability diagram and the worst mistakes.
        """
        from dear.model.evaluation import evaluate_predictor
        from dear.trials.page import write_results_page

        result, examples, fact = evaluate_predictor(
            self, data, split, data_root, class_names, inference, out is not None
        )
        if out is not None:
            write_results_page(Path(out), "evaluation", result, examples, [fact])
        return result.parts["all"].outcome

    def explain(self, image: ImageLike, out: str | Path = "explain.png", topk: int = 3) -> Answer:
        """Draws the image, the votes and where each component looked to `out`; returns the answer."""
        from dear.model.explain import explain_image

        return explain_image(self, image, Path(out), topk)

    def features(self, images: Tensor | ImageLike | Sequence[ImageLike]) -> dict[str, Tensor]:
        """Normalised features [images, dim] of each component, {"cls": ..., "color": ..., ...}.

        `images` may also be normalised pixels [images, 3, height, width].
        """
        pixels = images if isinstance(images, Tensor) else self._pixels(_as_sequence(images))
        return dict(zip(self.model.components, encode_pixels(self, pixels).unbind(1), strict=True))

    def encode_text(self, sentences: Sequence[str]) -> Tensor:
        """Adapted, normalised features [sentences, dim] of any texts; the classes stay as they are."""
        with torch.no_grad():
            return F.normalize(self.model.encode_text(self.model.encode_classes(sentences, "{}")), dim=-1)

    def with_gain(self, gains: Mapping[str, float] | None = None, /, **by_name: float) -> "Predictor":
        """The same model with gains of heads: `model.with_gain(texture=0)`, `model.with_gain({"12.10": 2})`.

        A name is an attribute, a role, "all", or a head (layer.head). Gain 1 changes nothing, gain 0 puts a head at its
        mean; gains of an earlier call are replaced. Head outputs of the last images are kept, so that other gains for
        the same image cost a product. Roles and means are those of the backbone's role map; `head-gains` has means of
        its own.
        """
        if not isinstance(gains, Mapping | None):
            raise DearError(f"Gains are a mapping such as {{'texture': 0}}, or texture=0, not {gains!r}.")
        names = {**(gains or {}), **by_name}
        method = self.model
        require_sum(method.backbone)
        chosen = named_gains(names, roles_of(method))
        if method.first_layer <= method.backbone.image.layers:
            raise DearError(NOT_FROZEN)
        own = getattr(method, "head_means", None)
        if own is not None and own.shape == chosen.means.shape:
            chosen = chosen._replace(means=own)
        changed = copy(method)
        changed.backbone = with_gains(method.backbone, chosen)
        predictor = copy(self)
        predictor.model, predictor.gain = changed, names
        return predictor

    def save(self, folder: str | Path) -> None:
        """Writes the adapter with its present classes to a folder that holds none; `dear.load` reads it."""
        if self.gain:
            raise DearError("An adapter does not keep gains: save the model before `with_gain`, and give them again.")
        if (Path(folder) / CONFIG).exists():
            raise DearError(f"{folder} already holds an adapter: choose another folder.")
        save_adapter(Path(folder), self.method, self.model, self.template)

    @property
    def preprocess(self) -> Callable[[Image.Image], Tensor]:
        """The backbone's transform: an RGB picture -> normalised pixels [3, height, width]."""
        return self.model.backbone.preprocess

    def _pixels(self, images: Sequence[ImageLike]) -> Tensor:
        """Normalised pixels [images, 3, height, width]."""
        if not len(images):
            raise DearError("There are no images: give at least one.")
        return torch.stack([self.preprocess(open_image(image)) for image in images])


@torch.no_grad()
def encode_pixels(predictor: Predictor, pixels: Tensor) -> Tensor:
    """Features [images, components, dim] of normalised pixels [images, 3, height, width]."""
    model = predictor.model
    return model.encode_image(model.layer_input(to_device(pixels, model.backbone.device)))


@torch.no_grad()
def logits_and_votes(predictor: Predictor, features: Tensor, inference: str | None = None) -> tuple[Tensor, Tensor]:
    """Logits [images, classes] and votes [images, components, classes] of features [images, components, dim]."""
    model, text = predictor.model, predictor._text
    return model.logits(features, text, check_inference(model, inference)), model.votes(features, text)


def answer_features(predictor: Predictor, features: Tensor, topk: int, inference: str | None = None) -> list[Answer]:
    """One answer per image for features [images, components, dim]."""
    if not isinstance(topk, int) or topk < 1:
        raise DearError(f"topk must be a whole number from 1 on, not {topk!r}.")
    model = predictor.model
    fused, votes = logits_and_votes(predictor, features, inference)
    require_finite({"answer": fused, "votes": votes}, "The answer of the model", LOWER_RATE)
    weights = model.fusion_weights().tolist()
    if inference == DECOUPLED:
        weights = [1.0] + [0.0] * (len(weights) - 1)
    return [
        make_answer(one, each, weights, predictor.classes, model.components, topk)
        for one, each in zip(fused.cpu().double().numpy(), votes.cpu().double().numpy(), strict=True)
    ]


def check_inference(model: Method, name: str | None) -> str:
    """The way of inference by name; None: the usual one."""
    names = inferences(model.components)
    if name is not None and name not in names:
        raise DearError(f"This method answers by {' or '.join(names)}, not by {name}.")
    return name or names[0]


def _part(images: Sequence[ImageLike], start: int) -> list[ImageLike]:
    """Some images from `start` on."""
    with library_errors("The images cannot be read"):  # the sequence is the user's, and may raise anything
        return [images[i] for i in range(start, min(start + _IMAGES_AT_ONCE, len(images)))]


def _is_one(images: Any) -> bool:
    """True for one image; False for a list, a column of a DataFrame, an array of images, or a dataset."""
    if isinstance(images, np.ndarray | Tensor):
        return images.ndim not in (1, 4)
    if isinstance(images, str | bytes | Path | Image.Image | Mapping):
        return True
    return not (hasattr(images, "__iter__") or hasattr(images, "__getitem__"))


def _as_sequence(images: Any) -> Sequence[ImageLike]:
    """Several images as a list; one image as the only one of a list."""
    if isinstance(images, str | Path) and os.path.isdir(images):
        raise DearError(f"{images} is a folder: give its files, such as list(Path({str(images)!r}).rglob('*.jpg')).")
    if hasattr(images, "read"):  # its lines would be taken for images
        raise DearError("An image can't be a stream: give its bytes, such as stream.read().")
    return [images] if _is_one(images) else images_of(images)
