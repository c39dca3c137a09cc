"""Checks a dataset before training: unreadable images, leaks, duplicates, small classes, equal names."""

import hashlib
import os
import stat
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from dear.core.errors import DearError
from dear.core.files import sha256_of
from dear.core.progress import Progress
from dear.data.dataset import Dataset, Example, ImageFile
from dear.data.decode import why_unreadable
from dear.data.prompts import as_read
from dear.data.splits import SPLITS

T = TypeVar("T")
Pairs = list[tuple[Path, Path]]


@dataclass(frozen=True)
class Findings:
    """`leaked`: (in train, in test); `duplicates`: split -> (copy, original); `small`: (class, images);
    `same_name`: classes that CLIP reads as one; `two_labels`: (image, class, another class)."""

    unreadable: list[tuple[Path, str]]
    leaked: Pairs
    duplicates: dict[str, Pairs]
    small: list[tuple[str, int]]
    same_name: list[tuple[str, ...]]
    two_labels: list[tuple[Path, str, str]]
    shots: int

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
                f"classes with fewer than {self.shots} training images: {len(self.small)} "
                f"({some}{', ...' if len(self.small) > 3 else ''}); add some, or they are trained on fewer"
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
    """Checks the files of all three splits; pictures that are not files (Attribute World) cost nothing."""
    files = {s: [e.picture.path for e in getattr(dataset, s) if isinstance(e.picture, ImageFile)] for s in SPLITS}
    every = list(dict.fromkeys(path for paths in files.values() for path in paths))
    reasons = _on_threads(lambda path: _why_unreadable(path, _stamp(path)), every, "reading images")
    content = _contents(every)
    originals = {split: _originals(paths, content) for split, paths in files.items()}
    test = originals["test"]
    leaked = [(path, test[content[path]]) for path in dict.fromkeys(files["train"]) if content[path] in test]
    duplicates = {split: _copies(paths, content, originals[split]) for split, paths in files.items()}
    images = Counter(example.label for example in dataset.train)
    few = [(name, images[label]) for label, name in enumerate(dataset.classes) if images[label] < shots]
    return Findings(
        [(path, why) for path, why in zip(every, reasons, strict=True) if why],
        leaked,
        {split: pairs for split, pairs in duplicates.items() if pairs},
        few if dataset.train else [],
        _read_as_one(dataset.classes),
        _two_labels(dataset, content),
        shots,
    )


def _read_as_one(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Groups of names that are one for CLIP's tokenizer."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(as_read(name), []).append(name)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def _two_labels(dataset: Dataset, content: dict[Path, str]) -> list[tuple[Path, str, str]]:
    """Files whose content has another label elsewhere in the dataset, and both labels."""
    labels: dict[str, int] = {}
    different = {}
    for example in (e for split in SPLITS for e in getattr(dataset, split) if isinstance(e.picture, ImageFile)):
        path = example.picture.path
        first = labels.setdefault(content[path], example.label)
        if first != example.label:
            different[path] = (path, dataset.classes[first], dataset.classes[example.label])
    return list(different.values())


def check_before_training(dataset: Dataset, shots: int) -> None:
    """Prints the task, warns on stderr, and refuses a dataset that cannot work."""
    if not dataset.train:
        raise DearError(f"{dataset.name} has no training images: train on another dataset, and test on this one.")
    findings = problems(dataset, shots)
    findings.refuse_unreadable()
    if not dataset.test:
        raise DearError(f"{dataset.name} has no test images: add a test split, or more images for each class.")
    print(describe(dataset))
    for line in findings.warnings():
        print(f"dear: warning: {line}", file=sys.stderr)


def describe(dataset: Dataset) -> str:
    """The task in a few lines; class names take at most three."""
    counts = f"{len(dataset.train)} / {len(dataset.val)} / {len(dataset.test)} images to train / validate / test"
    names = textwrap.wrap(
        f"{len(dataset.classes)} classes: {', '.join(dataset.classes)}", 118, max_lines=3, placeholder=" ..."
    )
    note = [dataset.note] if dataset.note else []
    return "\n".join([f"{dataset.name}: {counts}", f"prompt: {dataset.template}", *names, *note])


def _contents(paths: Sequence[Path]) -> dict[Path, str]:
    """A key per file, equal for equal bytes. Only files of equal size are read."""
    sizes = {path: _size(path) for path in paths}
    files_of_size = Counter(sizes.values())
    suspects = [path for path in paths if sizes[path] >= 0 and files_of_size[sizes[path]] > 1]
    digests = _on_threads(lambda path: _sha256(path, _stamp(path)), suspects, "comparing images")
    hashes = dict(zip(suspects, digests, strict=True))
    return {path: hashes.get(path, str(path)) for path in paths}


def _size(path: Path) -> int:
    """-1 if it is not a regular file."""
    return _stamp(path)[0]


def _stamp(path: Path) -> tuple[int, int]:
    """Size and time: a file is not read again if both are unchanged (a benchmark checks each many times)."""
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
    digest = hashlib.sha256()
    for example in examples:
        picture = example.picture
        if isinstance(picture, ImageFile):
            own = _sha256(picture.path, _stamp(picture.path))
        else:
            own = hashlib.sha256(picture.content()).hexdigest()
        digest.update(f"{own} {example.label}\n".encode())
    return digest.hexdigest()


@lru_cache(maxsize=2**20)
def _sha256(path: Path, stamp: tuple[int, int]) -> str:
    try:
        return sha256_of(path)
    except DearError:  # reported as unreadable
        return str(path)


def _originals(paths: Iterable[Path], content: dict[Path, str]) -> dict[str, Path]:
    """Content -> the first file that has it."""
    originals: dict[str, Path] = {}
    for path in paths:
        originals.setdefault(content[path], path)
    return originals


def _copies(paths: Sequence[Path], content: dict[Path, str], originals: dict[str, Path]) -> Pairs:
    """(copy, original) of every image after the first of its content; a path listed twice is its own copy."""
    seen: set[str] = set()
    pairs = []
    for path in paths:
        if content[path] in seen:
            pairs.append((path, originals[content[path]]))
        seen.add(content[path])
    return pairs


def _on_threads(function: Callable[[Path], T], paths: Sequence[Path], title: str) -> list[T]:
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
