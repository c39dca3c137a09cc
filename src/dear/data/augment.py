"""Training views: each is decided by the seed, the epoch and the image alone, whatever worker makes it."""

from collections.abc import Callable, Sequence

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Sampler
from torch.utils.data import Dataset as TorchDataset
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from dear.backbone import Backbone
from dear.data.dataset import Example


def training_view(backbone: Backbone) -> Callable[[Image.Image], Tensor]:
    """RandomResizedCrop with scale (0.5, 1), bicubic, and a flip; normalised as the backbone wants it."""
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(
                backbone.image.image_size, (0.5, 1.0), interpolation=InterpolationMode.BICUBIC
            ),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(backbone.mean, backbone.std),
        ]
    )


class _Views(TorchDataset):
    """Indexed by (epoch, example), so that a view does not depend on who asks, or when."""

    def __init__(self, examples: Sequence[Example], view: Callable[[Image.Image], Tensor], seed: int) -> None:
        self.examples, self.view, self.seed = examples, view, seed

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, int]:
        epoch, index = key
        example = self.examples[index]
        with torch.random.fork_rng(devices=[]):  # torchvision draws from the global generator
            torch.manual_seed(hash((self.seed, epoch, index)))
            return self.view(example.picture.open()), example.label


def epoch_order(count: int, seed: int, epoch: int) -> list[int]:
    """The order of one epoch's examples."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(hash((seed, epoch)))).tolist()


class _Epochs(Sampler):
    """The order of one epoch after the other, each decided by the seed and its number."""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed, self.epoch = count, seed, 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self):
        return iter([(self.epoch, index) for index in epoch_order(self.count, self.seed, self.epoch)])


class TrainingData:
    """Shuffled batches of fresh views, [batch, 3, height, width] and labels [batch], for any epoch."""

    def __init__(self, examples: Sequence[Example], backbone: Backbone, seed: int, batch: int, workers: int) -> None:
        self.sampler = _Epochs(len(examples), seed)
        self.loader = DataLoader(
            _Views(examples, training_view(backbone), seed),
            batch,
            sampler=self.sampler,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=backbone.device.type == "cuda",
        )

    def epoch(self, number: int) -> DataLoader:
        self.sampler.epoch = number
        return self.loader
