"""Layers whose heads matter: the loss when the contributions of a layer's heads are replaced by their mean.

As in TEXTSPAN's paper, only direct contributions to the image feature are replaced; later layers still see the
picture. So one pass suffices: to replace a layer is to subtract the centred sum of its contributions.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip import Backbone
from dear.core.errors import DearError
from dear.core.metrics import accuracy
from dear.core.table import Table
from dear.data.dataset import Dataset, Picture
from dear.heads.contributions import HeadContributions
from dear.heads.stream import picture_batches

ENOUGH = 0.9  # share of the measure that must be left


@dataclass(frozen=True)
class LayerLosses:
    """The measure (%) without the heads of some layers: `whole` is with all heads.

    `alone[i]` is without the heads of layer i + 1, `up_to[i]` without those of all layers up to it.
    """

    measure: str
    pictures: int
    whole: float
    alone: tuple[float, ...]
    up_to: tuple[float, ...]

    @property
    def first_layer(self) -> int:
        """The last layer before which all heads can be replaced with at least 90% left."""
        replaceable = 0
        while replaceable < len(self.up_to) and self.up_to[replaceable] >= ENOUGH * self.whole:
            replaceable += 1
        return min(replaceable + 1, len(self.up_to))

    def table(self) -> Table:
        table = Table(["layer", "without its heads", "lost", "without all up to it", "lost in all"])
        for layer, (alone, up_to) in enumerate(zip(self.alone, self.up_to, strict=True), 1):
            table.add(layer, alone, self.whole - alone, up_to, self.whole - up_to)
        return table

    def verdict(self) -> str:
        j = self.first_layer
        if j == 1:
            return f"J = 1: without the heads of layer 1 alone, less than {ENOUGH:.0%} of {self.measure} is left."
        return f"J = {j}: without all heads of layers 1 to {j - 1}, {ENOUGH:.0%} of {self.measure} or more is left."

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "first_layer": self.first_layer}


def layer_losses(backbone: Backbone, pictures: Sequence[Picture], dataset: Dataset | None = None) -> LayerLosses:
    """The losses in zero-shot accuracy on the test images of `dataset`, or else in the features of `pictures`.

    The measure of features is the mean cosine with the full feature, both centred, because all features of CLIP have
    much in common.
    """
    contributions = HeadContributions(backbone, 1)
    labels = None
    if dataset is not None:
        pictures = [example.picture for example in dataset.test]
        labels = torch.tensor([example.label for example in dataset.test])
    indices, features, by_layer = [], [], []
    for batch in picture_batches(pictures, backbone.preprocess):
        if batch.indices:
            codes, feature = contributions.codes_and_feature(batch.pixels.to(backbone.device))
            # [images, layers, dim]: the sum over the heads of a layer
            by_layer.append(torch.einsum("nlhc,lhcd->nld", codes, contributions.maps).cpu())
            features.append(feature.cpu())
            indices += batch.indices
    if len(indices) < 2:
        raise DearError(f"Layers can't be judged by {len(indices)} images; give at least two readable ones.")
    whole, layers = torch.cat(features), torch.cat(by_layer)
    centred = (layers - layers.mean(0)).transpose(0, 1)  # [layers, images, dim]
    measure = _mean_cosine(whole)
    if dataset is not None and labels is not None:
        measure = _accuracy(backbone, dataset, labels[indices])
    name = f"zero-shot accuracy on {dataset.name}" if dataset is not None else "the feature (mean cosine, centred)"
    alone = tuple(measure(whole - of_layer) for of_layer in centred)
    up_to = tuple(measure(whole - of_layers) for of_layers in centred.cumsum(0))
    return LayerLosses(name, len(indices), measure(whole), alone, up_to)


def _accuracy(backbone: Backbone, dataset: Dataset, labels: Tensor) -> Callable[[Tensor], float]:
    with torch.no_grad():
        text = F.normalize(backbone.text.encode(dataset.prompts), dim=-1).cpu()
    return lambda features: accuracy(F.normalize(features, dim=-1) @ text.T, labels)


def _mean_cosine(whole: Tensor) -> Callable[[Tensor], float]:
    centred = whole - whole.mean(0)
    return lambda features: 100 * F.cosine_similarity(features - features.mean(0), centred, dim=-1).mean().item()
