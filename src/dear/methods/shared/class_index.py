"""For methods that keep something of each training class: which of the classes asked for are among these."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dear.methods.base import Images, Method


def positions(trained: Sequence[str], asked: Sequence[str]) -> list[int | None]:
    """Where each class that is asked for stands among those trained on. Names alone would not do: ImageNet has two
    that it gives to two classes each."""
    if tuple(trained) == tuple(asked):
        return list(range(len(asked)))
    place = {name: i for i, name in enumerate(trained)}
    return [place.get(name) for name in asked]


@torch.no_grad()
def frozen_features(method: Method, batches: Iterator[tuple[Images, Tensor]]) -> tuple[Tensor, Tensor]:
    """Class features [images, dim], normalised, and labels [images] of images that may be looked at."""
    device = method.backbone.device
    found = [(method.frozen_image(method.trunk(images)), labels.to(device)) for images, labels in batches]
    if not found:
        return torch.empty(0, method.backbone.dim, device=device), torch.empty(0, dtype=torch.long, device=device)
    features, labels = zip(*found, strict=True)
    return torch.cat(features), torch.cat(labels)
