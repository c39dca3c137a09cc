"""One's own pictures: a folder a class (with or without train/val/test), or a split JSON in CoOp's form."""

import random
import re
from collections.abc import Iterable
from pathlib import Path

from dear.data.dataset import Dataset, Example, ImageFile
from dear.errors import DearError
from dear.files import read_json

TEMPLATE = "a photo of a {}."
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm"}


def image_files(folder: Path) -> list[Path]:
    """All image files below a folder, sorted."""
    return sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())


def clean_name(folder: str) -> str:
    """ "003.polar_bear" -> "polar bear"."""
    return re.sub(r"[_\s]+", " ", re.sub(r"^\d+[._-]", "", folder)).strip() or folder


def read_dataset(path: Path, template: str = TEMPLATE) -> Dataset:
    """A dataset from a folder or a split JSON; says what is missing where."""
    if path.is_file() and path.suffix == ".json":
        return _from_split(path, path.parent, template)
    if not path.is_dir():
        raise DearError(f"There is no folder {path}: give a folder with one folder of images for each class.")
    if (path / "split.json").is_file():
        return _from_split(path / "split.json", path, template)
    if (path / "train").is_dir():
        return _from_split_folders(path, template)
    classes = [p for p in sorted(path.iterdir()) if p.is_dir() and not p.name.startswith(".")]
    _demand_classes(path, classes)
    splits: list[list[Example]] = [[], [], []]
    for label, folder in enumerate(classes):
        files = _files_of(folder)
        random.Random(0).shuffle(files)  # the same split every time: half train, a fifth val, the rest test
        train, val = max(1, round(0.5 * len(files))), round(0.2 * len(files))
        for split, part in zip(splits, (files[:train], files[train : train + val], files[train + val :]), strict=True):
            split += [Example(ImageFile(file), label) for file in part]
    return _dataset(path.name, [clean_name(c.name) for c in classes], template, splits)


def _from_split_folders(path: Path, template: str) -> Dataset:
    folders = [p for p in sorted((path / "train").iterdir()) if p.is_dir()]
    _demand_classes(path / "train", folders)
    splits = []
    for split in ("train", "val", "test"):
        found = [(label, path / split / folder.name) for label, folder in enumerate(folders)]
        splits.append([Example(ImageFile(f), label) for label, d in found if d.is_dir() for f in _files_of(d)])
    return _dataset(path.name, [clean_name(f.name) for f in folders], template, splits)


def _from_split(file: Path, root: Path, template: str) -> Dataset:
    """CoOp's form: {"train": [[path, label, class name], ...], "val": ..., "test": ...}."""
    value = read_json(file)
    try:
        entries = {split: [(str(p), int(label), str(name)) for p, label, name in value.get(split, [])]
                   for split in ("train", "val", "test")}  # fmt: skip
    except (AttributeError, TypeError, ValueError):
        raise DearError(f"{file} is not a split file: each entry must be [path, label, class name].") from None
    if not entries["train"]:
        raise DearError(f'{file} has no training images: it needs a list under "train".')
    names = {label: name for split in entries.values() for _, label, name in split}
    if sorted(names) != list(range(len(names))):
        raise DearError(f"{file} must number its classes from 0 without gaps.")
    first = entries["train"][0][0]
    roots = [root, *sorted(p for p in root.iterdir() if p.is_dir())]
    images = next((r for r in roots if (r / first).is_file()), None)
    if images is None:
        raise DearError(f"{file} names the image {first}, but it is neither in {root} nor in a folder there.")
    splits = [[Example(ImageFile(images / p), label) for p, label, _ in split] for split in entries.values()]
    return _dataset(root.name, [names[i] for i in range(len(names))], template, splits)


def _files_of(folder: Path) -> list[Path]:
    files = image_files(folder)
    if not files:
        raise DearError(f"The class folder {folder} has no images: add some or remove it.")
    return files


def _demand_classes(path: Path, classes: list[Path]) -> None:
    if len(classes) < 2:
        raise DearError(f"{path} holds {len(classes)} class folders: make one folder of images for each class.")


def _dataset(name: str, classes: list[str], template: str, splits: Iterable[list[Example]]) -> Dataset:
    train, val, test = (tuple(split) for split in splits)
    return Dataset(name, tuple(classes), template, train, val, test)
