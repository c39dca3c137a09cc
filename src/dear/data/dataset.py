"""A classification task: class names, a template, and labelled pictures in three splits."""

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from PIL import Image

from dear.core.errors import DearError
from dear.core.files import read_bytes
from dear.data.decode import open_picture
from dear.data.prompts import fill


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
    """`template` has one {} for the class name; `note`: a remark on the split for the user, if any.

    `rule`: the shares of train / val / test in %, if the images were divided by us.
    """

    name: str
    classes: tuple[str, ...]
    template: str
    train: tuple[Example, ...]
    val: tuple[Example, ...]
    test: tuple[Example, ...]
    note: str = ""
    rule: str = ""

    @property
    def prompts(self) -> list[str]:
        return [fill(self.template, name) for name in self.classes]

    def with_template(self, template: str) -> "Dataset":
        return replace(self, template=template)

    def with_class_names(self, names: Mapping[str, str]) -> "Dataset":
        """`names`: current name -> new name; other classes keep theirs."""
        if unknown := sorted(set(names) - set(self.classes)):
            raise DearError(f"{self.name} has no class {unknown[0]!r}: give the names as they are shown.")
        classes = tuple(names.get(name, name) for name in self.classes)
        if repeated := [name for name, count in Counter(classes).items() if count > 1 and name in names.values()]:
            raise DearError(f"Two classes would be called {repeated[0]!r}: give each its own name.")
        return replace(self, classes=classes)

    def base(self) -> "Dataset":
        """The first half of the classes (the larger one if their number is odd), as in CoOp."""
        return self._only(range(math.ceil(len(self.classes) / 2)))

    def novel(self) -> "Dataset":
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
        train = _draw(self.train, shots, rng)
        return replace(self, train=train, val=_draw(self.val, min(shots, 4), rng))

    def folds(self, count: int) -> "list[Dataset]":
        """Cross-validation: `count` datasets, each with another part of the images of every class as its test images.

        Class by class, in an order that is the same every time; each image is a test image once.
        """
        images = (*self.train, *self.val, *self.test)
        place = {}
        for label in range(len(self.classes)):
            own = [example for example in images if example.label == label]
            if len(own) < 2:
                raise DearError(f"The class {self.classes[label]!r} has {len(own)} image: --folds needs at least two.")
            random.Random(label).shuffle(own)
            place.update({example: number % count for number, example in enumerate(own)})
        return [
            replace(
                self,
                train=tuple(e for e in images if place[e] != fold),
                val=(),
                test=tuple(e for e in images if place[e] == fold),
            )
            for fold in range(count)
        ]


def _draw(examples: Sequence[Example], shots: int, rng: random.Random) -> tuple[Example, ...]:
    """`shots` examples per class, in the order in which classes appear; all of a class that has fewer."""
    by_label: dict[int, list[Example]] = {}
    for example in examples:
        by_label.setdefault(example.label, []).append(example)
    sample: list[Example] = []
    for items in by_label.values():
        sample += rng.sample(items, shots) if len(items) >= shots else items
    return tuple(sample)
