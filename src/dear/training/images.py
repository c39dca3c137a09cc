"""Where a method's images come from: decoded anew, or kept behind the layers that nothing learned reaches."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dear.clip import Backbone
from dear.clip.image import CachedStates
from dear.core.errors import DearError
from dear.data.augment import Batches, TrainingData
from dear.data.dataset import Dataset, Example, ImageFile, Picture
from dear.data.loading import evaluation_batches
from dear.methods.base import Images, Method
from dear.training.cache import KeptViews, KVCache, StateStore
from dear.training.config import TrainConfig


class ImageSource:
    """Of one backbone. `states` is a folder where trunk states are kept between runs; None: nothing is kept on disk.

    `exact`: fresh training views are made of whole photos; otherwise of large ones as `open_picture` reduces them.
    """

    def __init__(self, backbone: Backbone, states: Path | None = None, workers: int = 2, exact: bool = True) -> None:
        self.backbone, self.states, self.workers, self.exact = backbone, states, workers, exact
        self._cls: dict[Picture, Tensor] = {}  # CLS behind the untouched tower: small, and asked for by many methods
        self._held = KVCache()

    def evaluation(self, examples: Sequence[Example], model: Method, title: str) -> Iterator[tuple[Any, Tensor]]:
        """What `model.trunk` takes, and labels, in order: what it makes of them itself where that is held."""
        if self.states is None or model.constant is None:
            return self.images(examples, model.first_layer, title)
        store = StateStore(self.states, self.backbone, model.first_layer, self.workers)
        return store.batches(examples, title, held=self._held.reader(store, model.reads, model.constant))

    def images(
        self, examples: Sequence[Example], first_layer: int, title: str, batch: int = 64
    ) -> Iterator[tuple[Images, Tensor]]:
        """Images as evaluation sees them, before or behind the trunk, whichever is at hand, and labels, in order."""
        if first_layer > self.backbone.image.layers:
            yield from self._behind(examples, title, batch)
            return
        for images, labels in self._found(examples, first_layer, title, batch):
            yield images.to(self.backbone.device), labels

    def training(self, examples: Sequence[Example], model: Method, train: TrainConfig) -> TrainingData | KeptViews:
        """Fresh views in every epoch; or, with `train.fixed_views`, so many fixed ones, their states kept.

        The images as they are need no new views: their states are kept on disk, or as far as they fit in memory.
        """
        if not train.views and not train.clean_view:
            raise DearError("With --views 0 there is nothing to train on but the image as it is: add --clean-view.")
        labels = [e.label for e in examples]
        batches = Batches(labels, train.seed, train.batch, train.order == "one_class", train.drop_last)
        store = StateStore(self.states, self.backbone, model.first_layer, self.workers, train.crop)
        if not train.fixed_views and (train.views or not store.has_room(len(examples))):
            if train.views and not self.exact:
                examples = [replace(e, picture=self._reduced(e.picture)) for e in examples]
            return TrainingData(
                examples, self.backbone, batches, self.workers, train.crop, train.views, train.clean_view
            )
        held = None if model.constant is None else self._held.reader(store, model.reads, model.constant)
        return KeptViews(examples, store, batches, train.fixed_views, train.views, train.clean_view, held)

    def _reduced(self, picture: Picture) -> Picture:
        return replace(picture, side=max(self.backbone.image.image_size)) if isinstance(picture, ImageFile) else picture

    def _found(
        self, examples: Sequence[Example], first_layer: int, title: str, batch: int
    ) -> Iterator[tuple[Images, Tensor]]:
        if self.states is None:
            return evaluation_batches(examples, self.backbone.preprocess, title, batch)
        return StateStore(self.states, self.backbone, first_layer, self.workers).batches(examples, title, batch)

    def _behind(self, examples: Sequence[Example], title: str, batch: int) -> Iterator[tuple[Images, Tensor]]:
        tower, device = self.backbone.image, self.backbone.device
        missing = [e for e in dict.fromkeys(examples) if e.picture not in self._cls]
        made: list[Tensor] = []
        with torch.no_grad():
            for images, _ in self._found(missing, tower.layers + 1, title, batch) if missing else ():
                if isinstance(images, CachedStates):
                    made += images.frozen_cls
                else:
                    made += tower.read_cls(tower.enter(tower.embed(images.to(device)), 1)).cpu()
        self._cls |= {e.picture: cls for e, cls in zip(missing, made, strict=True)}
        for start in range(0, len(examples), batch):
            part = examples[start : start + batch]
            cls = torch.stack([self._cls[e.picture] for e in part]).to(device)
            yield CachedStates(cls[:, None], cls), torch.tensor([e.label for e in part])


class DatasetImages:
    """What a method may look at before training (`dear.methods.base.LabelledImages`)."""

    def __init__(
        self, data: Dataset, source: ImageSource, first_layer: int, views: TrainingData | KeptViews | None = None
    ) -> None:
        """`views`: what it will be trained on; where that keeps the images as they are, they are shown from there."""
        self.classes, self.template = data.classes, data.template
        self._data, self._source, self._first = data, source, first_layer
        self._kept = views.store if isinstance(views, KeptViews) and views.clean_view else None

    def train(self) -> Iterator[tuple[Images, Tensor]]:
        if self._kept is not None:
            return self._kept.batches(self._data.train, "training images")
        return self._source.images(self._data.train, self._first, "training images")

    def val(self) -> Iterator[tuple[Images, Tensor]]:
        return self._source.images(self._data.val, self._first, "validation images")
