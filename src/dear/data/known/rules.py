"""How datasets are read that have no split JSON: by their own lists, by their folders, or by CoOp's rule."""

import random
from pathlib import Path

from dear.core.errors import DearError
from dear.core.files import read_text
from dear.data.dataset import Dataset, Example, ImageFile
from dear.data.folder import SUFFIXES
from dear.data.known.entry import KnownDataset
from dear.data.splits import SPLITS, make_dataset, split_by_rule

NOT_CLASSES = {"BACKGROUND_Google", "Faces_easy"}  # of Caltech101; CoOp leaves them out, too


def class_folders(known: KnownDataset, folder: Path) -> Dataset:
    """CoOp's rule for a folder a class: shuffled within each, 50/20/30 to train/val/test."""
    classes = [name for name in _folders(folder / known.images) if name not in NOT_CLASSES]
    files = [_images(folder / known.images / name) for name in classes]
    return split_by_rule(known.name, [name.replace("_", " ") for name in classes], known.template, files)


def pets(known: KnownDataset, folder: Path) -> Dataset:
    """Test is the dataset's own list; a fifth of each class of its trainval list, shuffled, is val."""
    names: dict[int, str] = {}

    def listed(file: Path) -> list[Example]:
        examples = []
        for image, number, *_ in _lines(file, 2):
            label = int(number) - 1
            names[label] = image.rpartition("_")[0].lower().replace("_", " ")
            examples.append(Example(ImageFile(folder / known.images / f"{image}.jpg"), label))
        return examples

    trainval, test = (listed(folder / "annotations" / f"{part}.txt") for part in ("trainval", "test"))
    train, val = [], []
    for label in sorted(names):
        mine = [e for e in trainval if e.label == label]
        random.Random(0).shuffle(mine)
        few = round(0.2 * len(mine))
        val += mine[:few]
        train += mine[few:]
    return make_dataset(known.name, [names[i] for i in sorted(names)], known.template, (train, val, test))


def aircraft(known: KnownDataset, folder: Path) -> Dataset:
    """The dataset's own lists; classes are its variants."""
    classes = [line.strip() for line in read_text(folder / "variants.txt").splitlines() if line]
    number = {name: label for label, name in enumerate(classes)}
    splits = []
    for split in SPLITS:
        file = folder / f"images_variant_{split}.txt"
        rows = [(image, " ".join(words)) for image, *words in _lines(file, 2)]
        if unknown := next((name for _, name in rows if name not in number), None):
            raise DearError(f"{file} names the variant {unknown!r}, which is not in {folder / 'variants.txt'}.")
        splits.append([Example(ImageFile(folder / known.images / f"{i}.jpg"), number[name]) for i, name in rows])
    return make_dataset(known.name, classes, known.template, splits)


def imagenet(known: KnownDataset, folder: Path) -> Dataset:
    """Test is ImageNet's validation folder. There is no val: choosing anything on it would be choosing on test."""
    names = _class_names(folder)
    train, test = folder / known.images / "train", folder / known.images / "val"
    classes = _folders(train)
    absent = next((name for name in classes if not (test / name).is_dir()), None)
    if absent:
        raise DearError(f"{known.name} needs {test / absent}: sort the validation images into a folder for each class.")
    splits = (_labelled(train, classes), (), _labelled(test, classes))
    return make_dataset(known.name, [_named(name, names, folder) for name in classes], known.template, splits)


def imagenet_variant(known: KnownDataset, folder: Path) -> Dataset:
    """For testing only; its classes are the folders it has, named as ImageNet names them."""
    names, images = _class_names(folder), folder / known.images
    classes = _folders(images)
    named = [_named(name, names, folder) for name in classes]
    return _test_only(known, named, _labelled(images, classes))


def imagenet_v2(known: KnownDataset, folder: Path) -> Dataset:
    """For testing only; folders are numbered in the order of classnames.txt."""
    names, images = _class_names(folder), folder / known.images
    numbers = [str(i) for i in range(len(names))]
    return _test_only(known, list(names.values()), _labelled(images, numbers))


def _test_only(known: KnownDataset, classes: list[str], test: list[Example]) -> Dataset:
    return make_dataset(known.name, classes, known.template, ((), (), test), "for testing only")


def _class_names(folder: Path) -> dict[str, str]:
    """{"n01440764": "tench", ...} in the order of the file."""
    return {key: " ".join(words) for key, *words in _lines(folder / "classnames.txt", 2)}


def _named(key: str, names: dict[str, str], folder: Path) -> str:
    if key not in names:
        raise DearError(f"{folder / 'classnames.txt'} has no line for {key}: take CoOp's file, which names all 1000.")
    return names[key]


def _labelled(path: Path, folders: list[str]) -> list[Example]:
    return [Example(ImageFile(f), label) for label, name in enumerate(folders) for f in _images(path / name)]


def _folders(path: Path) -> list[str]:
    found = sorted(p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not found:
        raise DearError(f"{path} has no class folders: unpack the images there, with a folder for each class.")
    return found


def _images(path: Path) -> list[Path]:
    """By name alone: ImageNet has over a million files, too many to look at each."""
    found = [p for p in path.iterdir() if p.suffix.lower() in SUFFIXES] if path.is_dir() else []
    if not found:
        raise DearError(f"There are no images in {path}: unpack the dataset again.")
    return sorted(found)


def _lines(file: Path, fields: int) -> list[list[str]]:
    """The words of each line that is not empty."""
    rows = [line.split() for line in read_text(file).splitlines() if line.strip()]
    if bad := next((row for row in rows if len(row) < fields), None):
        raise DearError(f"{file} has the line {' '.join(bad)!r}, which has too few words: download the file again.")
    return rows
