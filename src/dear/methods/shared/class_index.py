"""For methods that store something per training class: the positions of other class names among these."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dear.clip.layer_input import Images
from dear.methods.base import Method


def positions(trained: Sequence[str], names: Sequence[str]) -> list[int | None]:
    """The index of each name among the trained classes, None if absent.

    Equal lists map one to one, because ImageNet has two names twice.
    """
    if tuple(trained) == tuple(names):
        return list(range(len(names)))
    index = {name: i for i, name in enumerate(trained)}
    return [index.get(name) for name in names]


@torch.no_grad()
def frozen_features(method: Method, batches: Iterator[tuple[Images, Tensor]]) -> tuple[Tensor, Tensor]:
    """Frozen class features [images, dim], normalised, and labels [images]."""
    device, tower = method.backbone.device, method.backbone.image
    features = [tower.visual.proj.new_empty(0, method.backbone.dim)]
    labels = [torch.empty(0, dtype=torch.long, device=device)]
    for images, truth in batches:
        features.append(tower.frozen_feature(method.layer_input(images)))
        labels.append(truth.to(device))
    return torch.cat(features), torch.cat(labels)
