"""The images of a method: decoded, or from the store of what the constant layers made of them."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from dear.clip import Backbone
from dear.clip.layer_input import Images
from dear.core.progress import Progress, phase
from dear.core.runtime import to_device
from dear.core.words import counted
from dear.data.augment import CLEAN, RANDOM, Batches, Epoch, FreshViews
from dear.data.dataset import Dataset, Example, ImageFile, Picture
from dear.data.loading import evaluation_batches
from dear.methods.base import Method
from dear.methods.optional import views_of
from dear.parallel import processes
from dear.training.config import FRESH, NONE, TrainConfig, fixed_views
from dear.training.shown import Shown, Stage
from dear.training.store import ImageStore


class ImageSource:
    """Images for one backbone, beside the store of what the frozen tower made of them. `cache`: its folder, shared by
    runs; None: it is in memory.

    `fast_decode`: fresh training views of large photos are decoded at a reduced size.
    """

    def __init__(
        self, backbone: Backbone, cache: Path | None = None, workers: int | None = None, fast_decode: bool = False
    ) -> None:
        self.backbone, self.workers, self.fast_decode = backbone, workers, fast_decode
        self.store = ImageStore(backbone, cache, workers)

    def encode(self, examples: Sequence[Example], needs: Iterable[Method | Stage], title: str = "") -> None:
        """Computes and keeps what methods need of these images as they are, in one pass; later calls need none.

        `needs`: methods, which need not be fitted, or their stages. States are left out if memory has no room for
        them, or no layer is before them. `title` is shown beside the progress bar.
        """
        stages = {need if isinstance(need, Stage) else Stage.of(need) for need in needs}
        shown = self.store.shown(examples)
        large = {stage for stage in stages if self.store.is_large(stage)}
        stages -= {stage for stage in large if stage.layer == 1 or not self.store.has_room(shown, large)}
        with phase(title or f"encoding {counted(len(examples), 'image')}", has_bar=True):
            self.store.encode(shown, stages, "encoding")

    def evaluation(self, examples: Sequence[Example], model: Method, title: str) -> Iterator[tuple[Images, Tensor]]:
        """Inputs for `model.layer_input` and labels, in order: like `images`, or keys and values where these are
        constant."""
        return self.images(examples, model, title, constant=is_constant(model))

    def images(
        self, examples: Sequence[Example], model: Method, title: str, batch: int = 64, constant: bool = False
    ) -> Iterator[tuple[Images, Tensor]]:
        """Images without augmentation, from the store if they are kept, else as pixels, and labels, in order."""
        shown, stage, device = self.store.shown(examples), Stage.of(model), self.backbone.device
        if not self.store.keeps(shown, stage):
            transform, pinned = self.backbone.preprocess, device.type == "cuda"
            for pixels, labels in evaluation_batches(examples, transform, title, batch, self.workers, pinned):
                yield to_device(pixels, device), labels
            return
        self.store.encode(shown, [stage], title)
        read = self._reader(model) if constant else partial(self.store.read, stage=stage)
        with Progress(title, len(examples)) as bar:
            for start in range(0, len(examples), batch):
                labels = torch.tensor([example.label for example in examples[start : start + batch]])
                yield to_device(read(shown[start : start + batch]), device), labels
                bar.update(len(labels))

    def training(
        self, examples: Sequence[Example], model: Method, train: TrainConfig, epochs: int
    ) -> "FreshViews | CachedViews":
        """The views of a step with the augmentation of `train`; fixed and clean ones come from the store, if
        they fit on disk or in memory."""
        batches, stage, fresh = training_batches(examples, train), Stage.of(model), train.augment == FRESH
        views = views_of(model)
        if train.augment == NONE:
            views = (CLEAN,) * len(views)
        shown = self.store.shown(examples)
        self.store.forget_views([] if fresh else shown)
        if fresh or (train.augment == NONE and not self.store.has_room(shown, [stage], first=True)):
            if self.fast_decode and fresh:
                examples = [replace(e, picture=self._reduced(e.picture)) for e in examples]
            return FreshViews(examples, self.backbone, batches, self.workers, train.crop, views)
        # No more fixed views are computed than so many epochs use.
        fixed = min(fixed_views(train.augment), epochs * views.count(RANDOM))
        for view in (*range(fixed), *([None] if CLEAN in views else [])):
            title = "clean view" if view is None else f"view {view + 1} of {fixed}"
            self.store.encode_together([one.in_view(view, train.crop) for one in shown], stage, title)
        if not is_constant(model):
            self.store.clear_kv()  # of an earlier method
        return CachedViews(shown, self._reader(model), batches, fixed, views, train.crop)

    def _reader(self, model: Method) -> "Reader":
        """Reads a batch from the store, as keys and values where these are constant."""
        if model.masks is not None and is_constant(model):
            return partial(self.store.read_kv, stage=Stage.of(model), masks=model.masks)
        return partial(self.store.read, stage=Stage.of(model))

    def _reduced(self, picture: Picture) -> Picture:
        return replace(picture, side=max(self.backbone.image.image_size)) if isinstance(picture, ImageFile) else picture


def training_batches(examples: Sequence[Example], train: TrainConfig) -> Batches:
    labels = [e.label for e in examples]
    return Batches(labels, train.seed, train.batch, train.order == "one_class", train.drop_last)


def is_constant(model: Method) -> bool:
    """Whether no original token attends to a learned one, so that keys and values of an image can be cached."""
    return model.masks is not None and model.masks.visible_heads is not None


class DatasetImages:
    """The labelled images for hooks (`dear.methods.base.LabelledImages`)."""

    def __init__(self, data: Dataset, source: ImageSource, model: Method) -> None:
        self.classes, self.template = data.classes, data.template
        self.shots = max(Counter(e.label for e in data.train).values(), default=0)
        self._data, self._source, self._model = data, source, model

    def train(self) -> Iterator[tuple[Images, Tensor]]:
        return self._source.images(self._data.train, self._model, "training images")

    def val(self) -> Iterator[tuple[Images, Tensor]]:
        return self._source.images(self._data.val, self._model, "validation images")


Reader = Callable[[Sequence[Shown]], Images]


@dataclass(frozen=True)
class CachedViews:
    """Batches of kept views, in place of `FreshViews`: each epoch uses the next of `fixed` random views."""

    shown: Sequence[Shown]
    read: Reader
    batches: Batches
    fixed: int
    views: tuple[str, ...] = (RANDOM,)
    crop: float = 0.5

    def epoch(self, number: int) -> Epoch:
        count = self.views.count(RANDOM)
        random = iter(range(number * count, (number + 1) * count))
        views = [next(random) % self.fixed if kind == RANDOM else None for kind in self.views]

        def read(batch: Sequence[int]) -> Images:
            """One view after the other, along the batch."""
            part = [self.shown[i] for i in processes.local_rows(batch)]
            return self.read([one.in_view(view, self.crop) for view in views for one in part])

        return Epoch(map(read, self.batches.of_epoch(number)), self.batches, number)
