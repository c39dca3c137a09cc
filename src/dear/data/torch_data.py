"""Datasets and loaders of torch, and --data torchvision:NAME. Labels are read without decoding images if possible."""

import copy
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from inspect import signature
from operator import itemgetter
from pathlib import Path
from typing import Any

from torch.utils import data as sampling
from torch.utils.data import DataLoader, IterableDataset, Subset
from torch.utils.data import Dataset as TorchDataset
from torchvision import datasets
from torchvision.datasets.folder import default_loader
from torchvision.datasets.vision import StandardTransform

from dear.core.errors import DearError, first_line, library_errors
from dear.core.progress import Progress
from dear.data.columns import Mapped
from dear.data.dataset import Dataset
from dear.data.memory import Labelled, as_dataset, labelled, settle, splits_or_whole

_SPLIT_WORDS = {"train": ("train", "trainval"), "val": ("val", "valid"), "test": ("test",)}


def read_torch(data: Any, title: str) -> Labelled | None:
    """Pictures and labels of a torch dataset, a loader, or a sequence of (image, label); None for anything else."""
    given, data = data, _of_loader(data)
    inner = data.dataset if isinstance(data, Subset) else data
    if inner is not data and _keeps_labels(inner) and (whole := read_torch(inner, title)) is not None:
        return replace(
            whole,
            pictures=[whole.pictures[i] for i in data.indices],
            labels=[whole.labels[i] for i in data.indices],
        )
    if not hasattr(data, "__iter__") and not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        return None
    names, (plain, note) = _class_names(inner), _untransformed(data)
    if isinstance(given, DataLoader) and given.collate_fn not in (sampling.default_collate, sampling.default_convert):
        note = "; ".join(filter(None, [note, "left out: the loader's collate_fn"]))
    samples = _attribute(data, ("samples", "_samples", "imgs"))
    labels = _attribute(data, ("targets", "labels", "_labels", "y"))
    if not _keeps_labels(data) or (samples is None and labels is None):
        return labelled(*_one_pass(plain, title), title, names, note=note)
    if isinstance(samples, list) and all(map(_is_sample, samples)):
        return labelled([path for path, _ in samples], [label for _, label in samples], title, names, note=note)
    return labelled(Mapped(plain, itemgetter(0)), labels, title, names, note=note)


def _keeps_labels(data: Any) -> bool:
    """Whether the lists of files and labels are what the items have: items are torchvision's, and nothing changes
    them."""
    module = getattr(getattr(type(data), "__getitem__", None), "__module__", None) or ""
    joint = getattr(data, "transforms", None)
    if not module.startswith("torchvision.") or (joint is not None and type(joint) is not StandardTransform):
        return False
    changed = getattr(joint, "target_transform", None) or getattr(data, "target_transform", None)
    return changed is None and getattr(data, "loader", None) in (None, default_loader)


def _of_loader(data: Any) -> Any:
    """The dataset of a loader that gives all of its items; anything else unchanged."""
    if not isinstance(data, DataLoader) or isinstance(data.dataset, IterableDataset):
        return data.dataset if isinstance(data, DataLoader) else data
    sampler, plain = data.sampler, type(data.batch_sampler) in (sampling.BatchSampler, type(None))
    once = not getattr(sampler, "replacement", False) and len(sampler) == len(data.dataset)  # type: ignore[arg-type]
    if not plain or type(sampler) not in (sampling.SequentialSampler, sampling.RandomSampler) or not once:
        raise DearError("A loader with a sampler of its own may leave out images: give the dataset, or a Subset of it.")
    return data.dataset


def torch_images(data: Any) -> Any:
    """The images of a torch dataset of pairs (image, label), or of its loader; anything else unchanged."""
    data = _of_loader(data)
    if not isinstance(data, TorchDataset):
        return data
    if isinstance(data, IterableDataset):
        return (image for image, _ in data)
    return Mapped(_untransformed(data)[0], itemgetter(0))


def _untransformed(data: Any) -> tuple[Any, str]:
    """A dataset with its images as they are stored, as far as it works without its transform (the backbone has its
    own), and a line on that. What changes labels, or images and labels together, stays."""
    if isinstance(data, Subset):
        inner, note = _untransformed(data.dataset)
        return Subset(inner, data.indices), note
    joint = getattr(data, "transforms", None)
    if not isinstance(data, TorchDataset) or (joint is None and getattr(data, "transform", None) is None):
        return data, ""
    if joint is not None and type(joint) is not StandardTransform:
        return data, "applied: the dataset's transforms of images and labels together"
    plain = copy.copy(data)
    plain.transform = None  # type: ignore[attr-defined]
    if joint is not None:
        plain.transforms = joint.target_transform and StandardTransform(None, joint.target_transform)  # type: ignore[attr-defined]
    with suppress(Exception):  # it may need its transform
        plain[0]
        left_out = joint is None or joint.transform is not None
        return plain, "left out: the dataset's transform, as the backbone has its own" if left_out else ""
    return data, "applied: the dataset's transform, without which it does not work"


def torchvision_dataset(name: str, root: str | None, template: str) -> Dataset:
    """A classification dataset of torchvision, in `root`; downloaded into it if it is not there."""
    kinds = {word.lower(): kind for word, kind in vars(datasets).items()
             if isinstance(kind, type) and issubclass(kind, datasets.VisionDataset)
             and "root" in signature(kind).parameters and kind is not datasets.VisionDataset}  # fmt: skip
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
    parts, words = {}, []
    for split, choices in asked.items():
        opened = ((arguments, _open_split(kind, root, arguments, "download" in takes)) for arguments in choices)
        if found := next((pair for pair in opened if pair[1] is not None), None):
            words += [f"{word} as {split}" for word in found[0].values() if word not in (split, True, False)]
            parts[split] = found[1]
    if not parts:
        raise DearError(f"{kind.__name__} has no split train or test: give it from Python, to dear.dataset.")
    dataset = as_dataset(splits_or_whole(parts), template=template, name=kind.__name__)
    return dataset.noted(f"splits of torchvision: {', '.join(words)}" if words else "")


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
    errors = library_errors(f"The {title} cannot be read")  # the code is the user's, and may raise anything
    with errors, Progress(f"reading {title}", size := len(data) if hasattr(data, "__len__") else 0) as bar:
        for item in data if hasattr(data, "__iter__") else (data[i] for i in range(size)):
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
