"""From labelled files to a dataset: by a split JSON in CoOp's form, or by a fixed rule."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from dear.core.errors import DearError
from dear.core.files import read_json
from dear.core.schema import Name, check_shape
from dear.data.dataset import Dataset, Example, ImageFile, Picture
from dear.data.prompts import check_name

SPLITS = ("train", "val", "test")
COOP_SPLIT = "50/20/30"  # of CoOp's datasets, and of runs on folders before November 2026
OWN_SPLIT, VALIDATED_SPLIT = "75/0/25", "60/15/25"  # of your own images: few, so none is set aside without a use
_Entry = tuple[Name, int, str]  # path, label, class name


class _SplitFile(TypedDict, total=False):
    train: list[_Entry]
    val: list[_Entry]
    test: list[_Entry]


def read_split(file: Path, folders: Sequence[Path], template: str, name: str) -> Dataset:
    """{"train": [[path, label, class name], ...], "val": ..., "test": ...}; the images lie in one of `folders`.

    Underscores in class names become spaces, as in CoOp's prompts.
    """
    value = read_json(file)
    check_shape(value, _SplitFile, f"The split file {file}", "each entry must be [path, label, class name]")
    entries: dict[str, list[tuple[str, int, str]]] = {split: value.get(split, []) for split in SPLITS}
    if not entries["train"]:
        raise DearError(f'{file} has no training images: it needs a list under "train".')
    names: dict[int, str] = {}
    for _, label, text in (entry for split in entries.values() for entry in split):
        if names.setdefault(label, text) != text:
            raise DearError(f"{file} gives class {label} two names, {names[label]!r} and {text!r}: choose one.")
    if sorted(names) != list(range(len(names))):
        raise DearError(f"{file} must number its classes from 0 without gaps.")
    if len(names) < 2:
        raise DearError(f"{file} has one class: it needs images of at least two.")
    first = entries["train"][0][0]
    images = next((folder for folder in folders if (folder / first).is_file()), None)
    if images is None:
        raise DearError(f"{file} names the image {first}, but there is no {folders[0] / first}: put the images there.")
    splits = [[Example(ImageFile(images / p), label) for p, label, _ in split] for split in entries.values()]
    return make_dataset(name, [names[i].replace("_", " ") for i in range(len(names))], template, splits)


def from_labels(
    name: str,
    pictures: Sequence[Picture],
    labels: Sequence[str | int],
    template: str,
    splits: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
) -> Dataset:
    """Labels are class names, or numbers into `names`. Without `splits`, `split_by_rule` makes them."""
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
        raise DearError(f"{name} has the label {unknown[0]!r}, which is none of its {len(names)} classes.")
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


def split_by_rule(
    name: str,
    classes: Sequence[str],
    template: str,
    pictures: Sequence[Sequence[Picture]],
    rule: str = OWN_SPLIT,
) -> Dataset:
    """The pictures of each class are shuffled, then divided into train, val and test by the shares of `rule`, in %.

    Each class is shuffled with the same seed, so the split is the same every time.
    """
    splits: list[list[Example]] = [[], [], []]
    for label, of_class in enumerate(pictures):
        shuffled = list(of_class)
        random.Random(0).shuffle(shuffled)
        train, val = _counts(len(shuffled), rule)
        parts = (shuffled[:train], shuffled[train : train + val], shuffled[train + val :])
        for split, part in zip(splits, parts, strict=True):
            split += [Example(picture, label) for picture in part]
    return make_dataset(name, classes, template, splits, rule=rule)


def divide_again(dataset: Dataset, rule: str) -> Dataset:
    """The same images divided by other shares; refuses a dataset with a split of its own."""
    check_rule(rule)
    if not dataset.rule:
        raise DearError(f"{dataset.name} has a split of its own: leave --split out.")
    splits: list[list[Example]] = [[], [], []]
    for label in range(len(dataset.classes)):
        own = [e for e in (*dataset.train, *dataset.val, *dataset.test) if e.label == label]  # in their shuffled order
        train, val = _counts(len(own), rule)
        for split, part in zip(splits, (own[:train], own[train : train + val], own[train + val :]), strict=True):
            split += part
    train_part, val_part, test_part = map(tuple, splits)
    return replace(dataset, train=train_part, val=val_part, test=test_part, rule=rule)


def check_rule(rule: str) -> str:
    """The shares of train, val and test in %, as "80/0/20"; refuses others."""
    shares = rule.split("/")
    if len(shares) != 3 or not all(s.isdecimal() and len(s) <= 3 for s in shares) or sum(map(int, shares)) != 100:
        raise DearError(f"--split must be three shares in % that sum to 100, as 80/0/20, not {rule!r}.")
    if int(shares[0]) == 0:
        raise DearError(f"--split {rule} leaves no images to train on: raise the first share.")
    return rule


def _counts(images: int, rule: str) -> tuple[int, int]:
    """Images to train and to validate on; the rest is for testing."""
    train_share, val_share, test_share = (int(share) / 100 for share in rule.split("/"))
    train, val = max(1, round(train_share * images)), round(val_share * images)
    if rule == COOP_SPLIT:
        return train, val
    train = min(train, images)
    val = min(val, images - train)
    if test_share and train + val == images:  # small classes: one image to test on is worth more than one to train on
        val, train = (val - 1, train) if val else (val, max(1, train - 1))
    return train, val


def make_dataset(
    name: str,
    classes: Sequence[str],
    template: str,
    splits: Iterable[Iterable[Example]],
    note: str = "",
    rule: str = "",
) -> Dataset:
    train, val, test = (tuple(split) for split in splits)
    for text in classes:
        check_name(text)
    return Dataset(name, tuple(classes), template, train, val, test, note, rule)
