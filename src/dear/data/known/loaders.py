"""Loaders for known datasets without a split JSON: by their own lists, by their folders, or by CoOp's rule."""

import random
from pathlib import Path

from dear.core.errors import DearError
from dear.core.files import read_text
from dear.data.dataset import Dataset, Example, ImageFile, make_dataset, split_by_rule
from dear.data.folder import SUFFIXES
from dear.data.known.entry import KnownDataset
from dear.data.splits import COOP_SPLIT, SPLITS

NOT_CLASSES = {"BACKGROUND_Google", "Faces_easy"}  # of Caltech101; CoOp excludes them, too


def class_folders(entry: KnownDataset, folder: Path) -> Dataset:
    """CoOp's rule for one folder per class: each class is shuffled, then split 50/20/30 into train/val/test."""
    classes = [name for name in _folders(folder / entry.image_folder) if name not in NOT_CLASSES]
    files = [[ImageFile(f) for f in _images(folder / entry.image_folder / name)] for name in classes]
    names = [name.replace("_", " ") for name in classes]
    return split_by_rule(entry.name, names, entry.template, files, COOP_SPLIT)


def pets(entry: KnownDataset, folder: Path) -> Dataset:
    """Test is the dataset's own list; val is a shuffled fifth of each class of its trainval list."""
    names: dict[int, str] = {}

    def read_list(file: Path) -> list[Example]:
        examples = []
        for image, number, *_ in _lines(file, 2):
            label = int(number) - 1
            names[label] = image.rpartition("_")[0].lower().replace("_", " ")
            examples.append(Example(ImageFile(folder / entry.image_folder / f"{image}.jpg"), label))
        return examples

    trainval, test = (read_list(folder / "annotations" / f"{part}.txt") for part in ("trainval", "test"))
    train, val = [], []
    for label in sorted(names):
        examples = [e for e in trainval if e.label == label]
        random.Random(0).shuffle(examples)
        fifth = round(0.2 * len(examples))
        val += examples[:fifth]
        train += examples[fifth:]
    return make_dataset(entry.name, [names[i] for i in sorted(names)], entry.template, (train, val, test))


def aircraft(entry: KnownDataset, folder: Path) -> Dataset:
    """The dataset's own lists; classes are its variants."""
    classes = [line.strip() for line in read_text(folder / "variants.txt").splitlines() if line]
    number = {name: label for label, name in enumerate(classes)}
    splits = []
    for split in SPLITS:
        file = folder / f"images_variant_{split}.txt"
        rows = [(image, " ".join(words)) for image, *words in _lines(file, 2)]
        if unknown := next((name for _, name in rows if name not in number), None):
            raise DearError(f"{file} names the variant {unknown!r}, which is not in {folder / 'variants.txt'}.")
        splits.append([Example(ImageFile(folder / entry.image_folder / f"{i}.jpg"), number[name]) for i, name in rows])
    return make_dataset(entry.name, classes, entry.template, splits)


def imagenet(entry: KnownDataset, folder: Path) -> Dataset:
    """Test is ImageNet's validation folder. There is no val: its images would be those of test."""
    names = _class_names(folder)
    train, test = folder / entry.image_folder / "train", folder / entry.image_folder / "val"
    classes = _folders(train)
    absent = next((name for name in classes if not (test / name).is_dir()), None)
    if absent:
        raise DearError(f"{entry.name} needs {test / absent}: sort the validation images into a folder for each class.")
    splits = (_examples(train, classes), (), _examples(test, classes))
    return make_dataset(entry.name, [_class_name(name, names, folder) for name in classes], entry.template, splits)


def imagenet_variant(entry: KnownDataset, folder: Path) -> Dataset:
    """For testing only; its classes are its folders, with ImageNet's class names."""
    names, images = _class_names(folder), folder / entry.image_folder
    classes = _folders(images)
    class_names = [_class_name(name, names, folder) for name in classes]
    return _test_only(entry, class_names, _examples(images, classes))


def imagenet_v2(entry: KnownDataset, folder: Path) -> Dataset:
    """For testing only; folders are numbered in the order of classnames.txt."""
    names, images = _class_names(folder), folder / entry.image_folder
    numbers = [str(i) for i in range(len(names))]
    return _test_only(entry, list(names.values()), _examples(images, numbers))


def _test_only(entry: KnownDataset, classes: list[str], test: list[Example]) -> Dataset:
    return make_dataset(entry.name, classes, entry.template, ((), (), test), "for testing only")


def _class_names(folder: Path) -> dict[str, str]:
    """{"n01440764": "tench", ...} in the order of the file."""
    return {key: " ".join(words) for key, *words in _lines(folder / "classnames.txt", 2)}


def _class_name(key: str, names: dict[str, str], folder: Path) -> str:
    if key not in names:
        raise DearError(f"{folder / 'classnames.txt'} has no line for {key}: take CoOp's file, which names all 1000.")
    return names[key]


def _examples(path: Path, folders: list[str]) -> list[Example]:
    return [Example(ImageFile(f), label) for label, name in enumerate(folders) for f in _images(path / name)]


def _folders(path: Path) -> list[str]:
    names = sorted(p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not names:
        raise DearError(f"{path} has no class folders: unpack the images there, with a folder for each class.")
    return names


def _images(path: Path) -> list[Path]:
    """By suffix alone: ImageNet has over a million files, too many to stat each."""
    files = [p for p in path.iterdir() if p.suffix.lower() in SUFFIXES] if path.is_dir() else []
    if not files:
        raise DearError(f"There are no images in {path}: unpack the dataset again.")
    return sorted(files)


def _lines(file: Path, fields: int) -> list[list[str]]:
    """The words of each non-empty line."""
    rows = [line.split() for line in read_text(file).splitlines() if line.strip()]
    if bad := next((row for row in rows if len(row) < fields), None):
        raise DearError(f"{file} has the line {' '.join(bad)!r}, which has too few words: download the file again.")
    return rows
