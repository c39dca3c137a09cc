"""A user's own pictures as a list: a CSV or JSONL file of path, label and, optionally, split."""

import csv
import os
from collections.abc import Iterator
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from typing import TypedDict

from dear.core.errors import DearError, reason_of
from dear.core.files import open_regular, parse_json
from dear.core.schema import check_shape
from dear.data.dataset import Dataset, ImageFile
from dear.data.splits import SPLITS, from_labels


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
