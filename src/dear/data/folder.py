"""A user's own pictures: one folder per class, with or without train/val/test; a split JSON; a CSV or JSONL list."""

import csv
import glob
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from typing import TypedDict

from dear.core.errors import DearError, reason_of, warn
from dear.core.files import open_regular, parse_json, read_json
from dear.core.schema import Name, check_shape
from dear.core.words import counted
from dear.data.columns import choose_columns, find_column, merged_labels
from dear.data.dataset import Dataset, Example, ImageFile, from_labels, make_dataset, split_by_rule
from dear.data.splits import SPLITS, split_of

TEMPLATE = "a photo of a {}."
SUFFIXES = {".jpg", ".jpeg", ".jfif", ".png", ".webp", ".avif", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".jp2"}
FOREIGN = {".heic", ".heif", ".hif", ".jxl", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2", ".psd"}
"""Photos of phones and cameras that cannot be read here."""
_CONVERT = "convert them to JPEG"


class _SplitFile(TypedDict, total=False):
    train: list[tuple[Name, int, str]]  # path, label, class name
    val: list[tuple[Name, int, str]]
    test: list[tuple[Name, int, str]]


class _PathAndLabel(TypedDict):
    path: str
    label: str | int


class _ListedImage(_PathAndLabel, total=False):
    split: str | None


def image_files(folder: Path) -> list[Path]:
    """All image files below a folder, sorted."""
    return sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())


def subfolders(path: Path) -> list[Path]:
    """The folders in a folder, sorted, without hidden ones."""
    return sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))


def find_images(patterns: Sequence[str]) -> list[Path]:
    """Files, all images of folders and matches of globs, in the order of `patterns`."""
    files: list[Path] = []
    for pattern in patterns:
        if not pattern.strip():
            raise DearError("An image has no name: give an image file, a folder of images, or a glob in quotes.")
        if "://" in pattern:
            raise DearError(f"{pattern} is an address: give a local folder of images; a bucket can be mounted as one.")
        path = Path(pattern)
        matches = [path] if path.is_file() else sorted(map(Path, glob.glob(pattern)))
        unusable = ""
        if path.is_dir():
            matches, unusable = image_files(path), _unusable_photos(path)
        if not matches and unusable:
            raise DearError(f"{pattern} has {unusable} that cannot be read: {_CONVERT}.")
        if not matches:
            raise DearError(f"{pattern} has no images: give an image file, a folder of images, or a glob in quotes.")
        if unusable:
            warn(f"{unusable} of {pattern} left out, as they cannot be read: {_CONVERT}")
        files += matches
    return files


def _unusable_photos(folder: Path) -> str:
    """Photos below a folder that cannot be read, such as "12 photos (.heic)"; empty if there are none."""
    suffixes = Counter(path.suffix.lower() for path in folder.rglob("*") if path.suffix.lower() in FOREIGN)
    return f"{counted(suffixes.total(), 'photo')} ({', '.join(sorted(suffixes))})" if suffixes else ""


def clean_name(folder: str) -> str:
    """The class name in a folder's name: "003.polar_bear" gives "polar bear"."""
    return re.sub(r"[_\s]+", " ", re.sub(r"^\d+[._-]", "", folder)).strip() or folder


def clean_names(folders: Sequence[str]) -> list[str]:
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
    parts = _split_folders(path)
    where = parts.get("train", path)
    folders = subfolders(where)
    if len(folders) < 2:
        raise DearError(f"{where} holds {len(folders)} class folders: make one folder of images for each class.")
    name, classes = path.resolve().name, clean_names([folder.name for folder in folders])
    if parts:
        splits = [_split_examples(parts.get(split), [folder.name for folder in folders]) for split in SPLITS]
        dataset = make_dataset(name, classes, template, splits)
    else:
        pictures = [[ImageFile(file) for file in _class_files(folder)] for folder in folders]
        dataset = split_by_rule(name, classes, template, pictures)
    notes = []
    every = (*dataset.train, *dataset.val, *dataset.test)
    depth = len(path.parts) + 2 + bool(parts)
    if deeper := sum(isinstance(e.picture, ImageFile) and len(e.picture.path.parts) > depth for e in every):
        notes.append(f"in folders within those of the classes, and taken for these: {counted(deeper, 'image')}")
    if parts and (other := [folder.name for folder in subfolders(path) if folder not in parts.values()]):
        notes.append(f"left out, beside the folders of the splits: {', '.join(other)}")
    if loose := sum(file.suffix.lower() in SUFFIXES and file.is_file() for file in path.iterdir()):
        notes.append(f"left out, in no folder of a class: {counted(loose, 'image')}")
    if unusable := _unusable_photos(path):
        notes.append(f"left out, as they cannot be read: {unusable}; {_CONVERT}")
    return replace(dataset, note="\n".join(notes))


def _split_folders(path: Path) -> dict[str, Path]:
    """The folders of the splits, which hold folders of classes; there must be one to train on, if there is any."""
    parts: dict[str, Path] = {}
    for folder in subfolders(path):
        split = split_of(folder.name)
        if split and split in parts:
            raise DearError(f"{parts[split]} and {folder} are the same split: join them.")
        if split:
            parts[split] = folder
    if parts and "train" not in parts:
        other = next(iter(parts.values()))
        raise DearError(f"{other} has no folder train beside it: add one; or call it 1_{other.name}, if it is a class.")
    return parts


def _split_examples(path: Path | None, names: list[str]) -> list[Example]:
    """The labelled images of one split; refuses a class that has no images to train on.

    Such a class is most likely a misspelt folder, and ignoring it would inflate the test accuracy.
    """
    folders = subfolders(path) if path else []
    if unknown := [folder for folder in folders if folder.name not in names]:
        raise DearError(f"{unknown[0]} has no counterpart in train: rename it, or add training images of that class.")
    labelled = sorted((names.index(folder.name), folder) for folder in folders)
    return [Example(ImageFile(file), label) for label, folder in labelled for file in _class_files(folder)]


def _class_files(folder: Path) -> list[Path]:
    files = image_files(folder)
    if not files and (unusable := _unusable_photos(folder)):
        raise DearError(f"The class folder {folder} has {unusable} that cannot be read, and no images: {_CONVERT}.")
    if not files:
        raise DearError(f"The class folder {folder} has no images: add some or remove it.")
    return files


def _from_file(path: Path, template: str) -> Dataset:
    kind, folder = path.suffix.lower(), path.parent
    if kind == ".json":
        places = [folder, *sorted(p for p in folder.iterdir() if p.is_dir())]
        return read_split(path, places, template, folder.resolve().name)
    if kind in (".csv", ".jsonl"):
        return _read_list(path, template)
    raise DearError(f"{path} is not a dataset: give a folder, a split .json, or a .csv or .jsonl with path and label.")


def _read_list(file: Path, template: str) -> Dataset:
    """A dataset from a CSV or JSONL list. Relative paths start at its folder; without splits, the rule makes them."""
    listed = list(list_rows(file))
    names = list(dict.fromkeys(name for _, row in listed for name in row))
    note = ""
    if {"path", "label"} <= {name.lower() for name in names}:  # else the check of the rows says what is missing
        columns = {name: [row.get(name) for _, row in listed] for name in names}
        path, label = (find_column(names, None, (one,), one) for one in ("path", "label"))
        *_, split_column, note = choose_columns(columns, path, label)
        keys = {"path": path, "label": label, "split": split_column}
        listed = [(line, {new: row[old] for new, old in keys.items() if old in row}) for line, row in listed]
    rows = [checked_row(file, line, row) for line, row in listed]
    splits = None
    if all(split is None for *_, split in rows):
        rows.sort(key=lambda row: row[1])  # the order of a list does not matter
    else:
        splits = [split_of(split) for *_, split in rows]
        for line, _, _, split in rows:
            if not split_of(split):
                raise DearError(f"{file}, line {line}: split must be train, val or test, not {split or 'empty'}.")
    pictures, written = [ImageFile(path) for _, path, *_ in rows], [label for _, _, label, _ in rows]
    labels = list(map(str.strip, written))
    dataset = replace(from_labels(str(file), pictures, labels, template, splits), name=file.stem)
    return dataset.noted(note, merged_labels(written, labels))


def checked_row(file: Path, line: int, row: dict) -> tuple[int, Path, str, str | None]:
    """(line, path, label, split) of a row; split is None where the file has none."""
    check_shape(row, _ListedImage, f"{file}, line {line},", "each row needs a path, a label and, optionally, a split")
    path, label, split = row["path"], str(row["label"]), row.get("split")
    if not path or not label.strip():
        raise DearError(f"{file}, line {line}: each row needs a path and a label.")
    image = file.parent / path
    if not os.path.isfile(image):
        raise DearError(f"{file}, line {line} names {path}, but there is no file {image}: correct the path.")
    return line, image, label, None if split is None else split.strip()


def list_rows(file: Path) -> Iterator[tuple[int, dict]]:
    try:
        # "sig": spreadsheets often write a byte order mark
        with TextIOWrapper(open_regular(file), encoding="utf-8-sig", newline="") as stream:
            if file.suffix.lower() == ".csv":
                reader = csv.DictReader(stream, skipinitialspace=True)
                reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
                if len(set(reader.fieldnames)) < len(reader.fieldnames):
                    raise DearError(f"Two columns of {file} have the same name: rename one.")
                if not {"path", "label"} <= {name.lower() for name in reader.fieldnames}:
                    raise DearError(f"The first line of {file} must be path,label or path,label,split.")
                for row in reader:
                    row.pop(None, None)  # type: ignore[call-overload] # cells after the last heading
                    yield reader.line_num, row
                return
            for line, text in enumerate(stream, 1):
                if text.strip():
                    row = parse_json(text)
                    if not isinstance(row, dict):
                        raise ValueError(f'line {line} is not an object like {{"path": ..., "label": ...}}')
                    yield line, row
    except (OSError, ValueError, csv.Error) as error:
        raise DearError(f"{file} cannot be read as a list of images: {reason_of(error)}.") from None


def read_split(file: Path, folders: Sequence[Path], template: str, name: str) -> Dataset:
    """A dataset from a split file {"train": [[path, label, class name], ...], "val": ..., "test": ...}.

    The images lie in one of `folders`. Underscores in class names become spaces, as in CoOp's prompts.
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
