"""Turns data in memory into a dataset: images with labels, tables, rows, and datasets of torch and Hugging Face."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.ImageFile import ImageFile as UnreadImage

from dear.core.errors import DearError, library_errors, needing
from dear.core.files import parse_json
from dear.data.columns import IMAGE_COLUMNS, LABEL_COLUMNS, column_of, columns_of, find_column, in_order, is_column
from dear.data.dataset import Dataset, ImageFile, Picture, from_labels
from dear.data.decode import as_image, open_image
from dear.data.folder import TEMPLATE
from dear.data.prompts import check_class_names, check_template
from dear.data.splits import SPLITS

SPLIT_NAMES = {"validation": "val", "valid": "val", "dev": "val"} | {split: split for split in SPLITS}


@dataclass(frozen=True, eq=False)
class ImageInMemory:
    """An image of a sequence, taken from it when it is opened."""

    images: Any
    index: int
    name: str

    def open(self) -> Image.Image:
        return self._read(open_image)

    def content(self) -> bytes:
        value = self._read(as_image)
        if isinstance(value, bytes):
            return value
        picture = self.open()
        return repr(picture.size).encode() + picture.tobytes()

    def _read(self, function: Callable[[Any], Any]) -> Any:
        """The function's value for the image in the sequence; an error names the image."""
        try:
            return function(self.images[self.index])
        except DearError as error:
            raise DearError(f"{self.name}: {error}") from error

    def __str__(self) -> str:
        return self.name


def splits_or_whole(parts: Mapping[str, Any]) -> Any:
    """Data for `as_dataset`: all parts by split, or the only part if it is to be split by rule (train, or "")."""
    return next(iter(parts.values())) if parts.keys() in ({""}, {"train"}) else parts


@dataclass
class Labelled:
    """Pictures with labels: class names, or numbers into `names`; `splits`: train, val or test of each."""

    pictures: list[Picture]
    labels: list[str | int]
    names: Sequence[str] | None = None
    splits: list[str] | None = None


def as_dataset(
    data: Any,
    labels: Sequence[Any] | None = None,
    *,
    image: str | None = None,
    label: str | None = None,
    classes: Sequence[str] | None = None,
    template: str = TEMPLATE,
    root: str | Path = "",
    name: str = "data",
) -> Dataset:
    """A dataset from data in memory.

    `data`: images with `labels`; a pair (images, labels); a DataFrame of pandas or Polars, an Arrow table, a dict of
    columns or a list of rows (dicts), with a column of images and one of labels, and optionally one called split; a
    dataset or a loader of torch; a Hugging Face dataset; or a mapping from train, val and test to any of these. Without
    splits, the images of each class are split by the rule for folders.
    An image is a path (relative ones start at `root`), bytes of a file, a PIL image, an array or a tensor.
    `image`, `label`: the columns, if their names are unusual. `classes`: names for labels that are numbers from 0.
    """
    check_template(template)
    if isinstance(data, Dataset):
        return data
    names = None if classes is None else check_class_names(classes)
    if labels is not None and isinstance(data, str | Path):
        raise DearError(f"Labels belong to a list of images: leave them out, {data} says which class each image has.")
    note = ""
    if labels is None and isinstance(data, Mapping) and data.keys() and data.keys() <= SPLIT_NAMES.keys():
        parts = {SPLIT_NAMES[split]: _read_part(part, split, image, label, Path(root)) for split, part in data.items()}
        whole, note = _join_splits(parts)
    else:
        whole = _read_part(data if labels is None else (data, labels), "images", image, label, Path(root))
    dataset = from_labels(name, whole.pictures, whole.labels, template, whole.splits, names or whole.names)
    if all(text.isdecimal() for text in dataset.classes):
        how = "dear.dataset(..., classes=[...]), or --class-names"
        note = f"the classes are numbers, which mean nothing to CLIP: name them ({how})"
    return replace(dataset, note=note)


def images_of(data: Any) -> Sequence[Any]:
    """The images of a sequence, a table, or a dataset of torch or Hugging Face; labels are ignored."""
    from dear.data.torch_data import torch_images

    if hasattr(data, "features") and hasattr(data, "column_names"):
        from dear.data.huggingface import row_images

        return row_images(data)
    images = column_of(data, None, IMAGE_COLUMNS, "image") if hasattr(data, "columns") else torch_images(data)
    return in_order(images) if is_column(images) else list(images)


def _read_part(data: Any, title: str, image: str | None, label: str | None, root: Path) -> Labelled:
    """Images and labels of one split, or of all data. `title` names the images, as in "train[3]"."""
    from dear.data.torch_data import read_torch

    if hasattr(data, "features") and hasattr(data, "column_names"):
        from dear.data.huggingface import read_rows

        return read_rows(data, title, image, label)
    if (columns := columns_of(data)) is not None:
        images = columns[find_column(columns, image, IMAGE_COLUMNS, "image")]
        labels = columns[find_column(columns, label, LABEL_COLUMNS, "label")]
        return labelled(images, labels, title, splits=columns.get("split"), root=root)
    if isinstance(data, tuple) and len(data) == 2 and all(map(is_column, data)):
        images = column_of(data[0], image, IMAGE_COLUMNS, "image")
        return labelled(images, column_of(data[1], label, LABEL_COLUMNS, "label"), title, root=root)
    if (of_torch := read_torch(data, title)) is not None:
        return of_torch
    raise DearError(
        f"Data cannot be of the type {type(data).__name__}: give a path, a pair (images, labels), a table with a "
        "column of images and one of labels, or a dataset of torch or Hugging Face."
    )


def labelled(
    images: Any,
    labels: Any,
    title: str,
    names: Sequence[str] | None = None,
    splits: Sequence[Any] | None = None,
    root: Path = Path(),
) -> Labelled:
    """Pictures and checked labels of two sequences. Only the images of a list are looked at before they are opened."""
    images, labels = in_order(images), in_order(labels)
    if len(images) != len(labels):
        raise DearError(f"There are {len(images)} images and {len(labels)} labels: give each image one label.")
    if not len(images):
        raise DearError(f"There are no {title}: give images of at least two classes.")
    parts = None if splits is None else [SPLIT_NAMES.get(str(split), "") for split in splits]
    if parts and "" in parts:
        raise DearError(f"{title}[{parts.index('')}] is in no split: it must be train, val or test.")
    return Labelled(
        [_as_picture(images, index, f"{title}[{index}]", root) for index in range(len(images))],
        [_checked_label(value, f"{title}[{index}]") for index, value in enumerate(labels)],
        names,
        parts,
    )


def _as_picture(images: Any, index: int, name: str, root: Path) -> Picture:
    # Any other sequence may decode an image to return it: that is left until the image is opened.
    value: Any = settle(images[index]) if isinstance(images, list | tuple) else None
    if hasattr(value, "open") and hasattr(value, "content"):
        return value
    if not isinstance(value, str | Path):
        return ImageInMemory(images, index, name)
    path = root / value
    if not os.path.isfile(path):
        raise DearError(f"{name} names {value}, but there is no file {path}: correct the path.")
    return ImageFile(path)


def settle(image: Any) -> Any:
    """An unread PIL image as its path, or read now if it has none: worker processes cannot share an open file."""
    if isinstance(image, UnreadImage) and image.tile:
        if os.path.isfile(image.filename):
            return Path(os.path.abspath(os.fsdecode(image.filename)))
        image.load()
    return image


def read_parquet(file: Path, options: Mapping[str, str], template: str) -> Dataset:
    """A Parquet file of images (paths, or bytes) and labels; `options`: image=COLUMN, label=COLUMN."""
    with needing("Parquet files need Arrow", "'dear-vlm[data]'"):
        from pyarrow import ArrowException
        from pyarrow.parquet import read_table
    with library_errors(f"{file} cannot be read as a Parquet file", ArrowException, OSError):
        table = read_table(file, memory_map=True)
    features = parse_json((table.schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    label = find_column(table.column_names, options.get("label"), LABEL_COLUMNS, "label")
    return as_dataset(table, image=options.get("image"), label=label, classes=features.get(label, {}).get("names"),
                      template=template, root=file.parent, name=file.stem)  # fmt: skip


def _join_splits(parts: dict[str, Labelled]) -> tuple[Labelled, str]:
    """Splits with the same classes, joined, and a remark for the user, if any."""
    note = ""
    if "train" in parts and "val" in parts and "test" not in parts:  # as ImageNet
        parts["test"] = parts.pop("val")
        note = "the validation images are used as test images, as there are no others"
    kinds = {None if part.names is None else tuple(part.names) for part in parts.values()}
    if len(kinds) > 1:
        raise DearError("The splits have different classes: give them the same.")
    joined = Labelled([], [], kinds.pop(), [])
    for split, part in parts.items():
        joined.pictures += part.pictures
        joined.labels += part.labels
        joined.splits = [*(joined.splits or []), *[split] * len(part.pictures)]
    return joined, note


def _checked_label(value: Any, name: str) -> str | int:
    value = value.item() if hasattr(value, "item") else value  # a number of numpy or torch
    if isinstance(value, float) and value.is_integer():  # as pandas reads a column with a gap
        value = int(value)
    if isinstance(value, bool | int) or (isinstance(value, str) and value.strip()):
        return value.strip() if isinstance(value, str) else int(value)
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    raise DearError(f"{name} has {'no label' if missing else f'the label {value!r}'}: give a class name or a number.")
