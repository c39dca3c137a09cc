"""A user's own pictures as a list: a CSV or JSONL file of path, label and, optionally, split."""

import csv
import os
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import TypedDict

from dear.core.errors import DearError, reason_of
from dear.core.files import open_regular, parse_json
from dear.core.schema import check_shape
from dear.data.dataset import Dataset, Example, ImageFile
from dear.data.splits import SPLITS, make_dataset, split_by_rule


class _RequiredFields(TypedDict):
    path: str
    label: str | int


class _Row(_RequiredFields, total=False):
    split: str | None


def read_listing(file: Path, template: str) -> Dataset:
    """Relative paths start at the file's folder. Without a split column, `split_by_rule` makes the splits."""
    rows = list(_rows(file))
    classes = sorted({label for _, _, label, _ in rows}, key=_numeric_order)
    if len(classes) < 2:
        raise DearError(f"{file} names {len(classes)} classes: it needs images of at least two.")
    number = {label: i for i, label in enumerate(classes)}
    names = [label.replace("_", " ") for label in classes]
    if all(split is None for *_, split in rows):
        files: list[list[Path]] = [[] for _ in classes]
        for _, path, label, _ in rows:
            files[number[label]].append(path)
        return split_by_rule(file.stem, names, template, files)
    for line, _, _, split in rows:
        if split not in SPLITS:
            raise DearError(f"{file}, line {line}: split must be train, val or test, not {split or 'empty'}.")
    splits = [[Example(ImageFile(path), number[label]) for _, path, label, of in rows if of == s] for s in SPLITS]
    return make_dataset(file.stem, names, template, splits)


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


def _numeric_order(label: str) -> tuple[int, str]:
    return (int(label), "") if label.isdecimal() and len(label) < 20 else (0, label)
