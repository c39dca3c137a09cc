"""Stratified splits of labelled images: by shares into train, val and test, or into folds."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dear.core.errors import DearError

if TYPE_CHECKING:
    from dear.data.dataset import Dataset

SPLITS = ("train", "val", "test")
SPLIT_NAMES = {
    **{split: split for split in SPLITS}, "validation": "val", "valid": "val", "dev": "val", "training": "train",
    "testing": "test",
}  # fmt: skip
"""What users call the splits, in any case."""
COOP_SPLIT = "50/20/30"  # for the known datasets that CoOp split
OWN_SPLIT, VALIDATED_SPLIT = "75/0/25", "60/15/25"  # for the user's own few images, without and with validation images


def split_of(name: object) -> str:
    """The split with this name; empty if there is none."""
    return SPLIT_NAMES.get(str(name).strip().lower(), "")


def stratified_split(labels: Sequence[int], rule: str) -> list[str]:
    """The split of each image: in each class the first are train, the next val, the last test, by the rule's shares."""
    sizes, seen = Counter(labels), Counter[int]()
    splits = []
    for label in labels:
        train, val = _train_and_val(sizes[label], rule)
        splits.append("train" if seen[label] < train else "val" if seen[label] < train + val else "test")
        seen[label] += 1
    return splits


def stratified_folds(labels: Sequence[int], folds: int, spread: bool = False) -> list[int]:
    """The fold of each image, from 0: each class is shuffled with its label as the seed, then dealt out evenly.

    `spread`: each class begins with another fold, so that all folds have images even if classes have few.
    """
    by_class: dict[int, list[int]] = {}
    for index, label in enumerate(labels):
        by_class.setdefault(label, []).append(index)
    places = [0] * len(labels)
    for label, own in by_class.items():
        random.Random(label).shuffle(own)
        for number, index in enumerate(own):
            places[index] = (number + label * spread) % folds
    return places


def divide_again(dataset: "Dataset", rule: str) -> "Dataset":
    """Splits the images of a dataset by other shares; refuses one with a split of its own."""
    check_rule(rule)
    if not dataset.rule:
        raise DearError(f"{dataset.name} has a split of its own: leave --split out.")
    images = sorted((*dataset.train, *dataset.val, *dataset.test), key=lambda example: example.label)
    places = stratified_split([example.label for example in images], rule)  # each class is in its shuffled order
    train, val, test = (tuple(e for e, place in zip(images, places, strict=True) if place == split) for split in SPLITS)
    return replace(dataset, train=train, val=val, test=test, rule=rule)


def check_rule(rule: str) -> str:
    """The rule itself if it gives the shares of train, val and test in %, as "80/0/20"; refuses anything else."""
    shares = rule.split("/")
    if len(shares) != 3 or not all(s.isdecimal() and len(s) <= 3 for s in shares) or sum(map(int, shares)) != 100:
        raise DearError(f"--split must be three shares in % that sum to 100, as 80/0/20, not {rule!r}.")
    if int(shares[0]) == 0:
        raise DearError(f"--split {rule} leaves no images to train on: raise the first share.")
    return rule


def _train_and_val(images: int, rule: str) -> tuple[int, int]:
    """How many images of a class are for training and for validation; the rest is for testing."""
    train_share, val_share, test_share = (int(share) / 100 for share in rule.split("/"))
    train, val = max(1, round(train_share * images)), round(val_share * images)
    if rule == COOP_SPLIT:
        return train, val
    train = min(train, images)
    val = min(val, images - train)
    if test_share and train + val == images:  # a small class: a test image matters more than a training image
        val, train = (val - 1, train) if val else (val, max(1, train - 1))
    return train, val
