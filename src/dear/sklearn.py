"""`DearClassifier`: a scikit-learn estimator on image files, or on features (needs scikit-learn).

from dear.sklearn import DearClassifier
cross_val_score(DearClassifier(model="ViT-B-16", pretrained="openai"), paths, labels)
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor

from dear.clip import load_backbone
from dear.core.errors import DearError, needing, os_errors_as_dear_errors, warn
from dear.core.names import AUTO
from dear.core.runtime import caller_random_state
from dear.data.dataset import Example
from dear.data.memory import labelled
from dear.data.prompts import check_class_names, check_template
from dear.methods.base import Method, NoSettings
from dear.methods.registry import CLOSED_FORMS, ZERO_SHOT, find_method
from dear.methods.shared.closed_form import ClosedForm, CorrectionHead
from dear.methods.shared.per_class import frozen_features
from dear.training.images import ImageSource
from dear.trials.fit import ALONE, cache_folder
from dear.trials.outcome import LEAVE_ONE_OUT
from dear.trials.selection import select

with needing("DearClassifier needs scikit-learn 1.6", "'dear-vlm[sklearn]'"):
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, check_X_y, validate_data

TEMPERATURE = 100.0  # CLIP's


class DearClassifier(ClassifierMixin, BaseEstimator):
    """Zero-shot CLIP and the labelled images together, without training: GDA, ProKeR or SS-Text.

    Parameters
    ----------
    method : one of gda, proker and ss-text; "auto" takes the best of them by leave-one-out on the images of `fit`.
    model, pretrained : the backbone, as in `dear.fit`. None: X holds features of images, [images, dim], of any length.
    template : the prompt of a class, with {} for its name; classes must then be names.
    text : class features [classes, dim], in the order of the sorted class names, for X of features. None: no texts.
    cache : folder for encoded images (default: the user's cache folder).
    device, precision : as in `dear.load`.

    Attributes after `fit`: classes_, method_ (its name), head_, text_, and comparison_ with method="auto".
    """

    def __init__(
        self,
        method: str = AUTO,
        model: str | None = None,
        pretrained: str | None = None,
        template: str = "a photo of a {}.",
        text: Any = None,
        cache: str | None = None,
        device: str = "auto",
        precision: str = "auto",
    ) -> None:
        self.method, self.model, self.pretrained, self.template = method, model, pretrained, template
        self.text, self.cache, self.device, self.precision = text, cache, device, precision

    def fit(self, X: Any, y: Any) -> "DearClassifier":
        """X: image files (or PIL images, arrays), or features if `model` is None; y: their classes."""
        if self.method != AUTO and self.method not in CLOSED_FORMS:
            raise DearError(f"DearClassifier has the methods {', '.join((AUTO, *CLOSED_FORMS))}, not {self.method}.")
        if self._has_features(X):
            X, y = validate_data(self, X, y, ensure_min_samples=2, dtype=np.float64)
        else:
            X, y = _images(X), check_X_y(np.zeros((len(X), 1)), y)[1]
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("The labels have one class: the classifier needs images of at least two classes.")
        labels, features = torch.from_numpy(numbers), self._features(X)
        self.text_ = self._texts(features.shape[1])
        with caller_random_state():
            names = CLOSED_FORMS if self.method == AUTO else (self.method,)
            heads = {name: self._head(name, features, labels) for name in names}
        self.method_ = ALONE if ALONE in heads else next(iter(heads))
        if len(heads) > 1 and len(labels.unique()) < len(labels):
            left_out = {
                name: (head.left_out, LEAVE_ONE_OUT) for name, head in heads.items() if head.left_out is not None
            }
            self.comparison_ = select(left_out, labels, [str(name) for name in self.classes_])
            self.method_ = self.comparison_.chosen
        self.head_ = heads[self.method_]
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Calibrated probabilities [images, classes]."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64) if self._has_features(X) else _images(X)
        with torch.no_grad():
            return self.head_(self._features(X), self.text_).softmax(1).numpy()

    def predict(self, X: Any) -> np.ndarray:
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(1)]

    def _has_features(self, X: Any) -> bool:
        """Whether X holds features, and not images; refuses files if there is no backbone for them."""
        first = next(iter(X), None) if isinstance(X, list | tuple | np.ndarray) else X
        if self.model is None and isinstance(first, str | Path | bytes | Image):
            raise DearError("X holds images, which need a backbone: give `model`, such as model='ViT-B-16'.")
        return self.model is None

    @torch.no_grad()
    def _head(self, name: str, features: Tensor, labels: Tensor) -> CorrectionHead:
        kind = find_method(name)
        assert issubclass(kind, ClosedForm)
        head = kind.Head(features.shape[1], TEMPERATURE, features)
        head.fit(features.float(), labels, self.text_.float())
        return head

    def _features(self, X: Any) -> Tensor:
        """Normalised features [images, dim] in fp64."""
        features = torch.tensor(X) if self.model is None else self._encode_images(X)
        return torch.nn.functional.normalize(features.double(), dim=1)

    def _texts(self, dim: int) -> Tensor:
        """[classes, dim]; zeros: no zero-shot part."""
        count = len(self.classes_)
        if self.model is not None:
            names = [str(name) for name in self.classes_]
            if all(name.isdecimal() for name in names):
                warn("The classes are numbers, which say nothing to CLIP: give their names as y.")
            _, method = self._encoder()
            classes = method.encode_classes(check_class_names(names), check_template(self.template))
            return method.encode_text(classes).cpu().double()
        if self.text is None:
            return torch.zeros(count, dim, dtype=torch.float64)
        try:
            text = torch.from_numpy(np.array(self.text, dtype=np.float64))
        except (TypeError, ValueError):
            raise DearError("`text` must be an array of numbers, [classes, dim].") from None
        if not text.isfinite().all():
            raise DearError("`text` holds NaN or infinite numbers: give finite class features.")
        if text.shape != (count, dim):
            raise DearError(f"`text` must have the shape {[count, dim]}, not {list(text.shape)}.")
        return torch.nn.functional.normalize(text, dim=1)

    def _encode_images(self, images: Sequence[Any]) -> Tensor:
        source, method = self._encoder()
        source.store.files.clear()  # between two calls a file may change
        examples = [Example(picture, 0) for picture in labelled(images, [0] * len(images), "X").pictures]
        return frozen_features(method, source.images(examples, method, "images"))[0].cpu()

    def _encoder(self) -> tuple[ImageSource, Method]:
        assert self.model is not None
        return _encoder(self.model, self.pretrained, self.device, self.precision, self.cache)


def _images(X: Any) -> list[Any]:
    """X as a list of images; refuses one image alone, and a table."""
    if isinstance(X, str | bytes | Path | Image) or hasattr(X, "read"):
        raise DearError("X is one image: give a list of images, even of one.")
    if hasattr(X, "columns") or (isinstance(X, np.ndarray) and X.ndim == 2):
        raise DearError("X is a table: give one column of it, such as X['path'] or X[:, 0].")
    return list(X)


@lru_cache(maxsize=1)
def _encoder(model: str, pretrained: str | None, device: str, precision: str, cache: str | None) -> Any:
    """Images, of which what is encoded is kept, and zero-shot CLIP, once for all clones that cross-validation makes."""
    with os_errors_as_dear_errors():
        backbone = load_backbone(model, pretrained, device=device, precision=precision)
        source = ImageSource(backbone, cache_folder(None if cache is None else Path(cache)))
        return source, find_method(ZERO_SHOT)(backbone, NoSettings())
