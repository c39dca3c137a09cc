"""Methods that keep something for each class they were trained on."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from dear.clip import Backbone
from dear.clip.layer_input import Images
from dear.core.config import Config as Settings
from dear.core.errors import DearError
from dear.core.runtime import once
from dear.methods.base import Method
from dear.methods.shared.fair_lists import beside, share_weights

if TYPE_CHECKING:
    from typing_extensions import Self


class PerClass(Method):
    """A method whose tensors have a row for each training class, and are of other sizes in each adapter."""

    trained: tuple[str, ...] = ()
    fair: ClassVar[bool] = False
    """Whether answers for lists of names with and without labelled images are fair to both (`fair_lists`)."""
    set_sizes: Callable[..., None]
    """Sets empty tensors: `set_sizes(number of training classes, **sizes())`."""

    def __init__(self, backbone: Backbone, config: Settings) -> None:
        super().__init__(backbone, config)
        self._rows: dict[tuple[tuple[str, ...], tuple[str, ...]], Tensor] = {}
        self.set_sizes(0)

    def sizes(self) -> dict[str, int]:
        """Sizes besides the number of training classes, such as that of images kept: `shots`."""
        return {}

    def extra_state(self) -> dict[str, Any]:
        return {"classes": list(self.trained), **self.sizes()}

    @classmethod
    def restore(cls, backbone: Backbone, config: Settings, extra_state: Mapping[str, Any]) -> "Self":
        method, sizes = cls(backbone, config), dict(extra_state)
        method.trained = tuple(sizes.pop("classes"))
        method.set_sizes(len(method.trained), **sizes)
        return method

    def trained_rows(self, names: Sequence[str]) -> Tensor:
        """The index of each name among the training classes, -1 if absent, [names]; kept on the device.

        Equal lists map one to one, because ImageNet has two names twice.
        """
        key = tuple(self.trained), tuple(names)
        if key not in self._rows:
            self._rows.clear()

        def compute() -> Tensor:
            index = {name: row for row, name in enumerate(self.trained)}
            rows = range(len(names)) if key[0] == key[1] else [index.get(name, -1) for name in names]
            return torch.tensor(list(rows), dtype=torch.long, device=self.backbone.device)

        return once(self._rows, key, compute)

    def fair_logits(self, adapted: Tensor, plain: Tensor, offsets: Tensor | float = 0.0) -> Tensor:
        """`adapted` [images, names] for the current names, fair to those that were not trained (`beside`).

        `plain`: logits of CLIP; `offsets` for each of `SHARES`.
        """
        names = self.classes.names
        new = len([name for name in names if name not in self.trained])
        if new in (0, len(names)):
            return adapted
        if isinstance(offsets, Tensor):
            offsets = offsets @ offsets.new_tensor(share_weights(new / len(names)))
        return beside(adapted, plain, self.trained_rows(names) < 0, offsets)

    def own_or(self, own: Tensor, names: Sequence[str], others: Callable[[], Tensor]) -> Tensor:
        """Rows of `own` [training classes, dim] for names that were trained, of `others` [names, dim] for the rest.

        `others` is computed only if needed.
        """
        if tuple(names) == self.trained:
            return own
        if set(names).isdisjoint(self.trained):
            return others()
        rows = self.trained_rows(names)
        return own[rows] if set(names) <= set(self.trained) else torch.where(rows[:, None] < 0, others(), own[rows])


class OnlyTrained(PerClass):
    """A method that can only answer the classes it was trained on."""

    def can_answer(self, names: Sequence[str]) -> bool:
        return set(names) <= set(self.trained)

    def set_classes(self, names: Sequence[str], template: str) -> None:
        if self.trained and not self.can_answer(names):
            raise DearError("This method can only answer the classes it was trained on: choose another method.")
        super().set_classes(names, template)


@torch.no_grad()
def frozen_features(method: Method, batches: Iterator[tuple[Images, Tensor]]) -> tuple[Tensor, Tensor]:
    """Frozen class features [images, dim], normalised, and labels [images]."""
    device, tower = method.backbone.device, method.backbone.image
    features = [tower.like.new_empty(0, method.backbone.dim)]
    labels = [torch.empty(0, dtype=torch.long, device=device)]
    for images, truth in batches:
        features.append(tower.frozen_feature(method.layer_input(images)))
        labels.append(truth.to(device))
    return torch.cat(features), torch.cat(labels)
