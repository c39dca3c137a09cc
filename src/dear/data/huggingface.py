"""Datasets of Hugging Face (`pip install 'dear-vlm[data]'`)."""

from typing import Any

from dear.core.errors import DearError
from dear.data.memory import IMAGE_COLUMNS, LABEL_COLUMNS, Labelled, find_column, labelled


class _Column:
    """A column of a table that stays on disk."""

    def __init__(self, rows: Any, name: str) -> None:
        self.rows, self.name = rows.select_columns([name]), name

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index][self.name]


def read_rows(rows: Any, title: str, image: str | None = None, label: str | None = None) -> Labelled:
    """Pictures and labels of one split; images stay encoded, and on disk, until they are opened."""
    from datasets import ClassLabel, Image

    features = rows.features or {}
    if not hasattr(rows, "__len__"):
        raise DearError(f"The {title} are a stream, which has no end: give a dataset that was not opened as a stream.")
    kinds = {
        kind: [name for name, feature in features.items() if isinstance(feature, kind)] for kind in (Image, ClassLabel)
    }
    image = find_column(features, image or next(iter(kinds[Image]), None), IMAGE_COLUMNS, "image")
    label = find_column(features, label or next(iter(kinds[ClassLabel]), None), LABEL_COLUMNS, "label")
    names = features[label].names if label in kinds[ClassLabel] else None
    if image in kinds[Image]:
        rows = rows.cast_column(image, Image(decode=False))
    return labelled(_Column(rows, image), list(rows[label]), title, names)
