"""Finds image and label columns in DataFrames, Arrow tables, dicts and lists of rows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import methodcaller
from typing import Any, Generic, TypeVar

import numpy as np

from dear.core.errors import DearError

Given = TypeVar("Given")
Made = TypeVar("Made", covariant=True)
IMAGE_COLUMNS = ("image", "img", "picture", "photo", "path", "file", "filename", "file_name", "filepath", "file_path",
                 "image_path", "bytes", "jpg", "jpeg", "png", "webp")  # fmt: skip
LABEL_COLUMNS = ("label", "labels", "class", "class_name", "category", "target", "cls", "fine_label")


def find_column(columns: Iterable[str], given: str | None, usual: Sequence[str], what: str) -> str:
    """The name of a column: the one given, or the first with a usual name. `what`: image or label."""
    names = list(columns)
    if given is not None and given not in names:
        raise DearError(f"There is no column {given!r}: choose from {', '.join(names)}.")
    chosen = given or next((name for one in usual for name in names if name.lower() == one), None)
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
        return {str(name): in_order(column) for name, column in data.items()}
    if hasattr(data, "collect") and hasattr(data, "collect_schema"):  # a lazy frame of Polars
        data = data.collect()
    if hasattr(data, "columns") and hasattr(data, "iloc"):
        return {str(name): data[name].tolist() for name in data.columns}
    if hasattr(data, "columns") and hasattr(data, "to_dicts"):
        return {name: data[name].to_list() for name in data.columns}
    if hasattr(data, "column_names") and hasattr(data, "schema"):
        return {name: _arrow_values(data.column(name)) for name in data.column_names}
    if isinstance(data, list) and data and all(isinstance(row, Mapping) for row in data):
        return {name: [row.get(name) for row in data] for name in data[0]}
    return None


def is_column(value: Any) -> bool:
    return hasattr(value, "__len__") and hasattr(value, "__getitem__") and not isinstance(value, str | bytes | Mapping)


def in_order(values: Any) -> Any:
    """A column of pandas or Polars, or an array of names, as a list: an index of pandas need not count from 0."""
    if hasattr(values, "to_list"):
        return values.to_list()
    return values.tolist() if isinstance(values, np.ndarray) and values.ndim == 1 else values


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
