"""Checks a dataset before training: unreadable images, leaks, duplicates, small classes, equal names."""

import hashlib
import os
import stat
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TypeVar
from weakref import WeakKeyDictionary

from dear.core.errors import DearError, warn
from dear.core.files import checksum_of
from dear.core.progress import progress
from dear.core.table import Table
from dear.core.words import counted
from dear.data.dataset import Dataset, Example, ImageFile, Picture
from dear.data.decode import has_frames, why_unreadable
from dear.data.prompts import as_read
from dear.data.splits import SPLITS
from dear.data.world.vocabulary import Scene

Checked = TypeVar("Checked")
Pairs = list[tuple[Picture, Picture]]
_MAY_MOVE = (".gif", ".tif", ".tiff", ".webp", ".png", ".avif")
_Stamp = tuple[int, int]  # size and time of a file, which is not read again while both are unchanged


@dataclass(frozen=True)
class Findings:
    """The problems of a dataset.

    `leaked`: (in train, in test); `duplicates`: split -> (copy, original); `small`: (class, images), smallest first;
    `same_name`: classes that CLIP reads as one; `two_labels`: (image, class, another class); `most`: training images
    that a run uses of the largest class; `frames`: files with several pictures.
    """

    unreadable: list[tuple[Picture, str]]
    leaked: Pairs
    duplicates: dict[str, Pairs]
    small: list[tuple[str, int]]
    same_name: list[tuple[str, ...]]
    two_labels: list[tuple[Picture, str, str]]
    most: int
    classes: int
    frames: Sequence[Picture] = ()

    def warnings(self) -> list[str]:
        """One line per problem that does not prevent a run."""
        lines = []
        if self.leaked:
            one, other = self.leaked[0]
            lines.append(
                f"training images that are also in test (same bytes): {len(self.leaked)}, such as {one} and {other}; "
                "test accuracy will be too high, remove one of each"
            )
        for split, pairs in self.duplicates.items():
            one, other = pairs[0]
            lines.append(
                f"images twice in {split} (same bytes): {len(pairs)}, such as {one} and {other}; keep one of each"
            )
        if self.small:
            lines.append(
                f"unbalanced: {len(self.small)} of {self.classes} classes have fewer training images than the "
                f"{self.most} used of the largest class ({_three([f'{name}: {count}' for name, count in self.small])}) "
                "and will be predicted too rarely; add images of them, or train on equally many of every class with "
                f"--shots {max(1, self.small[0][1])}"
            )
        if self.same_name:
            some = _three([" and ".join(map(repr, names)) for names in self.same_name])
            lines.append(
                f"class names that CLIP reads as one: {some}; only the first can be predicted, give each its own name"
            )
        if self.two_labels:
            image, first, second = self.two_labels[0]
            lines.append(
                f"images with two labels (same bytes): {len(self.two_labels)}, such as {image}, {first} and {second}; "
                "keep the right label"
            )
        if self.frames:
            some = _three(list(map(str, self.frames)))
            lines.append(f"files with several pictures: {len(self.frames)} ({some}); only the first of each is used")
        return lines

    def refuse_unreadable(self) -> None:
        """Raises an error that names up to three unreadable images, and their number."""
        if len(self.unreadable) == 1:
            picture, why = self.unreadable[0]
            raise DearError(f"The image {picture} cannot be read ({why}): repair or remove it.")
        if self.unreadable:
            some = _three([str(picture) for picture, _ in self.unreadable])
            raise DearError(f"The images {some} cannot be read ({len(self.unreadable)} in all): repair or remove them.")


def _three(texts: Sequence[str]) -> str:
    return ", ".join([*texts[:3], *["..."] * (len(texts) > 3)])


def problems(dataset: Dataset, shots: int) -> Findings:
    """Checks the images of all three splits; drawn ones (Attribute World) cost nothing."""
    parts = {s: [e for e in getattr(dataset, s) if not isinstance(e.picture, Scene)] for s in SPLITS}
    pictures = list(dict.fromkeys(example.picture for part in parts.values() for example in part))
    reasons = _on_threads(_why, pictures, "reading images")
    content = _contents(pictures)
    originals: dict[str, dict[str, Picture]] = {split: {} for split in SPLITS}  # content -> the first that has it
    duplicates: dict[str, Pairs] = {}
    labels: dict[str, int] = {}
    two_labels = {}
    for split, part in parts.items():
        for picture, label in ((example.picture, example.label) for example in part):
            key = content[picture]
            if key in originals[split]:
                duplicates.setdefault(split, []).append((picture, originals[split][key]))
            else:
                originals[split][key] = picture
            first = labels.setdefault(key, label)
            if first != label:
                two_labels[picture] = (picture, dataset.classes[first], dataset.classes[label])
    test = originals["test"]
    in_train = dict.fromkeys(example.picture for example in parts["train"])
    images = Counter(example.label for example in dataset.train)
    most = min(shots, max(images.values(), default=0))
    few = [(name, images[label]) for label, name in enumerate(dataset.classes) if images[label] < most]
    return Findings(
        [(picture, why) for picture, why in zip(pictures, reasons, strict=True) if why],
        [(picture, test[content[picture]]) for picture in in_train if content[picture] in test],
        duplicates,
        sorted(few, key=lambda item: item[1]),
        _read_as_one(dataset.classes),
        list(two_labels.values()),
        most,
        len(dataset.classes),
        [p for p in pictures if isinstance(p, ImageFile) and p.path.suffix.lower() in _MAY_MOVE and has_frames(p.path)],
    )


def _read_as_one(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Groups of names that CLIP's tokenizer cannot tell apart."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(as_read(name), []).append(name)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def check_before_training(
    dataset: Dataset, shots: int, whole: Dataset | None = None, folds: int = 0, seen: Dataset | None = None
) -> None:
    """Prints the task, warns of problems, and refuses a dataset that cannot work.

    `whole`: before the few-shot draw; `seen`: after it, with the classes that are trained on, if these are not all.
    """
    if not dataset.train:
        raise DearError(f"{dataset.name} has no training images: train on another dataset, and test on this one.")
    findings = problems(dataset, shots)
    findings.refuse_unreadable()
    if not dataset.test and not folds:
        raise DearError(f"{dataset.name} has no test images: add a test split, or more images for each class.")
    print("\n".join([describe_dataset(dataset), *division(whole or dataset, seen or dataset, shots, folds)]))
    for line in findings.warnings():
        warn(line)


def class_table(dataset: Dataset) -> Table:
    """Images by class, the smallest class first."""
    counts = [Counter(example.label for example in getattr(dataset, split)) for split in SPLITS]
    table = Table(["class", "train", "validate", "test"])
    for label in sorted(range(len(dataset.classes)), key=lambda label: (counts[0][label], label)):
        table.add(dataset.classes[label], *(count[label] for count in counts))
    return table


def division(whole: Dataset, drawn: Dataset, shots: int, folds: int = 0) -> list[str]:
    """A line or two: how the images are split, and how many of them are used."""
    lines = []
    if folds:
        lines.append(f"cross-validation: each of {len(whole.train)} images is tested once, by one of {folds} trainings "
                     "without it; the adapter is trained on all")  # fmt: skip
    elif whole.rule:
        train, val, test = (len(part) for part in (whole.train, whole.val, whole.test))
        parts = f"{train} images to train on, {f'{val} to validate, ' if val else ''}{test} to test"
        lines.append(f"split {whole.rule} within each class: {parts} (--split changes it; --folds 4 tests on all)")
    if len(drawn.classes) < len(whole.classes):
        classes = f"the first {len(drawn.classes)} of {len(whole.classes)} classes"
        lines.append(f"trained on: {len(drawn.train)} images of {classes}; the others, novel, are only tested")
    elif len(drawn.train) < len(whole.train):
        lines.append(f"trained on: {len(drawn.train)} of {len(whole.train)}, at most {shots} of a class (--shots)")
    return lines


def describe_dataset(dataset: Dataset) -> str:
    """The task in a few lines; class names take at most three."""
    counts = f"{len(dataset.train)} / {len(dataset.val)} / {len(dataset.test)} images to train / validate / test"
    if not dataset.val and not dataset.test:  # `fit` and --folds
        counts = counted(len(dataset.train), "image")
    names = textwrap.wrap(
        f"{len(dataset.classes)} classes: {', '.join(dataset.classes)}", 118, max_lines=3, placeholder=" ..."
    )
    note = [dataset.note] if dataset.note else []
    return "\n".join([f"{dataset.name}: {counts}", f"prompt: {dataset.template}", *names, *note])


def _contents(pictures: Sequence[Picture]) -> dict[Picture, str]:
    """A key for each picture; equal keys mean equal bytes. A file is read only if another has the same size."""
    sizes = {picture: _stamp(picture)[0] for picture in pictures if isinstance(picture, ImageFile)}
    files = Counter(sizes.values())
    compared = [p for p in pictures if p not in sizes or (sizes[p] >= 0 and files[sizes[p]] > 1)]
    keys = dict(zip(compared, _on_threads(picture_hash, compared, "comparing images"), strict=True))
    return {picture: keys.get(picture, str(picture)) for picture in pictures}


def content_hash(examples: Iterable[Example]) -> str:
    """SHA-256 over the content and the label of every example, in order."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(f"{picture_hash(example.picture)} {example.label}\n".encode())
    return digest.hexdigest()


_in_memory: WeakKeyDictionary[Picture, str] = WeakKeyDictionary()  # hashes, as long as the pictures live


def picture_hash(picture: Picture) -> str:
    """SHA-256 of the content, which is read again only if it is a file whose size or time has changed."""
    if isinstance(picture, ImageFile):  # its absolute path stays the same in another working directory
        return _file_digest(Path(os.path.abspath(picture.path)), _stamp(picture))
    found = _in_memory[picture] if picture in _in_memory else hashlib.sha256(picture.content()).hexdigest()
    with suppress(TypeError):  # there is no weak reference to a tuple
        _in_memory[picture] = found
    return found


@lru_cache(maxsize=2**20)
def _file_digest(path: Path, stamp: _Stamp) -> str:
    try:
        return checksum_of(path)
    except DearError:  # reported as unreadable
        return hashlib.sha256(os.fsencode(path)).hexdigest()


def _why(picture: Picture) -> str:
    return _why_file(picture, _stamp(picture)) if isinstance(picture, ImageFile) else why_unreadable(picture)


@lru_cache(maxsize=2**20)
def _why_file(file: ImageFile, stamp: _Stamp) -> str:
    return why_unreadable(replace(file, side=1))  # read to its end, but decoded as small as can be


def _stamp(file: ImageFile) -> _Stamp:
    """The size of a file, -1 if it is not a regular one, and its time."""
    try:
        status = file.path.stat()
    except (OSError, ValueError):
        return -1, 0
    return (status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else (-1, 0)


def _on_threads(function: Callable[[Checked], str], items: Sequence[Checked], title: str) -> list[str]:
    """The function's results for all items, in order. Pillow and hashlib release the GIL while they work."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        results = pool.map(function, items)
        return [next(results) for _ in progress(items, title)] if items else []
