"""The images of a method: decoded, or cached after the constant layers."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dear.clip import Backbone
from dear.clip.layer_input import CachedHeads, CachedStates, Images
from dear.core.progress import phase
from dear.core.runtime import HostRows, to_device
from dear.core.words import counted
from dear.data.augment import CLEAN, RANDOM, Batches, FreshViews
from dear.data.dataset import Dataset, Example, ImageFile, Picture
from dear.data.loading import evaluation_batches
from dear.methods.base import Method
from dear.methods.optional import ReadsHeads, views_of
from dear.methods.registry import ZERO_SHOT, find_method
from dear.training.cache import CachedViews, KVCache, KVReader, StateCache
from dear.training.config import FRESH, NONE, TrainConfig, fixed_views


class ImageSource:
    """Images for one backbone. `cache`: a folder for states of the constant layers, shared by runs; None: no folder.

    `fast_decode`: fresh training views of large photos are decoded at a reduced size.
    """

    def __init__(
        self, backbone: Backbone, cache: Path | None = None, workers: int | None = None, fast_decode: bool = False
    ) -> None:
        self.backbone, self.cache, self.workers, self.fast_decode = backbone, cache, workers, fast_decode
        # After the frozen tower, by `ReadsHeads.heads_from`: CLS, and head outputs; small, and needed by many methods.
        self._kept: dict[int | None, dict[Picture, tuple[Tensor, ...]]] = {}
        self._kv = KVCache()
        self._keys: dict[Picture, str] = {}  # of cached states

    def encode(self, examples: Sequence[Example], models: Sequence[Method], title: str = "") -> None:
        """Computes and keeps what the methods need of these images as they are; later calls for them run no pass.

        The methods need not be fitted. `title` is shown beside the progress bar.
        """
        title = title or f"encoding {counted(len(examples), 'image')}"
        with phase(title, has_bar=True):
            for model in models:
                if model.first_layer > self.backbone.image.layers:
                    for _ in self.images(examples, model, "encoding"):
                        pass

    def evaluation(self, examples: Sequence[Example], model: Method, title: str) -> Iterator[tuple[Any, Tensor]]:
        """Inputs for `model.layer_input` and labels, in order; cached results where available."""
        if self.cache is None or not is_constant(model):
            return self.images(examples, model, title)
        states = self._states(model.first_layer)
        return states.batches(examples, title, reader=self._kv_reader(states, model))

    def images(
        self, examples: Sequence[Example], model: Method, title: str, batch: int = 64
    ) -> Iterator[tuple[Images, Tensor]]:
        """Images without augmentation, as cached states if available, else as pixels, and labels, in order."""
        if model.first_layer > self.backbone.image.layers:
            heads_from = model.heads_from if isinstance(model, ReadsHeads) else None
            yield from self._after_tower(examples, heads_from, title, batch)
            return
        for images, labels in self._decoded(examples, model.first_layer, title, batch):
            yield to_device(images, self.backbone.device), labels

    def training(
        self, examples: Sequence[Example], model: Method, train: TrainConfig, epochs: int
    ) -> FreshViews | CachedViews:
        """The views of a step, with the augmentation of `train`; fixed and clean ones come from cached states, if these
        fit on disk or in memory."""
        batches = training_batches(examples, train)
        states = self._states(model.first_layer, train.crop)
        views = views_of(model)
        if train.augment == NONE:
            views = (CLEAN,) * len(views)
        if train.augment == FRESH or (train.augment == NONE and not states.has_room(len(examples))):
            if self.fast_decode and train.augment == FRESH:
                examples = [replace(e, picture=self._reduced(e.picture)) for e in examples]
            return FreshViews(examples, self.backbone, batches, self.workers, train.crop, views)
        if not is_constant(model):
            self._kv.clear()  # of an earlier method
        reader = self._kv_reader(states, model) if is_constant(model) else None
        # No more fixed views are computed than so many epochs use.
        fixed = min(fixed_views(train.augment), epochs * views.count(RANDOM))
        return CachedViews(examples, states, batches, fixed, views, reader)

    def _states(self, first_layer: int, crop: float = 0.5) -> StateCache:
        return StateCache(self.cache, self.backbone, first_layer, self.workers, crop, self._keys)

    def _kv_reader(self, states: StateCache, model: Method) -> KVReader:
        tower, masks = self.backbone.image, model.masks
        assert masks is not None

        def compute(cached: CachedStates) -> Any:
            return tower.cached_kv(tower.layer_input(cached, model.first_layer), masks)

        return self._kv.reader(states, compute, masks.visible_heads)

    def _reduced(self, picture: Picture) -> Picture:
        return replace(picture, side=max(self.backbone.image.image_size)) if isinstance(picture, ImageFile) else picture

    def _decoded(
        self, examples: Sequence[Example], first_layer: int, title: str, batch: int
    ) -> Iterator[tuple[Images, Tensor]]:
        if self.cache is None:
            pinned = self.backbone.device.type == "cuda"
            return evaluation_batches(examples, self.backbone.preprocess, title, batch, self.workers, pinned)
        return self._states(first_layer).batches(examples, title, batch)

    def _after_tower(
        self, examples: Sequence[Example], heads_from: int | None, title: str, batch: int
    ) -> Iterator[tuple[Images, Tensor]]:
        tower, device = self.backbone.image, self.backbone.device
        kept = self._kept.setdefault(heads_from, {})
        missing = [e for e in dict.fromkeys(examples) if e.picture not in kept]
        parts = [HostRows()] if heads_from is None else [HostRows(), HostRows()]  # CLS, and head outputs
        for images, _ in self._decoded(missing, heads_from or tower.layers + 1, title, batch) if missing else ():
            images = to_device(images, device)
            if heads_from is None:
                cls = tower.layer_input(images, tower.layers + 1).frozen_cls
                assert cls is not None
                parts[0].add(cls)
            else:
                for rows, of_batch in zip(parts, tower.head_outputs(images, heads_from), strict=True):
                    rows.add(of_batch)
        if missing:
            found = zip(missing, *(rows.all() for rows in parts), strict=True)
            kept |= {e.picture: tuple(tensors) for e, *tensors in found}
        for start in range(0, len(examples), batch):
            part = examples[start : start + batch]
            by_kind = zip(*(kept[e.picture] for e in part), strict=True)
            cls, *outputs = (to_device(torch.stack(tensors), device) for tensors in by_kind)
            after = CachedHeads(cls, *outputs) if outputs else CachedStates(cls[:, None], cls)
            yield after, torch.tensor([e.label for e in part])


def encode(examples: Sequence[Example], source: ImageSource) -> None:
    """Short form of `ImageSource.encode` for methods that need the class feature alone."""
    kind = find_method(ZERO_SHOT)
    source.encode(examples, [kind(source.backbone, kind.Config())], f"encoding {counted(len(examples), 'image')}")


def training_batches(examples: Sequence[Example], train: TrainConfig) -> Batches:
    labels = [e.label for e in examples]
    return Batches(labels, train.seed, train.batch, train.order == "one_class", train.drop_last)


def is_constant(model: Method) -> bool:
    """Whether no original token attends to a learned one, so that keys and values of an image can be cached."""
    return model.masks is not None and model.masks.visible_heads is not None


class DatasetImages:
    """The labelled images for hooks (`dear.methods.base.LabelledImages`)."""

    def __init__(
        self, data: Dataset, source: ImageSource, model: Method, views: FreshViews | CachedViews | None = None
    ) -> None:
        """`views`: those of training; their cached clean images are used, if there are any."""
        self.classes, self.template = data.classes, data.template
        self.shots = max(Counter(e.label for e in data.train).values(), default=0)
        self._data, self._source, self._model = data, source, model
        self._cached = views.states if isinstance(views, CachedViews) and CLEAN in views.views else None

    def train(self) -> Iterator[tuple[Images, Tensor]]:
        if self._cached is None:
            yield from self._source.images(self._data.train, self._model, "training images")
            return
        for images, labels in self._cached.batches(self._data.train, "training images"):
            yield to_device(images, self._source.backbone.device), labels

    def val(self) -> Iterator[tuple[Images, Tensor]]:
        return self._source.images(self._data.val, self._model, "validation images")
