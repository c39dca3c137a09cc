"""What benchmark cells share, and may forget without a change in any result: the backbone and constant features."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.backbone import Backbone, load_backbone
from dear.backbone.image import TrunkStates, last_third
from dear.data.dataset import Dataset, Example, Picture
from dear.data.loading import evaluation_batches
from dear.data.resolve import resolve_dataset
from dear.runtime import pick_device
from dear.training.states import StateStore


class Workbench:
    """`states` is a folder where trunk states are kept between cells and runs; None: nothing is kept on disk."""

    def __init__(
        self, states: Path | None = None, data_root: str | None = None, device: str = "auto", workers: int = 2
    ) -> None:
        self.states, self.data_root, self.device, self.workers = states, data_root, device, workers
        self._backbones: dict[tuple[str, str | None], Backbone] = {}
        self._features: dict[tuple[str, Picture], Tensor] = {}
        self._datasets: dict[tuple[str, str | None, str | None], Dataset] = {}

    def backbone(self, model: str, pretrained: str | None) -> Backbone:
        if (model, pretrained) not in self._backbones:
            self._backbones.clear()  # one at a time is enough
            self._backbones[model, pretrained] = load_backbone(model, pretrained, device=pick_device(self.device))
        return self._backbones[model, pretrained]

    def dataset(self, name: str, template: str | None, class_names: str | None) -> Dataset:
        key = (name, template, class_names)
        if key not in self._datasets:
            self._datasets[key] = resolve_dataset(name, template, class_names, self.data_root)
        return self._datasets[key]

    def store(self, backbone: Backbone, first_layer: int) -> StateStore | None:
        return StateStore(self.states, backbone, first_layer, self.workers) if self.states else None

    def batches(
        self, backbone: Backbone, first_layer: int, examples: Sequence[Example], title: str
    ) -> Iterator[tuple[Tensor | TrunkStates, Tensor]]:
        """Evaluation images behind or before the trunk, whichever is at hand, and labels."""
        store = self.store(backbone, first_layer)
        found = store.batches(examples, title) if store else evaluation_batches(examples, backbone.preprocess, title)
        for images, labels in found:
            yield images.to(backbone.device), labels

    @torch.no_grad()
    def features(self, backbone: Backbone, examples: Sequence[Example], title: str) -> Tensor:
        """Class features of the untouched backbone, normalised, [images, dim]; each picture is encoded once."""
        tower, weights = backbone.image, backbone.identity.weights
        missing = [e for e in dict.fromkeys(examples) if (weights, e.picture) not in self._features]
        found: list[Tensor] = []
        for images, _ in self.batches(backbone, last_third(tower.layers), missing, title) if missing else ():
            if isinstance(images, TrunkStates):
                found.append(tower.project(images.frozen_cls).cpu())
            else:
                found.append(tower.encode(images).cpu())
        for example, feature in zip(missing, torch.cat(found) if found else (), strict=True):
            self._features[weights, example.picture] = F.normalize(feature, dim=-1)
        return torch.stack([self._features[weights, e.picture] for e in examples]).to(backbone.device)
