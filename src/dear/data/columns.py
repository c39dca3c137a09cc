"""The columns of tables, and of all that is like one."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dear.core.errors import DearError

IMAGE_COLUMNS = ("image", "img", "picture", "photo", "path", "file", "filename", "file_name", "filepath", "file_path",
                 "image_path", "bytes", "jpg", "jpeg", "png", "webp")  # fmt: skip
LABEL_COLUMNS = ("label", "labels", "class", "class_name", "category", "target", "cls", "fine_label")


def find_column(columns: Iterable[str], given: str | None, usual: Sequence[str], what: str) -> str:
    """The column that was given, or the first with a usual name."""
    names = list(columns)
    if given is not None and given not in names:
        raise DearError(f"There is no column {given!r}: choose from {', '.join(names)}.")
    chosen = given or next((name for one in usual for name in names if name.lower() == one), None)
    if chosen is None:
        raise DearError(
            f"No column of {', '.join(names)} is called {what}: say which it is, with dear.dataset(..., {what}=NAME), "
            f"or ?{what}=NAME after the name of a Parquet file or a hub dataset."
        )
    return chosen


def columns_of(data: Any) -> dict[str, Any] | None:
    """The columns of a table of pandas, Polars or Arrow, of a mapping, or of a list of rows; None: not a table."""
    if isinstance(data, Mapping) and data and all(map(is_column, data.values())):
        return {str(name): in_order(column) for name, column in data.items()}
    if hasattr(data, "collect") and hasattr(data, "collect_schema"):  # a lazy frame of Polars
        data = data.collect()
    if hasattr(data, "columns") and hasattr(data, "iloc"):
        return {str(name): data[name].tolist() for name in data.columns}
    if hasattr(data, "columns") and hasattr(data, "to_dicts"):
        return {name: data[name].to_list() for name in data.columns}
    if hasattr(data, "column_names") and hasattr(data, "schema"):
        return {name: _arrow_column(data.column(name)) for name in data.column_names}
    if isinstance(data, list) and data and all(isinstance(row, Mapping) for row in data):
        return {name: [row.get(name) for row in data] for name in data[0]}
    return None


def is_column(value: Any) -> bool:
    return hasattr(value, "__len__") and hasattr(value, "__getitem__") and not isinstance(value, str | bytes | Mapping)


def in_order(values: Any) -> Any:
    """A column of pandas or Polars, or an array of names, as a list: the index of pandas is no position."""
    if hasattr(values, "to_list"):
        return values.to_list()
    return values.tolist() if isinstance(values, np.ndarray) and values.ndim == 1 else values


def column_of(values: Any, given: str | None, usual: Sequence[str], what: str) -> Any:
    """A column, or the column of this kind in a table, as a sequence that counts from 0."""
    columns = columns_of(values) if hasattr(values, "columns") else None
    return in_order(values) if columns is None else columns[find_column(columns, given, usual, what)]


class _ArrowColumn:
    """A column of images, which are copied when they are opened."""

    def __init__(self, column: Any) -> None:
        self.column = column

    def __len__(self) -> int:
        return len(self.column)

    def __getitem__(self, index: int) -> Any:
        return self.column[index].as_py()


def _arrow_column(column: Any) -> Any:
    large = "binary" in str(column.type)  # also a struct of bytes and path
    return _ArrowColumn(column) if large else column.to_pylist()
