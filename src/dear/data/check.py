"""Checks a dataset before training: unreadable images, leaks, duplicates, small classes, equal names."""

import hashlib
import os
import stat
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar
from weakref import WeakKeyDictionary

from dear.core.errors import DearError
from dear.core.files import sha256_of
from dear.core.progress import Progress
from dear.core.table import Table
from dear.core.words import counted
from dear.data.dataset import Dataset, Example, ImageFile, Picture
from dear.data.decode import why_unopenable, why_unreadable
from dear.data.prompts import as_read
from dear.data.splits import SPLITS
from dear.data.world.vocabulary import Scene

S = TypeVar("S")
T = TypeVar("T")
Subject = Path | Picture
"""What is checked: the path of a file, or any other picture."""
Pairs = list[tuple[Subject, Subject]]


@dataclass(frozen=True)
class Findings:
    """`leaked`: (in train, in test); `duplicates`: split -> (copy, original); `small`: (class, images), smallest first;
    `same_name`: classes that CLIP reads as one; `two_labels`: (image, class, another class); `most`: training images
    that a run uses of the largest class."""

    unreadable: list[tuple[Subject, str]]
    leaked: Pairs
    duplicates: dict[str, Pairs]
    small: list[tuple[str, int]]
    same_name: list[tuple[str, ...]]
    two_labels: list[tuple[Subject, str, str]]
    most: int
    classes: int

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
            some = ", ".join(f"{name}: {count}" for name, count in self.small[:3])
            lines.append(
                f"unbalanced: {len(self.small)} of {self.classes} classes have fewer training images than the "
                f"{self.most} that are taken of the largest ({some}{', ...' if len(self.small) > 3 else ''}); they "
                "will be answered too seldom: add images of them, or train on equally many with "
                f"--shots {max(1, self.small[0][1])}"
            )
        if self.same_name:
            some = ", ".join(" and ".join(map(repr, names)) for names in self.same_name[:3])
            lines.append(
                f"class names that CLIP reads as one: {some}; only the first can be predicted, give each its own name"
            )
        if self.two_labels:
            image, first, second = self.two_labels[0]
            lines.append(
                f"images with two labels (same bytes): {len(self.two_labels)}, such as {image}, {first} and {second}; "
                "keep the right one"
            )
        return lines

    def refuse_unreadable(self) -> None:
        """The error names up to three, and their number."""
        if not self.unreadable:
            return
        if len(self.unreadable) == 1:
            path, why = self.unreadable[0]
            raise DearError(f"The image {path} cannot be read ({why}): repair or remove it.")
        some = ", ".join(str(path) for path, _ in self.unreadable[:3])
        raise DearError(f"The images {some}{', ...' if len(self.unreadable) > 3 else ''} cannot be read "
                        f"({len(self.unreadable)} in all): repair or remove them.")  # fmt: skip


def problems(dataset: Dataset, shots: int) -> Findings:
    """Checks the images of all three splits; drawn ones (Attribute World) cost nothing."""
    files = {s: [_subject(e) for e in getattr(dataset, s) if not isinstance(e.picture, Scene)] for s in SPLITS}
    every = list(dict.fromkeys(path for paths in files.values() for path in paths))
    reasons = _on_threads(_why, every, "reading images")
    content = _contents(every)
    originals = {split: _originals(paths, content) for split, paths in files.items()}
    test = originals["test"]
    leaked = [(path, test[content[path]]) for path in dict.fromkeys(files["train"]) if content[path] in test]
    duplicates = {split: _copies(paths, content, originals[split]) for split, paths in files.items()}
    images = Counter(example.label for example in dataset.train)
    most = min(shots, max(images.values(), default=0))
    few = [(name, images[label]) for label, name in enumerate(dataset.classes) if images[label] < most]
    return Findings(
        [(path, why) for path, why in zip(every, reasons, strict=True) if why],
        leaked,
        {split: pairs for split, pairs in duplicates.items() if pairs},
        sorted(few, key=lambda item: item[1]),
        _read_as_one(dataset.classes),
        _two_labels(dataset, content),
        most,
        len(dataset.classes),
    )


def _read_as_one(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Groups of names that are one for CLIP's tokenizer."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(as_read(name), []).append(name)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def _two_labels(dataset: Dataset, content: dict[Subject, str]) -> list[tuple[Subject, str, str]]:
    """Files whose content has another label elsewhere in the dataset, and both labels."""
    labels: dict[str, int] = {}
    different = {}
    for example in (e for split in SPLITS for e in getattr(dataset, split) if not isinstance(e.picture, Scene)):
        path = _subject(example)
        first = labels.setdefault(content[path], example.label)
        if first != example.label:
            different[path] = (path, dataset.classes[first], dataset.classes[example.label])
    return list(different.values())


def check_before_training(
    dataset: Dataset, shots: int, whole: Dataset | None = None, folds: int = 0, seen: Dataset | None = None
) -> None:
    """Prints the task, warns on stderr, and refuses a dataset that cannot work.

    `whole`: before the few-shot draw; `seen`: after it, with the classes that are trained on, if these are not all.
    """
    if not dataset.train:
        raise DearError(f"{dataset.name} has no training images: train on another dataset, and test on this one.")
    findings = problems(dataset, shots)
    findings.refuse_unreadable()
    if not dataset.test and not folds:
        raise DearError(f"{dataset.name} has no test images: add a test split, or more images for each class.")
    print(describe(dataset))
    for line in division(whole or dataset, seen or dataset, shots, folds):
        print(line)
    for line in findings.warnings():
        print(f"dear: warning: {line}", file=sys.stderr)


def class_table(dataset: Dataset) -> Table:
    """Images by class, the smallest class first."""
    counts = [Counter(e.label for e in split) for split in (dataset.train, dataset.val, dataset.test)]
    table = Table(["class", "train", "validate", "test"])
    for label in sorted(range(len(dataset.classes)), key=lambda label: (counts[0][label], label)):
        table.add(dataset.classes[label], *(count[label] for count in counts))
    return table


def division(whole: Dataset, drawn: Dataset, shots: int, folds: int = 0) -> list[str]:
    """How images were divided, and how many are used, in a line or two."""
    lines = []
    if folds:
        count = len(whole.train)
        lines.append(f"cross-validation: each of {count} images is tested once, by one of {folds} trainings without "
                     "it; the adapter is trained on all")  # fmt: skip
    elif whole.rule:
        train, val, test = (len(part) for part in (whole.train, whole.val, whole.test))
        parts = f"{train} images to train on, {f'{val} to validate, ' if val else ''}{test} to test"
        lines.append(f"divided by us, {whole.rule} of each class: {parts} (--split changes it; --folds 4 tests on all)")
    if len(drawn.classes) < len(whole.classes):
        classes = f"the first {len(drawn.classes)} of {len(whole.classes)} classes"
        lines.append(f"trained on: {len(drawn.train)} images of {classes}; the others, novel, are only tested")
    elif len(drawn.train) < len(whole.train):
        lines.append(f"trained on: {len(drawn.train)} of {len(whole.train)}, at most {shots} of a class (--shots)")
    return lines


def describe(dataset: Dataset) -> str:
    """The task in a few lines; class names take at most three."""
    counts = f"{len(dataset.train)} / {len(dataset.val)} / {len(dataset.test)} images to train / validate / test"
    if not dataset.val and not dataset.test:  # of `fit` and --folds
        counts = counted(len(dataset.train), "image")
    names = textwrap.wrap(
        f"{len(dataset.classes)} classes: {', '.join(dataset.classes)}", 118, max_lines=3, placeholder=" ..."
    )
    note = [dataset.note] if dataset.note else []
    return "\n".join([f"{dataset.name}: {counts}", f"prompt: {dataset.template}", *names, *note])


def _subject(example: Example) -> Subject:
    return example.picture.path if isinstance(example.picture, ImageFile) else example.picture


def _why(subject: Subject) -> str:
    if isinstance(subject, Path):
        return _why_unreadable(subject, _stamp(subject))
    return why_unopenable(subject)


def _contents(subjects: Sequence[Subject]) -> dict[Subject, str]:
    """A key per image, equal for equal bytes. Only files of equal size are read."""
    paths = [subject for subject in subjects if isinstance(subject, Path)]
    others = [subject for subject in subjects if not isinstance(subject, Path)]
    digests = _on_threads(picture_hash, others, "comparing images")
    return {**_contents_of_files(paths), **dict(zip(others, digests, strict=True))}


def _contents_of_files(paths: Sequence[Path]) -> dict[Subject, str]:
    sizes = {path: _stamp(path)[0] for path in paths}
    files_of_size = Counter(sizes.values())
    suspects = [path for path in paths if sizes[path] >= 0 and files_of_size[sizes[path]] > 1]
    digests = _on_threads(lambda path: picture_hash(ImageFile(path)), suspects, "comparing images")
    hashes = dict(zip(suspects, digests, strict=True))
    return {path: hashes.get(path, str(path)) for path in paths}


def _stamp(path: Path) -> tuple[int, int]:
    """Size (-1: no regular file) and time: a file is not read again if both are unchanged."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return -1, 0
    return (status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else (-1, 0)


@lru_cache(maxsize=2**20)
def _why_unreadable(path: Path, stamp: tuple[int, int]) -> str:
    return why_unreadable(path)


def content_hash(examples: Iterable[Example]) -> str:
    """SHA-256 over the content and the label of every example, in order."""
    rows = [f"{picture_hash(example.picture)} {example.label}\n" for example in examples]
    return hashlib.sha256("".join(rows).encode()).hexdigest()


_in_memory: WeakKeyDictionary[Picture, str] = WeakKeyDictionary()  # hashes, as long as the pictures live


def picture_hash(picture: Picture) -> str:
    """SHA-256 of the content, which is read again only if it is a file whose size or time has changed."""
    if isinstance(picture, ImageFile):
        return _sha256(path := Path(os.path.abspath(picture.path)), _stamp(path))  # known in any working directory
    found = _in_memory[picture] if picture in _in_memory else hashlib.sha256(picture.content()).hexdigest()
    with suppress(TypeError):  # there is no weak reference to a tuple
        _in_memory[picture] = found
    return found


@lru_cache(maxsize=2**20)
def _sha256(path: Path, stamp: tuple[int, int]) -> str:
    try:
        return sha256_of(path)
    except DearError:  # reported as unreadable
        return hashlib.sha256(os.fsencode(path)).hexdigest()


def _originals(paths: Iterable[Subject], content: dict[Subject, str]) -> dict[str, Subject]:
    """Content -> the first file that has it."""
    originals: dict[str, Subject] = {}
    for path in paths:
        originals.setdefault(content[path], path)
    return originals


def _copies(paths: Sequence[Subject], content: dict[Subject, str], originals: dict[str, Subject]) -> Pairs:
    """(copy, original) of every image after the first of its content; a path listed twice is its own copy."""
    seen: set[str] = set()
    pairs = []
    for path in paths:
        if content[path] in seen:
            pairs.append((path, originals[content[path]]))
        seen.add(content[path])
    return pairs


def _on_threads(function: Callable[[S], T], paths: Sequence[S], title: str) -> list[T]:
    """Pillow and hashlib release the GIL while they work."""
    if not paths:
        return []
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        results = []
        with Progress(title, len(paths)) as bar:
            for result in pool.map(function, paths):
                results.append(result)
                bar.update()
        return results
