"""Training views: each is decided by the seed, the epoch and the image alone, whatever worker makes it."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from dear.data.dataset import Example
from dear.parallel.processes import local_rows

if TYPE_CHECKING:
    from dear.clip import Backbone


def training_view(backbone: "Backbone", crop: float) -> Callable[[Image.Image], Tensor]:
    """RandomResizedCrop that keeps a share from `crop` to 1, bicubic, and a flip; normalised for the backbone."""
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
    """Which examples are in which batch, decided by the seed and the epoch's number."""

    def __init__(self, labels: Sequence[int], seed: int, batch: int, one_class: bool, drop_last: bool) -> None:
        self.labels, self.seed, self.batch, self.one_class = labels, seed, batch, one_class
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
        """Of each batch, [images]."""
        return [torch.tensor([self.labels[index] for index in batch]) for batch in self.of_epoch(epoch)]

    def _cut(self, order: list[int]) -> list[list[int]]:
        cut = [order[start : start + self.batch] for start in range(0, len(order), self.batch)]
        return cut[:-1] if self.drop_last and len(cut) > 1 and len(cut[-1]) < self.batch else cut


class _Views(TorchDataset):
    """Indexed by (epoch, example), so that a view does not depend on who asks, or when."""

    def __init__(
        self, examples: Sequence[Example], view: Callable, clean: Callable | None, views: int, seed: int
    ) -> None:
        self.examples, self.view, self.clean, self.views, self.seed = examples, view, clean, views, seed

    def __getitem__(self, key: tuple[int, int]) -> Tensor:
        epoch, index = key
        picture = self.examples[index].picture.open()
        with torch.random.fork_rng(devices=[]):  # torchvision draws from the global generator
            torch.default_generator.manual_seed(hash((self.seed, epoch, index)))  # alone: torch's own asks all devices
            made = [self.view(picture) for _ in range(self.views)]
        if self.clean is not None:
            made.append(self.clean(picture))
        return torch.stack(made)


def _collate(items: list[Tensor]) -> Tensor:
    """View by view: first the first view of every image, then the second."""
    return torch.stack(items, 1).flatten(0, 1)


class _Sampler:
    """The batches of one epoch after the other, as (epoch, example); of several processes, each has its part."""

    def __init__(self, batches: Batches) -> None:
        self.batches, self.epoch = batches, 0

    def __len__(self) -> int:
        return len(self.batches.of_epoch(self.epoch))

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        return iter(
            [[(self.epoch, index) for index in local_rows(batch)] for batch in self.batches.of_epoch(self.epoch)]
        )


class TrainingData:
    """Batches of fresh views, [views * images, 3, height, width] and labels [images], for any epoch.

    Of several processes each gets the views of its own images, and the labels of all.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        backbone: "Backbone",
        batches: Batches,
        workers: int,
        crop: float = 0.5,
        views: int = 1,
        clean_view: bool = False,
    ) -> None:
        self.sampler = _Sampler(batches)
        clean = backbone.preprocess if clean_view else None
        self.loader = DataLoader(
            _Views(examples, training_view(backbone, crop), clean, views, batches.seed),
            batch_sampler=self.sampler,  # type: ignore[arg-type]  # keys need not be numbers
            collate_fn=_collate,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=backbone.device.type == "cuda",
        )

    def epoch(self, number: int) -> "_Epoch":
        self.sampler.epoch = number
        return _Epoch(self.loader, self.sampler.batches, number)


class _Epoch:
    def __init__(self, loader: DataLoader, batches: Batches, number: int) -> None:
        self.loader, self.labels = loader, batches.labels_of_epoch(number)

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.loader, self.labels, strict=True)
