"""Datasets and loaders of torch, and --data torchvision:NAME. Labels are read without decoding images if possible."""

import copy
import sys
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from inspect import signature
from operator import itemgetter
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, Subset
from torch.utils.data import Dataset as TorchDataset
from torchvision import datasets

from dear.core.errors import DearError, first_line
from dear.core.progress import Progress
from dear.data.columns import Mapped
from dear.data.dataset import Dataset
from dear.data.memory import Labelled, as_dataset, labelled, settle, splits_or_whole

_SPLIT_WORDS = {"train": ("train", "trainval"), "val": ("val", "valid"), "test": ("test",)}


def read_torch(data: Any, title: str) -> Labelled | None:
    """Pictures and labels of a torch dataset, a loader, or a sequence of (image, label); None for anything else."""
    if isinstance(data, DataLoader):
        data = data.dataset
    names = _class_names(data)
    if isinstance(data, Subset) and (whole := read_torch(data.dataset, title)) is not None:
        return replace(
            whole,
            pictures=[whole.pictures[i] for i in data.indices],
            labels=[whole.labels[i] for i in data.indices],
        )
    if isinstance(samples := _attribute(data, ("samples", "_samples", "imgs")), list) and all(map(_is_sample, samples)):
        return labelled([path for path, _ in samples], [label for _, label in samples], title, names)
    if (labels := _attribute(data, ("targets", "labels", "_labels", "y"))) is not None:
        return labelled(_without_transform(data), labels, title, names)
    if not hasattr(data, "__iter__") and not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        return None
    return labelled(*_one_pass(data, title), title, names)


def torch_images(data: Any) -> Any:
    """The images of a torch dataset of pairs (image, label), or of its loader; anything else unchanged."""
    if isinstance(data, DataLoader):
        data = data.dataset
    if not isinstance(data, TorchDataset):
        return data
    return (image for image, _ in data) if isinstance(data, IterableDataset) else _without_transform(data)


def _without_transform(dataset: Any) -> Mapped:
    """The images of a dataset of pairs (image, label) as they are stored: the backbone has its own transform."""
    dataset = copy.copy(dataset)
    for name in ("transform", "transforms"):
        if hasattr(dataset, name):
            setattr(dataset, name, None)
    return Mapped(dataset, itemgetter(0))


def torchvision_dataset(name: str, root: str | None, template: str) -> Dataset:
    """A classification dataset of torchvision, in `root`; downloaded into it if it is not there."""
    kinds = {word.lower(): kind for word, kind in vars(datasets).items()
             if isinstance(kind, type) and issubclass(kind, datasets.VisionDataset)}  # fmt: skip
    kind = kinds.get(name.lower())
    if kind is None:
        nearest = get_close_matches(name.lower(), kinds, 1)
        raise DearError(f"torchvision has no dataset {name}" + (f": did you mean {nearest[0]}?" if nearest else "."))
    if root is None:
        raise DearError(f"torchvision:{name} needs --data-root: give the folder that holds it, or will hold it.")
    takes = signature(kind).parameters
    asked: dict[str, list[dict[str, Any]]]
    if "split" in takes:
        asked = {split: [{"split": word} for word in words] for split, words in _SPLIT_WORDS.items()}
    else:
        asked = {"train": [{"train": True}], "test": [{"train": False}]} if "train" in takes else {"": [{}]}
    parts = {}
    for split, choices in asked.items():
        opened = (_open_split(kind, root, arguments, "download" in takes) for arguments in choices)
        if (part := next((part for part in opened if part is not None), None)) is not None:
            parts[split] = part
    return as_dataset(splits_or_whole(parts), template=template, name=kind.__name__)


def _open_split(kind: Any, root: str, arguments: dict[str, Any], can_download: bool) -> Any:
    """One split of a torchvision dataset; None if it has no such split."""
    try:
        try:
            return kind(root, **arguments)
        except (RuntimeError, FileNotFoundError):
            if not can_download:
                raise
            print(f"{kind.__name__} is not in {root}: downloading it", file=sys.stderr, flush=True)
            return kind(root, **arguments, download=True)
    except ValueError:
        return None
    except Exception as error:  # the network, damaged archives, files that changed
        raise DearError(f"{kind.__name__} cannot be opened in {root}: {first_line(error)}.") from None


def _class_names(data: Any) -> Sequence[str] | None:
    names = getattr(data, "classes", None) or getattr(data, "categories", None)
    usable = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    return list(names) if usable and names else None


def _attribute(data: Any, names: Sequence[str]) -> Any:
    """The first of the attributes that has one value per image."""
    for name in names:
        value = getattr(data, name, None)
        if value is not None and hasattr(value, "__len__") and hasattr(data, "__len__") and len(value) == len(data):
            return value
    return None


def _is_sample(sample: Any) -> bool:
    return isinstance(sample, tuple) and len(sample) == 2 and isinstance(sample[0], str | Path)


def _one_pass(data: Any, title: str) -> tuple[list[Any], list[Any]]:
    """Images and labels, read together. The images are kept, as a second pass could give other random crops."""
    images: list[Any] = []
    labels: list[Any] = []
    size = len(data) if hasattr(data, "__len__") else 0
    items = data if hasattr(data, "__iter__") else (data[i] for i in range(size))
    with Progress(f"reading {title}", size) as bar:
        for item in items:
            if isinstance(item, dict) and {"image", "label"} <= item.keys():
                item = item["image"], item["label"]
            if not isinstance(item, tuple | list) or len(item) != 2:
                raise DearError(
                    f"{title}[{len(images)}] is not a pair (image, label): give such pairs, or labels beside the "
                    "images, as (images, labels)."
                )
            images.append(settle(item[0]))
            labels.append(item[1])
            bar.update()
    return images, labels
