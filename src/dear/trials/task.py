"""A task: labelled images to fit a method to, and those on which it is measured."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from dear.core.errors import DearError
from dear.data.dataset import Dataset, Example
from dear.methods.shared.class_folds import class_folds
from dear.trials.outcome import ALL, BASE, FOLDS, LEFT_OUT, LEFT_OUT_CLASSES, NOVEL, TEST


class Round(NamedTuple):
    """One fit and its measurements: the `train` images of `fit`, and for each part its classes and `test` images."""

    fit: Dataset
    parts: Mapping[str, Dataset]


@dataclass(frozen=True)
class Task:
    """Images to fit methods to and to measure them on. Each fold is a round; everything else has one round.

    `measured`: how an image is kept apart from the fit that answers it, one of `dear.trials.outcome`'s names.
    `pool`: training images of all classes, which transductive methods use without their labels.
    """

    rounds: tuple[Round, ...]
    measured: str = TEST
    pool: Dataset | None = None

    @classmethod
    def on_test(cls, data: Dataset, classes: str = ALL, pool: Dataset | None = None) -> "Task":
        """Measured on the test images of `data`, after the few-shot draw; classes `base`: fitted to these alone."""
        return cls((_round(data, classes),), TEST, pool)

    @classmethod
    def on_halves(cls, data: Dataset) -> "Task":
        """Measured on the test images of all classes, and of each half of the classes alone, if it has any."""
        if not data.test:
            raise DearError(f"{data.name} has no test images: add a test split.")
        parts = {ALL: data, BASE: data.base(), NOVEL: data.novel()}
        return cls((Round(data, {name: part for name, part in parts.items() if part.test}),))

    @classmethod
    def on_folds(cls, folds: Sequence[Dataset], classes: str = ALL, pool: Dataset | None = None) -> "Task":
        """Measured on all images, each by the fit of the fold that leaves it out."""
        return cls(tuple(_round(data, classes) for data in folds), FOLDS, pool)

    @classmethod
    def left_out(cls, data: Dataset) -> "Task":
        """Measured on the labelled images themselves, each left out of the fit that answers it."""
        return cls((Round(data, {ALL: replace(data, test=data.train)}),), LEFT_OUT)

    @classmethod
    def left_out_classes(cls, data: Dataset, most: int = 10) -> "Task":
        """Measured on the labelled images of classes that a fold leaves out of the fit, among their names alone.

        The images fitted to are asked, too: their label is -1, as none of the names is theirs. `most`: folds at most.
        """
        rounds = []
        for out in class_folds(len(data.classes), most=most):
            number = {label: i for i, label in enumerate(out.tolist())}
            asked = tuple(Example(e.picture, number.get(e.label, -1)) for e in data.train)
            left = replace(data, classes=tuple(data.classes[label] for label in number), test=asked)
            kept = [label for label in range(len(data.classes)) if label not in number]
            rounds.append(Round(data.of_classes(kept), {NOVEL: left}))
        return cls(tuple(rounds), LEFT_OUT_CLASSES)

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.rounds[0].parts)

    def examples(self, part: str) -> list[Example]:
        """The images that a part is measured on, over all rounds."""
        return [example for one in self.rounds for example in one.parts[part].test]

    def classes(self, part: str) -> tuple[str, ...]:
        return self.rounds[0].parts[part].classes

    def measured_images(self) -> list[Example]:
        """The images of all parts, each once."""
        return _once(example for part in self.parts for example in self.examples(part))

    def fitted_images(self) -> list[Example]:
        """The images that methods are fitted to, with those for validation, each once."""
        return _once(example for one in self.rounds for example in (*one.fit.train, *one.fit.val))


def _once(examples: Iterable[Example]) -> list[Example]:
    return list({example.picture: example for example in examples}.values())


def _round(data: Dataset, classes: str) -> Round:
    parts = {BASE: data.base(), NOVEL: data.novel()} if classes == BASE else {ALL: data}
    for name, part in parts.items():
        if not part.test:
            raise DearError(f"There are no test images for {name}: add some, or give a dataset with a test split.")
    return Round(parts[BASE] if classes == BASE else data, parts)
