"""A classification task: class names, a template, and labelled pictures in three splits."""

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from PIL import Image

from dear.core.errors import DearError
from dear.core.files import read_bytes
from dear.data.decode import open_picture
from dear.data.prompts import check_name, fill
from dear.data.splits import OWN_SPLIT, SPLITS, divide_again, stratified_folds

CLASS_NAMES_FILE = "classnames.txt"
"""Class names of shards, hub datasets and ImageNet, one per line; ImageNet's lines begin with a WordNet id."""


class Picture(Protocol):
    """A hashable object that opens as an RGB image: a file, an item of data in memory, or a scene of Attribute World.

    `str` names it in lists of images; `content` decides the pixels, so that equal content is computed once.
    """

    def open(self) -> Image.Image: ...

    def content(self) -> bytes: ...


@dataclass(frozen=True)
class ImageFile:
    path: Path
    side: int | None = None  # as in `open_picture`

    def open(self) -> Image.Image:
        return open_picture(self.path, self.side)

    def content(self) -> bytes:
        return read_bytes(self.path)

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class Example:
    picture: Picture
    label: int


@dataclass(frozen=True)
class Dataset:
    """Labelled pictures of some classes. `template`: the prompt, with one {} for the class name.

    `note`: lines for the user on what was decided about the data without being told;
    `rule`: the shares of train / val / test in %, if the images had no split of their own.
    """

    name: str
    classes: tuple[str, ...]
    template: str
    train: tuple[Example, ...]
    val: tuple[Example, ...]
    test: tuple[Example, ...]
    note: str = ""
    rule: str = ""

    def noted(self, *notes: str) -> "Dataset":
        """The dataset with more lines of remarks; empty ones are left out."""
        return replace(self, note="\n".join(filter(None, [self.note, *notes])))

    @property
    def prompts(self) -> list[str]:
        return [fill(self.template, name) for name in self.classes]

    def with_class_names(self, names: Mapping[str, str]) -> "Dataset":
        """The dataset with other class names. `names`: current name -> new name; other classes keep theirs."""
        if unknown := sorted(set(names) - set(self.classes)):
            raise DearError(f"{self.name} has no class {unknown[0]!r}: give the names exactly as they are shown.")
        classes = tuple(names.get(name, name) for name in self.classes)
        if repeated := [name for name, count in Counter(classes).items() if count > 1 and name in names.values()]:
            raise DearError(f"Two classes would be called {repeated[0]!r}: give each its own name.")
        return replace(self, classes=classes)

    def base(self) -> "Dataset":
        """The first half of the classes (the larger one if their number is odd), as in CoOp."""
        return self._only(range(math.ceil(len(self.classes) / 2)))

    def novel(self) -> "Dataset":
        """The other half of the classes, numbered from 0."""
        return self._only(range(math.ceil(len(self.classes) / 2), len(self.classes)))

    def _only(self, labels: range) -> "Dataset":
        def keep(examples: tuple[Example, ...]) -> tuple[Example, ...]:
            return tuple(Example(e.picture, e.label - labels.start) for e in examples if e.label in labels)

        classes = self.classes[labels.start : labels.stop]
        return replace(self, classes=classes, train=keep(self.train), val=keep(self.val), test=keep(self.test))

    def few_shot(self, shots: int, seed: int) -> "Dataset":
        """CoOp's draw over all classes: train, then val with min(shots, 4) per class, from one generator.

        To agree with CoOp's fixed lists, take base or novel classes after the draw.
        """
        rng = random.Random(seed)
        train = _draw_shots(self.train, shots, rng)
        return replace(self, train=train, val=_draw_shots(self.val, min(shots, 4), rng))

    def folds(self, count: int) -> "list[Dataset]":
        """Cross-validation: `count` datasets, each with another part of the images of every class as its test images.

        Each image is a test image once. The folds are the same every time.
        """
        images = (*self.train, *self.val, *self.test)
        sizes = Counter(example.label for example in images)
        for label, name in enumerate(self.classes):
            if sizes[label] < 2:
                raise DearError(f"The class {name!r} has {sizes[label]} image: --folds needs at least two.")
        folds = stratified_folds([example.label for example in images], count)
        place = dict(zip(images, folds, strict=True))  # an image that is listed twice is in one fold

        parts = [(tuple(e for e in images if place[e] != fold), tuple(e for e in images if place[e] == fold))
                 for fold in range(count)]  # fmt: skip
        return [replace(self, train=train, val=(), test=test) for train, test in parts]


def _draw_shots(examples: Sequence[Example], shots: int, rng: random.Random) -> tuple[Example, ...]:
    """`shots` examples per class, in the order in which classes appear; all of a class that has fewer."""
    by_label: dict[int, list[Example]] = {}
    for example in examples:
        by_label.setdefault(example.label, []).append(example)
    sample: list[Example] = []
    for items in by_label.values():
        sample += rng.sample(items, shots) if len(items) >= shots else items
    return tuple(sample)


def split_by_rule(
    name: str, classes: Sequence[str], template: str, pictures: Sequence[Sequence[Picture]], rule: str = OWN_SPLIT
) -> Dataset:
    """A dataset of the pictures of each class, shuffled, then split into train, val and test by the shares of `rule`.

    Each class is shuffled with the same seed, so the split is the same every time.
    """
    examples = []
    for label, of_class in enumerate(pictures):
        shuffled = list(of_class)
        random.Random(0).shuffle(shuffled)
        examples += [Example(picture, label) for picture in shuffled]
    whole = make_dataset(name, classes, template, (examples, (), ()))
    return divide_again(replace(whole, rule=rule), rule)


def from_labels(
    name: str,
    pictures: Sequence[Picture],
    labels: Sequence[str | int],
    template: str,
    splits: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
) -> Dataset:
    """A dataset of labelled pictures. Labels are class names or numbers into `names`; the rule makes missing splits."""
    if names is None:
        keys = sorted(set(labels), key=_numeric_order)
        names = [str(key) for key in keys]
    else:
        keys = [*names, *range(len(names))]
    number = {key: i % len(names) for i, key in enumerate(keys)}
    if len(names) < 2:
        found = f"one class, {names[0]!r}" if names else "no classes"
        raise DearError(f"{name} has {found}: it needs images of at least two.")
    if unknown := [label for label in labels if label not in number]:
        raise DearError(
            f"{name} has the label {unknown[0]!r}, which is none of its {len(names)} classes: name all of them."
        )
    classes = [text.replace("_", " ") for text in names]
    examples = [Example(picture, number[label]) for picture, label in zip(pictures, labels, strict=True)]
    if splits is not None:
        parts = [[e for e, of in zip(examples, splits, strict=True) if of == split] for split in SPLITS]
        return make_dataset(name, classes, template, parts)
    by_class: list[list[Picture]] = [[] for _ in classes]
    for example in examples:
        by_class[example.label].append(example.picture)
    return split_by_rule(name, classes, template, by_class)


def _numeric_order(label: str | int) -> tuple[int, str]:
    text = str(label)
    return (int(text), "") if text.isdecimal() and len(text) < 20 else (0, text)


def make_dataset(
    name: str, classes: Sequence[str], template: str, splits: Iterable[Iterable[Example]], note: str = ""
) -> Dataset:
    """A dataset with checked class names. `splits`: train, val and test."""
    train, val, test = map(tuple, splits)
    return Dataset(name, tuple(map(check_name, classes)), template, train, val, test, note)
