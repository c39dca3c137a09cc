"""Data sets whose images were encoded once: methods of the package, fitted and measured on what was kept.

    python benchmarks/kept.py SPLIT.json FOLDER OUT.npz --model local-dir:vit-b-16 --parts test train

encodes the images of a split in CoOp's form with a frozen tower and keeps, for each, the class feature, the state of
CLS before the projection, and the outputs of the late heads at CLS. `load` reads such files, and files that have
class features alone (`SET/test_f`, `SET/val_f`, `SET/keys_16shots` and their labels).
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dear.clip import Backbone, load_backbone
from dear.clip.image import ImageFeatures, last_third
from dear.clip.layer_input import CachedHeads
from dear.clip.text_table import TextTable
from dear.core.metrics import accuracy
from dear.methods.base import Method
from dear.methods.registry import METHODS, find_method, recipe_of
from dear.training.config import TrainConfig, learning_rate
from dear.training.loop import make_optimizer

Kept = Tensor | CachedHeads
"""Class features [images, dim], or what the tower made of the images."""
TEMPLATE = "{}"  # class vectors come from a table of names


class FeatureTower:
    """In place of an image tower, where only class features were kept: images are their features."""

    tier, layers = "features", 0

    def __init__(self, dim: int) -> None:
        self.like, self.dim = torch.zeros(1), dim

    def layer_input(self, images: Tensor, first: int, masks: object = None) -> Tensor:
        return images

    def frozen_feature(self, x: Tensor) -> Tensor:
        return x

    def features(self, x: Tensor) -> ImageFeatures:
        return ImageFeatures(x, None)


@dataclass
class KeptSet:
    """Parts of a data set by name: "train", "val" and "test", where there are some, each (images, labels)."""

    name: str
    classes: tuple[str, ...]
    backbone: Any  # with the class vectors as its texts
    parts: dict[str, tuple[Kept, Tensor]]

    @property
    def texts(self) -> Tensor:
        return self.backbone.text.features

    def halves(self) -> tuple[range, range]:
        """Base and novel classes; of an odd number, one more base class."""
        middle = (len(self.classes) + 1) // 2
        return range(middle), range(middle, len(self.classes))

    def rows(self, part: str, classes: Sequence[int]) -> Tensor:
        """Positions of the images of some classes."""
        return torch.isin(self.parts[part][1], torch.tensor(list(classes))).nonzero()[:, 0]

    def draw(self, part: str, classes: Sequence[int], shots: int, seed: int) -> Tensor:
        """Positions of so many random images of each class, or of all where there are fewer."""
        chance, labels = torch.Generator().manual_seed(seed), self.parts[part][1]
        picked = []
        for label in classes:
            own = (labels == label).nonzero()[:, 0]
            picked.append(own[torch.randperm(len(own), generator=chance)[:shots]])
        return torch.cat(picked)


def pick(images: Kept, rows: Tensor) -> Kept:
    return images[rows] if isinstance(images, Tensor) else CachedHeads(*(part[rows].float() for part in images))


class Shots:
    """Labelled images, as methods see them, with labels that count from 0 in a subset of the classes."""

    template = TEMPLATE

    def __init__(self, kept: KeptSet, part: str, rows: Tensor, classes: Sequence[int]) -> None:
        images, labels = kept.parts[part]
        self.classes = tuple(kept.classes[number] for number in classes)
        self.images, self.labels = pick(images, rows), labels[rows] - classes[0]
        self.shots = int(torch.bincount(self.labels).max())

    def train(self) -> Iterator[tuple[Kept, Tensor]]:
        yield self.images, self.labels

    def val(self) -> Iterator[tuple[Kept, Tensor]]:
        return iter(())


def fit(
    name: str,
    kept: KeptSet,
    shots: Shots,
    protocol: str | None = None,
    after_epoch: Callable[[Method, int], None] | None = None,
    **settings: Any,
) -> Method:
    """A method with its published settings. One that is trained sees the images as they are, all in one batch."""
    kind, recipe = find_method(name), {**recipe_of(name, protocol, shots.shots), **settings}
    torch.manual_seed(0)
    method = kind(kept.backbone, kind.Config.pick(recipe))
    method.set_classes(shots.classes, TEMPLATE)
    with torch.no_grad():
        method.before_training(shots)
    if METHODS[name].trained:
        config = TrainConfig.pick(recipe)
        optimizer, x = make_optimizer(method, config), method.layer_input(shots.images)
        for epoch in range(config.epochs):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(config, config.lr, config.epochs, epoch)
            optimizer.zero_grad()
            method.loss(x, shots.labels).total.backward()
            optimizer.step()
            if after_epoch:
                after_epoch(method, epoch + 1)
    return method.eval()


@torch.no_grad()
def answers(method: Method, kept: KeptSet, classes: Sequence[int], part: str = "test") -> tuple[Tensor, Tensor]:
    """Logits and labels of the images of some classes, among these."""
    rows = kept.rows(part, classes)
    images, labels = kept.parts[part]
    method.set_classes([kept.classes[number] for number in classes], TEMPLATE)
    text = method.encode_text(method.classes)
    logits = [
        method.logits(method.encode_image(method.layer_input(pick(images, block))), text) for block in rows.split(1000)
    ]
    return torch.cat(logits), labels[rows] - classes[0]


@torch.no_grad()
def answers_of(method: Method, images: Kept) -> Tensor:
    """The answers among the classes of the method, [images]."""
    features = method.encode_image(method.layer_input(images))
    return method.logits(features, method.encode_text(method.classes)).argmax(1)


def measured(method: Method, kept: KeptSet, classes: Sequence[int]) -> float:
    """Accuracy on the test images of some classes, in percent."""
    logits, labels = answers(method, kept, classes)
    return accuracy(logits, labels)


def divided(kept: KeptSet, part: str, counts: Mapping[str, int], seed: int) -> dict[str, tuple[Kept, Tensor]]:
    """Some images of each class of a part, for each of several new parts, at random and without overlap."""
    images, labels = kept.parts[part]
    everything = kept.draw(part, range(len(kept.classes)), len(labels), seed)  # class by class, in random order
    own = labels[everything]
    place = torch.arange(len(own)) - (torch.bincount(own).cumsum(0) - torch.bincount(own))[own]
    found, start = {}, 0
    for name, count in counts.items():
        rows = everything[(place >= start) & (place < start + count)]
        found[name], start = (pick(images, rows), labels[rows]), start + count
    return found


def class_vectors(folder: Path, name: str) -> TextTable:
    """NAME.npy beside NAME.json; a name that appears twice stays twice."""
    rows = torch.tensor(np.load(folder / f"{name}.npy")).float()
    names = json.loads((folder / f"{name}.json").read_text())
    return TextTable(names, torch.nn.functional.normalize(rows, dim=1), name)


@cache
def _tower(model: str) -> Backbone:
    return load_backbone(model)


def load(path: Path, table: TextTable, name: str = "", model: str | None = None) -> KeptSet:
    """A file of this script (with its `model`), or one of class features, by the name of its set there."""
    arrays = np.load(path)
    if "classnames" in arrays:
        names = arrays["classnames"].tolist()
        table = TextTable(names, table.encode(names), table.where)

    def numbers(key: str) -> Tensor:
        value = torch.from_numpy(arrays[key])
        return value.long() if key.endswith(("_l", "_16shots")) and value.dtype != torch.float16 else value.float()

    if model:
        parts: dict[str, tuple[Kept, Tensor]] = {
            part: (CachedHeads(numbers(f"{part}_cls"), torch.from_numpy(arrays[f"{part}_heads"])), numbers(f"{part}_l"))
            for part in ("train", "val", "test")
            if f"{part}_l" in arrays
        }
        backbone: Any = _tower(model).with_text_table(table)
    else:
        sources = {"train": ("keys_16shots", "labels_16shots"), "val": ("val_f", "val_l"), "test": ("test_f", "test_l")}
        if not name:
            sources["train"] = ("train_f", "train_l")
        prefix = f"{name}/" if name else ""
        parts = {
            part: (torch.nn.functional.normalize(numbers(prefix + f), dim=1), numbers(prefix + labels))
            for part, (f, labels) in sources.items()
            if prefix + f in arrays
        }
        dim = table.features.shape[1]
        backbone = SimpleNamespace(
            image=FeatureTower(dim), text=table, temperature=torch.tensor(100.0), dim=dim, device=torch.device("cpu"),
            name="kept features",
        )  # fmt: skip
    return KeptSet(name or path.stem, tuple(table.names), backbone, parts)


def of_shared(shared: Path, folder: Path | None = None, model: str | None = None) -> dict[str, KeptSet]:
    """The full sets: Caltech101 and UCF101 as features, and those that this script has encoded into `folder`."""
    weights, features = shared / "data/text_embeddings/class_weights", shared / "data/full_features/vit_b_16.npz"
    sets = {
        name: load(features, class_vectors(weights, title), name)
        for name, title in (("caltech101", "Caltech101"), ("ucf101", "UCF101"))
    }
    titles = {"pets": "OxfordPets", "flowers": "OxfordFlowers", "caltech": "Caltech101"}
    titles |= {"pack_dtd": "DescribableTextures", "pack_eurosat": "EuroSAT"}  # subsets
    for name, title in titles.items():
        if folder and (folder / f"{name}.npz").exists():
            sets[name] = load(folder / f"{name}.npz", class_vectors(weights, title), model=model)
    return sets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("split", type=Path, help="JSON with lists of [path, label, class name]")
    parser.add_argument("folder", type=Path, help="where the paths begin")
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--parts", nargs="+", default=["test", "train"])
    args = parser.parse_args()
    from PIL import Image

    backbone, split, arrays = load_backbone(args.model), json.loads(args.split.read_text()), {}
    tower = backbone.image
    for part in args.parts:
        states, outputs = [], []
        for start in range(0, len(split[part]), 16):
            batch = [Image.open(args.folder / path) for path, _, _ in split[part][start : start + 16]]
            seen = tower.head_outputs(
                torch.stack([backbone.preprocess(image) for image in batch]), last_third(tower.layers)
            )
            states.append(seen.frozen_cls)
            outputs.append(seen.outputs.half())
        arrays[f"{part}_cls"], arrays[f"{part}_heads"] = torch.cat(states).numpy(), torch.cat(outputs).numpy()
        features = torch.nn.functional.normalize(tower.project(torch.cat(states)), dim=1)
        arrays[f"{part}_f"] = features.numpy()
        arrays[f"{part}_l"] = np.array([label for _, label, _ in split[part]])
    names = {label: name for rows in split.values() for _, label, name in rows}
    np.savez(args.out, classnames=np.array([names[label] for label in sorted(names)]), **arrays)


if __name__ == "__main__":
    main()
