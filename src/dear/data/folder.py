"""A user's own pictures: one folder per class, with or without train/val/test; a split JSON; a CSV or JSONL list."""

import glob
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dear.core.errors import DearError
from dear.core.words import counted
from dear.data.dataset import Dataset, Example, ImageFile, make_dataset, split_by_rule
from dear.data.listing import read_listing, read_split
from dear.data.splits import SPLITS

TEMPLATE = "a photo of a {}."
SUFFIXES = {".jpg", ".jpeg", ".jfif", ".png", ".webp", ".avif", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".jp2"}
FOREIGN = {".heic", ".heif", ".hif", ".jxl", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2", ".psd"}
"""Photos that cannot be read; phones and cameras write them."""
_CONVERT = "convert them to JPEG"


def image_files(folder: Path) -> list[Path]:
    """All image files below a folder, sorted."""
    return sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())


def unusable_photos(folder: Path) -> str:
    """Such as "12 photos (.heic)": those below a folder that cannot be read; empty if there are none."""
    suffixes = Counter(path.suffix.lower() for path in folder.rglob("*") if path.suffix.lower() in FOREIGN)
    return f"{counted(suffixes.total(), 'photo')} ({', '.join(sorted(suffixes))})" if suffixes else ""


def find_images(patterns: Sequence[str]) -> list[Path]:
    """Files, all images of folders, matches of globs, in the order of `patterns`."""
    files: list[Path] = []
    for pattern in patterns:
        if not pattern.strip():
            raise DearError("An image has no name: give an image file, a folder of images, or a glob in quotes.")
        if "://" in pattern:
            raise DearError(f"{pattern} is an address: give a local folder of images; a bucket can be mounted as one.")
        path = Path(pattern)
        matches = (
            [path] if path.is_file() else image_files(path) if path.is_dir() else sorted(map(Path, glob.glob(pattern)))
        )
        unusable = unusable_photos(path) if path.is_dir() else ""
        if not matches and unusable:
            raise DearError(f"{pattern} has {unusable} that cannot be read: {_CONVERT}.")
        if not matches:
            raise DearError(f"{pattern} has no images: give an image file, a folder of images, or a glob in quotes.")
        if unusable:
            print(
                f"dear: warning: {unusable} of {pattern} left out, as they cannot be read: {_CONVERT}", file=sys.stderr
            )
        files += matches
    return files


def clean_name(folder: str) -> str:
    """ "003.polar_bear" -> "polar bear"."""
    return re.sub(r"[_\s]+", " ", re.sub(r"^\d+[._-]", "", folder)).strip() or folder


def clean_names(folders: list[str]) -> list[str]:
    """Clean names; the folders' own if cleaning would make two equal, as with "737-200" and "747-200"."""
    names = [clean_name(folder) for folder in folders]
    return names if len(set(names)) == len(names) else [folder.replace("_", " ") for folder in folders]


def read_dataset(path: Path, template: str = TEMPLATE) -> Dataset:
    """A dataset from a folder, a split JSON or a list of images."""
    if path.is_file():
        return _from_file(path, template)
    if not path.is_dir():
        raise DearError(f"There is no folder {path}: give a folder with one folder of images for each class.")
    split = [p for p in (path / "split.json", *sorted(path.glob("split_zhou_*.json"))) if p.is_file()]
    if split:
        return _from_file(split[0], template)
    if (path / "train").is_dir():
        return _from_split_folders(path, template)
    classes = [p for p in sorted(path.iterdir()) if p.is_dir() and not p.name.startswith(".")]
    _require_two_classes(path, classes)
    pictures = [[ImageFile(f) for f in _class_files(c)] for c in classes]
    dataset = split_by_rule(path.resolve().name, clean_names([c.name for c in classes]), template, pictures)
    return _noted(dataset, path)


def _from_file(path: Path, template: str) -> Dataset:
    kind, folder = path.suffix.lower(), path.parent
    if kind == ".json":
        places = [folder, *sorted(p for p in folder.iterdir() if p.is_dir())]
        return read_split(path, places, template, folder.resolve().name)
    if kind in (".csv", ".jsonl"):
        return read_listing(path, template)
    raise DearError(f"{path} is not a dataset: give a folder, a split .json, or a .csv or .jsonl with path and label.")


def _from_split_folders(path: Path, template: str) -> Dataset:
    folders = [p for p in sorted((path / "train").iterdir()) if p.is_dir() and not p.name.startswith(".")]
    _require_two_classes(path / "train", folders)
    train_names = {folder.name for folder in folders}
    splits = []
    for split in SPLITS:
        if (path / split).is_dir():
            _require_known_classes(path / split, train_names)
        labelled = [(label, path / split / folder.name) for label, folder in enumerate(folders)]
        splits.append([Example(ImageFile(f), label) for label, d in labelled if d.is_dir() for f in _class_files(d)])
    dataset = make_dataset(path.resolve().name, clean_names([f.name for f in folders]), template, splits)
    return _noted(dataset, path)


def _noted(dataset: Dataset, path: Path) -> Dataset:
    """With a remark for the user, if there are photos that are left out."""
    notes = []
    if loose := sum(file.suffix.lower() in SUFFIXES and file.is_file() for file in path.iterdir()):
        notes.append(f"left out, in no folder of a class: {counted(loose, 'image')}")
    if unusable := unusable_photos(path):
        notes.append(f"left out, as they cannot be read: {unusable}; {_CONVERT}")
    return replace(dataset, note="\n".join(notes))


def _require_known_classes(path: Path, train_names: set[str]) -> None:
    """A class only in val or test is most likely a misspelt folder: ignoring it would inflate the test accuracy."""
    for folder in sorted(path.iterdir()):
        if folder.is_dir() and not folder.name.startswith(".") and folder.name not in train_names:
            raise DearError(f"{folder} has no counterpart in train: rename it, or add training images of that class.")


def _class_files(folder: Path) -> list[Path]:
    files = image_files(folder)
    if not files and (unusable := unusable_photos(folder)):
        raise DearError(f"The class folder {folder} has {unusable} that cannot be read, and no images: {_CONVERT}.")
    if not files:
        raise DearError(f"The class folder {folder} has no images: add some or remove it.")
    return files


def _require_two_classes(path: Path, classes: list[Path]) -> None:
    if len(classes) < 2:
        raise DearError(f"{path} holds {len(classes)} class folders: make one folder of images for each class.")
