"""Turns data in memory into a dataset: images with labels, tables, rows, and datasets of torch and Hugging Face."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.ImageFile import ImageFile as UnreadImage

from dear.core.errors import DearError, first_line, library_errors, needing
from dear.core.files import parse_json
from dear.core.schema import Name, check_shape, damaged
from dear.data.columns import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    choose_columns,
    column_of,
    columns_of,
    find_column,
    in_order,
    is_column,
    merged_labels,
)
from dear.data.dataset import Dataset, ImageFile, Picture, from_labels
from dear.data.decode import as_image, open_image
from dear.data.folder import TEMPLATE
from dear.data.prompts import check_class_names, check_template
from dear.data.splits import split_of


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
        except Exception as error:  # the sequence is the user's, and may raise anything
            reason = str(error) if isinstance(error, DearError) else f"{first_line(error)}: give another image."
            raise DearError(f"{self.name}: {reason}") from error

    def __str__(self) -> str:
        return self.name


def splits_or_whole(parts: Mapping[str, Any]) -> Any:
    """Data for `as_dataset`: all parts by split, or the only part if it is to be split by rule (train, or "")."""
    return next(iter(parts.values())) if list(map(split_of, parts)) in ([""], ["train"]) else parts


@dataclass
class Labelled:
    """Pictures with labels: class names, or numbers into `names`; `splits`: train, val or test of each; `note`: what
    was decided about the data without being told, for the user."""

    pictures: list[Picture]
    labels: list[str | int]
    names: Sequence[str] | None = None
    splits: list[str] | None = None
    note: str = ""


def as_dataset(
    data: Any,
    labels: Sequence[Any] | None = None,
    *,
    image: str | None = None,
    label: str | None = None,
    split: str | None = None,
    classes: Sequence[str] | None = None,
    template: str = TEMPLATE,
    root: str | Path = "",
    name: str = "data",
) -> Dataset:
    """A dataset from data in memory.

    `data`: images with `labels`; a pair (images, labels); a DataFrame of pandas or Polars, an Arrow table, a dict of
    columns or a list of rows (dicts), with a column of images and one of labels, and optionally one of splits; a
    dataset or a loader of torch; a Hugging Face dataset; or a mapping from train, val and test to any of these. Without
    splits, the images of each class are split by the rule for folders.
    An image is a path (relative ones start at `root`), bytes of a file, a PIL image, an array or a tensor.
    `image`, `label`, `split`: the columns, if their names are unusual (split="": none). `classes`: names for labels
    that are numbers from 0.
    """
    check_template(template)
    if isinstance(data, Dataset):
        return data
    names = None if classes is None else check_class_names(classes)
    if labels is not None and isinstance(data, str | Path):
        raise DearError(f"Labels belong to a list of images: leave them out, {data} says which class each image has.")
    if labels is not None and not (is_column(data) and is_column(labels)):
        wrong = next(one for one in (data, labels) if not is_column(one))
        raise DearError(f"Images and labels must be two sequences of one length: {type(wrong).__name__} is none.")
    if not isinstance(root, str | Path):
        raise DearError(f"`root` must be a folder, not {root!r}.")
    columns = image, label, split
    if labels is None and isinstance(data, Mapping) and data and all(map(split_of, data)):
        parts = [(name, _read_part(part, name, columns, Path(root), False)) for name, part in data.items()]
        whole = _join_splits(parts)
    else:
        whole = _read_part(data if labels is None else (data, labels), "images", columns, Path(root))
    dataset = from_labels(name, whole.pictures, whole.labels, template, whole.splits, names or whole.names)
    note = ""
    if all(text.lstrip("-").isdecimal() for text in dataset.classes):
        how = "dear.dataset(..., classes=[...]), or --class-names"
        note = f"the classes are numbers, which mean nothing to CLIP: name them ({how})"
    return dataset.noted(whole.note, note)


def images_of(data: Any) -> Sequence[Any]:
    """The images of a sequence, a table, or a dataset of torch or Hugging Face; labels are ignored."""
    from dear.data.torch_data import torch_images

    if hasattr(data, "features") and hasattr(data, "column_names"):
        from dear.data.huggingface import row_images

        return row_images(data)
    with library_errors("The images cannot be read"):
        images = column_of(data, None, IMAGE_COLUMNS, "image") if hasattr(data, "columns") else torch_images(data)
        return in_order(images) if is_column(images) and len(images) else list(images)


def _read_part(data: Any, title: str, given: tuple[str | None, ...], root: Path, whole: bool = True) -> Labelled:
    """Images and labels of one split, or of the `whole` data. `title` names the images, as in "train[3]"; `given`: the
    columns of images, labels and splits."""
    from dear.data.torch_data import read_torch

    if hasattr(data, "features") and hasattr(data, "column_names"):
        from dear.data.huggingface import read_rows

        return read_rows(data, title, given, whole)
    image, label, split = given
    if (columns := columns_of(data)) is not None:
        image, label, split, note = choose_columns(columns, image, label, split, whole)
        splits = columns[split] if split else None
        return labelled(columns[image], columns[label], title, None, splits, root, note)
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
    note: str = "",
) -> Labelled:
    """Pictures and checked labels of two sequences. Only the images of a list are looked at before they are opened."""
    with library_errors(f"The {title} and their labels cannot be read"):
        images, labels = in_order(images), in_order(labels)
        labels = [labels[index] for index in range(len(labels))]
    if len(images) != len(labels):
        raise DearError(f"There are {len(images)} images and {len(labels)} labels: give each image one label.")
    if not len(images):
        raise DearError(f"There are no {title}: give images of at least two classes.")
    parts = None if splits is None else list(map(split_of, splits))
    if parts and "" in parts:
        raise DearError(f"{title}[{parts.index('')}] is in no split: it must be train, val or test.")
    checked = [_checked_label(value, f"{title}[{index}]") for index, value in enumerate(labels)]
    pictures = [_as_picture(images, index, f"{title}[{index}]", root) for index in range(len(images))]
    return Labelled(pictures, checked, names, parts, "\n".join(filter(None, [note, merged_labels(labels, checked)])))


def _as_picture(images: Any, index: int, name: str, root: Path) -> Picture:
    # Any other sequence may decode an image to return it: that is left until the image is opened.
    value: Any = settle(images[index]) if isinstance(images, list | tuple) else None
    if isinstance(value, Image.Image) and value is not images[index]:
        return ImageInMemory([value], 0, name)
    if hasattr(value, "open") and hasattr(value, "content"):
        return value
    if not isinstance(value, str | Path):
        return ImageInMemory(images, index, name)
    path = root / value
    if not os.path.isfile(path):
        raise DearError(f"{name} names {value}, but there is no file {path}: correct the path.")
    return ImageFile(path)


def settle(image: Any) -> Any:
    """An image of a file as its path if PIL has not read it yet, else, or if it shows another frame or a reduced size,
    as a copy of what it shows now: its object may go on to other frames, and processes cannot share an open file."""
    if not isinstance(image, UnreadImage) or not (image.tile or getattr(image, "is_animated", False)):
        return image
    with library_errors("An image in memory cannot be read"):
        same = image.tell() == 0 and not getattr(image, "decoderconfig", ()) and os.path.isfile(image.filename)
        if same and image.fp and os.path.samestat(os.fstat(image.fp.fileno()), os.stat(image.filename)):
            return Path(os.path.abspath(os.fsdecode(image.filename)))
        return image.copy()


def read_parquet(file: Path, options: Mapping[str, str], template: str) -> Dataset:
    """A Parquet file of images (paths, or bytes) and labels; `options`: image=COLUMN, label=COLUMN, split=COLUMN."""
    with needing("Parquet files need Arrow", "'dear-vlm[data]'"):
        from pyarrow import ArrowException
        from pyarrow.parquet import read_table
    with library_errors(f"{file} cannot be read as a Parquet file", ArrowException, OSError):
        table = read_table(file, memory_map=True)
    columns = columns_of(table) or {}
    label, note = find_column(columns, options.get("label"), LABEL_COLUMNS, "label"), ""
    names, metadata = None, (table.schema.metadata or {}).get(b"huggingface", b"{}")
    try:  # what Hugging Face's library writes
        with damaged("the metadata", "write it again"):
            features = parse_json(metadata.decode()).get("info", {}).get("features", {})
            names = check_shape(features.get(label, {}).get("names"), list[Name] | None, "names", "write it again")
    except DearError:
        note = f"the 'huggingface' metadata of {file} cannot be read: labels are taken as they are"
    data = as_dataset(columns, **{**options, "label": label}, classes=names, template=template, root=file.parent,
                      name=file.stem)  # fmt: skip
    return data.noted(note)


def _join_splits(named: Sequence[tuple[str, Labelled]]) -> Labelled:
    """Splits with the same classes, joined."""
    parts, notes = {split_of(name): part for name, part in named}, dict.fromkeys(part.note for _, part in named)
    if len(parts) < len(named):
        raise DearError(f"Two of {', '.join(name for name, _ in named)} are the same split: join them.")
    for name, part in named:
        if part.splits is not None and set(part.splits) != {split_of(name)}:
            raise DearError(f"The images of {name} have a column of splits that names others: give one of the two.")
    if "train" in parts and "val" in parts and "test" not in parts:  # as ImageNet
        parts["test"] = parts.pop("val")
        notes["the validation images are used as test images, as there are no others"] = None
    kinds = {None if part.names is None else tuple(part.names) for part in parts.values()}
    if len(kinds) > 1:
        raise DearError("The splits have different classes: give them the same.")
    joined = Labelled([], [], kinds.pop(), [], "\n".join(filter(None, notes)))
    for split, part in parts.items():
        joined.pictures += part.pictures
        joined.labels += part.labels
        joined.splits = [*(joined.splits or []), *[split] * len(part.pictures)]
    return joined


def _checked_label(value: Any, name: str) -> str | int:
    with suppress(AttributeError, ValueError, RuntimeError, TypeError):  # several numbers, as of one-hot labels
        value = value.item()  # a number of numpy or torch
    if isinstance(value, float) and value.is_integer():  # as pandas reads a column with a gap
        value = int(value)
    if isinstance(value, bool | int) and abs(value) >= 10**18:
        raise DearError(f"{name} has a label with more than 18 digits: give a class name or a small number.")
    if isinstance(value, bool | int) or (isinstance(value, str) and value.strip()):
        return value.strip() if isinstance(value, str) else int(value)
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    advice = "one label per image (of one-hot labels: argmax(1))" if is_column(value) else "a class name or a number"
    raise DearError(f"{name} has {'no label' if missing else f'the label {value!r}'}: give {advice}.")
