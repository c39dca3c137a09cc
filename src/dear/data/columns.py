"""Finds image and label columns in DataFrames, Arrow tables, dicts and lists of rows."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import methodcaller
from typing import Any, Generic, TypeVar

from dear.core.errors import DearError
from dear.data.splits import split_of

Given = TypeVar("Given")
Made = TypeVar("Made", covariant=True)
IMAGE_COLUMNS = ("image", "img", "picture", "photo", "path", "file", "filename", "file_name", "filepath", "file_path",
                 "image_path", "bytes", "jpg", "jpeg", "png", "webp")  # fmt: skip
LABEL_COLUMNS = ("label", "labels", "class", "class_name", "category", "target", "cls", "fine_label")
_MAY_SPLIT = {"split", "splits", "subset", "fold", "folds", "set", "partition", "phase", "holdout", "train", "training",
              "test", "testing", "val", "valid", "validation"}  # fmt: skip
"""Words in the names of columns that may say which images are for testing."""


def choose_columns(
    columns: Mapping[str, Any], image: str | None, label: str | None, split: str | None = None, whole: bool = True
) -> tuple[str, str, str | None, str]:
    """The columns of images, labels and splits, given or found by usual names, and a line on them for the user.

    `split`: empty for none; `whole`: no split was given, so a column that may hold one under another name is refused.
    """
    image = find_column(columns, image, IMAGE_COLUMNS, "image")
    label = find_column(columns, label, LABEL_COLUMNS, "label")
    rest = [name for name in columns if name not in (image, label)]
    if split or (split is None and any(name.lower() == "split" for name in rest)):
        split = find_column(rest, split, ("split",), "split")
    elif split is None and whole and (asked := next((name for name in rest if _may_split(name, columns)), None)):
        raise DearError(
            f"The column {asked!r} may say which images are for testing, and would be ignored: call it split, with "
            "train, val and test in it; or remove it, or say split='' (?split= after a Parquet file or hub dataset)."
        )
    unused = [repr(name) for name in rest if name != split]
    parts = [f"images {image!r}", f"classes {label!r}", *([f"splits {split!r}"] if split else [])]
    left = f"; not used: {', '.join(unused[:10])}{', ...' * (len(unused) > 10)}" if unused else ""
    return image, label, split or None, f"columns: {', '.join(parts)}{left}"


def _may_split(name: str, columns: Mapping[str, Any]) -> bool:
    """Whether a column has the name, or only the values, of a split."""
    if _MAY_SPLIT & {word.lower() for word in re.findall("[A-Z]?[a-z]+|[A-Z]+", name)}:
        return True
    with suppress(Exception):  # a column of images that cannot be decoded is no split
        values = columns[name]
        return bool(len(values)) and isinstance(values[0], str) and all(map(split_of, values))
    return False


def find_column(columns: Iterable[str], given: str | None, usual: Sequence[str], what: str) -> str:
    """The name of a column: the one given, or the first with a usual name. `what`: image or label."""
    names = list(map(str, columns))
    if given is not None and given not in names:
        raise DearError(f"There is no column {given!r}: choose from {', '.join(names)}.")
    found = next((same for one in usual if (same := [name for name in names if name.lower() == one])), [])
    if given is None and len(found) > 1:
        raise DearError(f"The columns {found[0]!r} and {found[1]!r} differ in capitals alone: rename one.")
    chosen = given or next(iter(found), None)
    if chosen is None:
        raise DearError(
            f"No column of {', '.join(names)} is called {what}: name it with dear.dataset(..., {what}=NAME), or with "
            f"?{what}=NAME after the name of a Parquet file or a hub dataset."
        )
    return chosen


def columns_of(data: Any) -> dict[str, Any] | None:
    """The columns of a table: a DataFrame of pandas or Polars, an Arrow table, a mapping from names to columns, or a
    list of rows; None if `data` is none of these."""
    if isinstance(data, Mapping) and data and all(map(is_column, data.values())):
        return _by_name(data, map(in_order, data.values()))
    if hasattr(data, "collect") and hasattr(data, "collect_schema"):  # a lazy frame of Polars
        data = data.collect()
    if hasattr(data, "columns") and hasattr(data, "iloc"):
        return _by_name(data.columns, (data.iloc[:, i].tolist() for i in range(len(data.columns))))
    if hasattr(data, "columns") and hasattr(data, "to_dicts"):
        return {name: data[name].to_list() for name in data.columns}
    if hasattr(data, "column_names") and hasattr(data, "schema"):
        return _by_name(data.column_names, map(_arrow_values, data.columns))
    if isinstance(data, list) and data and all(isinstance(row, Mapping) for row in data):
        names = dict.fromkeys(name for row in data for name in row)  # the first row need not have all
        return _by_name(names, ([row.get(name) for row in data] for name in names))
    return None


def _by_name(names: Iterable[Any], values: Iterable[Any]) -> dict[str, Any]:
    """Columns by their names, which may be of any type but must differ."""
    texts = list(map(str, names))
    if twice := next((text for text, count in Counter(texts).items() if count > 1), None):
        raise DearError(f"Two columns are called {twice!r}: rename one.")
    return dict(zip(texts, values, strict=True))


def merged_labels(given: Sequence[Any], checked: Sequence[str | int]) -> str:
    """A line on labels that differ, but are read as one class; empty if there are none."""
    written: dict[str | int, dict[str, None]] = {}
    for value, label in zip(given, checked, strict=True):
        if isinstance(value, str | int | float):
            written.setdefault(label, {})[str(value)] = None
    several = [" and ".join(map(repr, texts)) for texts in written.values() if len(texts) > 1]
    return f"labels read as one class: {', '.join(several[:3])}{', ...' * (len(several) > 3)}" if several else ""


def is_column(value: Any) -> bool:
    """Whether it has one value after the other: no text, no mapping, and no single number of NumPy or PyTorch."""
    sized = hasattr(value, "__len__") and hasattr(value, "__getitem__") and getattr(value, "ndim", None) != 0
    return sized and not isinstance(value, str | bytes | Mapping | type)


def in_order(values: Any) -> Any:
    """A column of pandas or Polars, an array of names or a tensor of numbers as a list: an index of pandas need not
    count from 0."""
    if hasattr(values, "to_list"):
        return values.to_list()
    return values.tolist() if hasattr(values, "tolist") and getattr(values, "ndim", 0) == 1 else values


def column_of(values: Any, given: str | None, usual: Sequence[str], what: str) -> Any:
    """A sequence that counts from 0: of `values` itself, or of its column for `what` if it is a table."""
    columns = columns_of(values) if hasattr(values, "columns") else None
    return in_order(values) if columns is None else columns[find_column(columns, given, usual, what)]


class Mapped(Generic[Given, Made]):
    """Items after a function, which is called when an item is asked for; a loader of torch calls it in its workers."""

    def __init__(self, items: Any, function: Callable[[Given], Made]) -> None:
        self.items, self.function = items, function

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Made:
        return self.function(self.items[index])


def _arrow_values(column: Any) -> Any:
    has_images = "binary" in str(column.type)  # also in a struct of bytes and path; copied when they are opened
    return Mapped(column, methodcaller("as_py")) if has_images else column.to_pylist()
