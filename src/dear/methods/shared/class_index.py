"""For methods that store something per training class: the positions of other class names among these."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dear.clip import Backbone
from dear.clip.layer_input import Images
from dear.core.config import Config as Settings
from dear.core.errors import DearError
from dear.core.runtime import once
from dear.methods.base import Method


def positions(trained: Sequence[str], names: Sequence[str]) -> list[int | None]:
    """The index of each name among the trained classes, None if absent.

    Equal lists map one to one, because ImageNet has two names twice.
    """
    if tuple(trained) == tuple(names):
        return list(range(len(names)))
    index = {name: i for i, name in enumerate(trained)}
    return [index.get(name) for name in names]


class PositionRows:
    """`positions` of the current class names as an index on the device, -1 if absent; computed when names change."""

    def __init__(self) -> None:
        self._rows: dict[tuple[tuple[str, ...], tuple[str, ...]], Tensor] = {}

    def __call__(self, trained: Sequence[str], names: Sequence[str], device: torch.device) -> Tensor:
        """[names]"""
        key = tuple(trained), tuple(names)
        if key not in self._rows:
            self._rows.clear()

        def compute() -> Tensor:
            rows = [-1 if position is None else position for position in positions(*key)]
            return torch.tensor(rows, dtype=torch.long, device=device)

        return once(self._rows, key, compute)


class TrainedClasses(Method):
    """A method that can only answer the classes it was trained on."""

    trained: tuple[str, ...] = ()

    def __init__(self, backbone: Backbone, config: Settings) -> None:
        super().__init__(backbone, config)
        self._rows = PositionRows()

    def trained_rows(self, names: Sequence[str]) -> Tensor:
        """The rows of these names among the trained classes, [names]."""
        return self._rows(self.trained, names, self.backbone.device)

    def can_answer(self, names: Sequence[str]) -> bool:
        return None not in positions(self.trained, names)

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
