"""From which layer on do heads matter? Replace what a layer's heads write by its mean, and see what is lost.

As in TEXTSPAN's paper, what a head writes directly into the image feature is replaced; later layers go on seeing the
picture. So one pass suffices, and a replaced layer is a sum taken away.
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
from dear.heads.contributions import HeadReader
from dear.heads.picture_list import picture_batches

KEPT = 0.9
_BATCH = 32


@dataclass(frozen=True)
class LayerLosses:
    """`alone[i]`: what is left without the heads of layer i + 1; `up_to[i]`: without those of all layers up to it.

    In percent, of what `measure` says; `whole` with all heads in place.
    """

    measure: str
    pictures: int
    whole: float
    alone: tuple[float, ...]
    up_to: tuple[float, ...]

    @property
    def first_layer(self) -> int:
        """The last layer before which all heads can be replaced and at least 90% is kept."""
        kept = [layer for layer, value in enumerate(self.up_to, 1) if value >= KEPT * self.whole]
        ahead = 0
        while ahead + 1 in kept:
            ahead += 1
        return min(ahead + 1, len(self.up_to))

    def table(self) -> Table:
        table = Table(["layer", "without its heads", "lost", "without all up to it", "lost in all"])
        for layer, (alone, up_to) in enumerate(zip(self.alone, self.up_to, strict=True), 1):
            table.add(layer, alone, self.whole - alone, up_to, self.whole - up_to)
        return table

    def verdict(self) -> str:
        j = self.first_layer
        if j == 1:
            return f"J = 1: without the heads of layer 1 alone, less than {KEPT:.0%} of {self.measure} is left."
        return f"J = {j}: without all heads of layers 1 to {j - 1}, {KEPT:.0%} of {self.measure} or more is left."

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "first_layer": self.first_layer}


def layer_losses(backbone: Backbone, pictures: Sequence[Picture], dataset: Dataset | None = None) -> LayerLosses:
    """By zero-shot accuracy on the test images of `dataset`, or else by how near the features of `pictures` stay.

    Near: the mean cosine with the full feature, both centred, since all features of CLIP have much in common.
    """
    reader = HeadReader(backbone, 1)
    labels = None
    if dataset is not None:
        pictures = [example.picture for example in dataset.test]
        labels = torch.tensor([example.label for example in dataset.test])
    places, features, written = [], [], []
    for batch in picture_batches(pictures, backbone.preprocess, _BATCH):
        if batch.indices:
            codes, of_batch = reader.read(batch.pixels.to(backbone.device))
            # [images, layers, dim]: all heads of a layer together
            written.append(torch.einsum("nlhc,lhcd->nld", codes, reader.maps).cpu())
            features.append(of_batch.cpu())
            places += batch.indices
    if len(places) < 2:
        raise DearError(f"Layers can't be judged by {len(places)} images; give at least two that can be read.")
    whole, layers = torch.cat(features), torch.cat(written)
    moved = (layers - layers.mean(0)).transpose(0, 1)  # [layers, images, dim]: what is about the picture itself
    measure = (
        _accuracy(backbone, dataset, labels[places]) if dataset is not None and labels is not None else _nearness(whole)
    )
    name = f"zero-shot accuracy on {dataset.name}" if dataset is not None else "the feature (mean cosine, centred)"
    alone = tuple(measure(whole - of_layer) for of_layer in moved)
    up_to = tuple(measure(whole - together) for together in moved.cumsum(0))
    return LayerLosses(name, len(places), measure(whole), alone, up_to)


def _accuracy(backbone: Backbone, dataset: Dataset, labels: Tensor) -> Callable[[Tensor], float]:
    with torch.no_grad():
        text = F.normalize(backbone.text.encode(dataset.prompts), dim=-1).cpu()
    return lambda features: accuracy(F.normalize(features, dim=-1) @ text.T, labels)


def _nearness(whole: Tensor) -> Callable[[Tensor], float]:
    centred = whole - whole.mean(0)
    return lambda features: 100 * F.cosine_similarity(features - features.mean(0), centred, dim=-1).mean().item()
