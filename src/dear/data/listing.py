"""A user's own pictures as a list: a CSV or JSONL file of path, label and, optionally, split; or a split JSON."""

import csv
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from typing import TypedDict

from dear.core.errors import DearError, reason_of
from dear.core.files import open_regular, parse_json, read_json
from dear.core.schema import Name, check_shape
from dear.data.dataset import Dataset, Example, ImageFile, from_labels, make_dataset
from dear.data.splits import SPLITS

_Entry = tuple[Name, int, str]  # path, label, class name


class _SplitFile(TypedDict, total=False):
    train: list[_Entry]
    val: list[_Entry]
    test: list[_Entry]


class _RequiredFields(TypedDict):
    path: str
    label: str | int


class _Row(_RequiredFields, total=False):
    split: str | None


def read_listing(file: Path, template: str) -> Dataset:
    """Relative paths start at the file's folder. Without a split column, `split_by_rule` makes the splits."""
    rows = list(_rows(file))
    splits = None
    if all(split is None for *_, split in rows):
        rows.sort(key=lambda row: row[1])  # the order of a list does not matter
    else:
        splits = [split or "" for *_, split in rows]
        for line, _, _, split in rows:
            if split not in SPLITS:
                raise DearError(f"{file}, line {line}: split must be train, val or test, not {split or 'empty'}.")
    pictures, labels = [ImageFile(path) for _, path, *_ in rows], [label for _, _, label, _ in rows]
    return replace(from_labels(str(file), pictures, labels, template, splits), name=file.stem)


def _rows(file: Path) -> Iterator[tuple[int, Path, str, str | None]]:
    """(line, path, label, split) of each row; split is None where the file has none."""
    for line, row in _records(file):
        check_shape(row, _Row, f"{file}, line {line},", "each row needs a path, a label and, optionally, a split")
        path, label, split = row["path"], str(row["label"]).strip(), row.get("split")
        if not path or not label:
            raise DearError(f"{file}, line {line}: each row needs a path and a label.")
        image = file.parent / path
        if not os.path.isfile(image):
            raise DearError(f"{file}, line {line} names {path}, but there is no file {image}: correct the path.")
        yield line, image, label, None if split is None else split.strip()


def _records(file: Path) -> Iterator[tuple[int, dict]]:
    try:
        # "sig": spreadsheets often write a byte order mark
        with TextIOWrapper(open_regular(file), encoding="utf-8-sig", newline="") as stream:
            if file.suffix.lower() == ".csv":
                reader = csv.DictReader(stream, skipinitialspace=True)
                if not {"path", "label"} <= set(reader.fieldnames or ()):
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
