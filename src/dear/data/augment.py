"""Training views. Each depends on the seed, the epoch and the image alone, whichever worker draws it."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from dear.data import loading
from dear.data.dataset import Example
from dear.parallel.processes import local_rows

if TYPE_CHECKING:
    from dear.clip import Backbone

RANDOM, CLEAN = "random", "clean"
"""Kinds of view: an augmented one, and the image as evaluation sees it."""


def training_view(backbone: "Backbone", crop: float) -> Callable[[Image.Image], Tensor]:
    """A random crop of a share from `crop` to 1, resized by bicubic, and a random flip; normalised for the backbone."""
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(
                backbone.image.image_size, (crop, 1.0), interpolation=InterpolationMode.BICUBIC
            ),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(backbone.mean, backbone.std),
        ]
    )


class Batches:
    """The numbers of the examples in each batch of an epoch, decided by the seed and the epoch."""

    def __init__(self, labels: Sequence[int], seed: int, batch: int, one_class: bool, drop_last: bool) -> None:
        self.labels, self.seed, self.batch = labels, seed, batch
        self.one_class = one_class and max(Counter(labels).values(), default=0) >= batch
        self.drop_last = drop_last and len(labels) >= batch  # a set smaller than a batch is one small step

    def of_epoch(self, epoch: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(hash((self.seed, epoch)))
        order = torch.randperm(len(self.labels), generator=generator).tolist()
        if self.one_class:  # cut each class into batches, then shuffle these
            by_class: dict[int, list[int]] = {}
            for index in order:
                by_class.setdefault(self.labels[index], []).append(index)
            cut = [batch for items in by_class.values() for batch in self._cut(items)]
            return [cut[i] for i in torch.randperm(len(cut), generator=generator).tolist()]
        return self._cut(order)

    def labels_of_epoch(self, epoch: int) -> list[Tensor]:
        """The labels of each batch, [images]."""
        return [torch.tensor([self.labels[index] for index in batch]) for batch in self.of_epoch(epoch)]

    def _cut(self, order: list[int]) -> list[list[int]]:
        cut = [order[start : start + self.batch] for start in range(0, len(order), self.batch)]
        return cut[:-1] if self.drop_last and len(cut) > 1 and len(cut[-1]) < self.batch else cut


def _view_by_view(items: list[Tensor]) -> Tensor:
    """The views of all images as one batch: first the first view of every image, then the second."""
    return torch.stack(items, 1).flatten(0, 1)


class _Sampler:
    """The batches of an epoch as keys (epoch, example); each process of a run gets its part of every batch."""

    def __init__(self, batches: Batches) -> None:
        self.batches, self.epoch = batches, 0

    def __len__(self) -> int:
        return len(self.batches.of_epoch(self.epoch))

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for batch in self.batches.of_epoch(self.epoch):
            yield [(self.epoch, index) for index in local_rows(batch)]


class _Views(TorchDataset):
    """The views of an image by (epoch, example), [views, 3, height, width], whoever asks for them, and whenever."""

    def __init__(self, examples: Sequence[Example], backbone: "Backbone", seed: int, crop: float, kinds: Sequence[str]):
        self.examples, self.seed, self.kinds = examples, seed, kinds
        self.transforms = {RANDOM: training_view(backbone, crop), CLEAN: backbone.preprocess}

    def __getitem__(self, key: tuple[int, int]) -> Tensor:
        epoch, index = key
        picture = self.examples[index].picture.open()
        with torch.random.fork_rng(devices=[]):  # torchvision draws from the global generator
            torch.default_generator.manual_seed(hash((self.seed, epoch, index)))  # alone: torch's own asks all devices
            return torch.stack([self.transforms[kind](picture) for kind in self.kinds])


class FreshViews:
    """Batches of newly drawn views, [views * images, 3, height, width], and labels [images], for any epoch.

    `views` are the kinds of view of each image. Each process of a run gets the views of its own images, and the labels
    of all.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        backbone: "Backbone",
        batches: Batches,
        workers: int | None,
        crop: float = 0.5,
        views: Sequence[str] = (RANDOM,),
    ) -> None:
        self.examples, self.sampler = examples, _Sampler(batches)
        workers = loading.WORKERS if workers is None else workers
        self.loader = DataLoader(
            _Views(examples, backbone, batches.seed, crop, views),
            batch_sampler=self.sampler,  # type: ignore[arg-type]  # keys need not be numbers
            collate_fn=_view_by_view,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=backbone.device.type == "cuda",
            prefetch_factor=4 if workers and backbone.device.type == "cuda" else None,
        )

    def epoch(self, number: int) -> "Epoch":
        self.sampler.epoch = number
        return Epoch(self.loader, self.sampler.batches, number)


class Epoch:
    """The batches of an epoch: images, as `shown` gives them batch by batch, and labels."""

    def __init__(self, shown: Iterable[Any], batches: Batches, number: int) -> None:
        self.shown, self.labels = shown, batches.labels_of_epoch(number)

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        return zip(self.shown, self.labels, strict=True)
