"""--data hf:USER/NAME[:SPLIT]: datasets of the Hugging Face hub, or in its form on disk.

Options follow a question mark: image=COLUMN, label=COLUMN, split=COLUMN, config=NAME, and per_class=N, which streams a
large dataset and keeps the first N images of each class and split in place of downloading all of it.
"""

import re
from collections import Counter
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from dear.core.errors import DearError, first_line, needing
from dear.core.files import read_text
from dear.core.progress import Progress
from dear.data.columns import IMAGE_COLUMNS, LABEL_COLUMNS, Mapped, choose_columns, find_column
from dear.data.dataset import CLASS_NAMES_FILE, Dataset
from dear.data.memory import Labelled, as_dataset, labelled, splits_or_whole
from dear.data.splits import split_of

_BUFFER = 1000  # images of a stream that are held to shuffle it


def hub_dataset(name: str, split: str, options: Mapping[str, str], template: str) -> Dataset:
    """A dataset of the hub or in its form on disk. `split`: one of its own, or empty for all."""
    per_class = options.get("per_class")
    if per_class is not None and not (re.fullmatch("[0-9]{1,9}", per_class) and int(per_class)):
        raise DearError(f"per_class must be a number of images from 1 on, not {per_class!r}.")
    rows = _load_rows(name, split, options.get("config"), streaming=per_class is not None)
    parts = rows if isinstance(rows, dict) else {split: rows}
    if not all(map(split_of, parts)):  # some of a split's images, or a split of another name
        if len(parts) > 1:
            raise DearError(
                f"{name} has the splits {', '.join(parts)}: choose one, as in hf:{name}:{next(iter(parts))}."
            )
        parts = {"": next(iter(parts.values()))}
    image, label, column = (options.get(name) for name in ("image", "label", "split"))
    if per_class is not None:
        parts = {part: _first_of_each(stream, int(per_class), part, image, label) for part, stream in parts.items()}

    whole = splits_or_whole(parts)

    def read(classes: list[str] | None = None) -> Dataset:
        return as_dataset(whole, image=image, label=label, split=column, classes=classes, template=template, name=name)

    data = read()
    if all(text.isdecimal() for text in data.classes) and (names := _class_file(name)):
        data = read(names)
    if per_class is not None:
        data = data.noted(f"at most {per_class} images of each class in each split")
    return data


def read_rows(rows: Any, title: str, given: tuple[str | None, ...] = (None,) * 3, whole: bool = True) -> Labelled:
    """Pictures and labels of one split; images stay encoded, and on disk, until they are opened."""
    if not hasattr(rows, "__len__"):
        raise DearError(f"The {title} are a stream: open the dataset without streaming=True.")
    image, label, names = _typed_columns(rows, *given[:2])
    plain = rows.with_format(None)
    columns = {name: _on_disk(plain, name) for name in rows.column_names}
    image, label, split, note = choose_columns(columns, image, label, given[2], whole)
    splits = list(plain[split]) if split else None
    return labelled(row_images(rows, image), list(plain[label]), title, names, splits, note=note)


def row_images(rows: Any, image: str | None = None) -> Any:
    """The images of rows, with labels or without, as a sequence."""
    return _on_disk(*_encoded_images(rows, image))


def _on_disk(rows: Any, column: str) -> Mapped:
    return Mapped(rows.select_columns([column]), itemgetter(column))


def _typed_columns(rows: Any, image: str | None, label: str | None) -> tuple[str, str, list[str] | None]:
    """The names of the image and label columns, found by their types first; class names, if they are known."""
    from datasets import ClassLabel, Image

    features = rows.features or {}
    images, labels = ([n for n, feature in features.items() if isinstance(feature, k)] for k in (Image, ClassLabel))
    image = find_column(features, image or next(iter(images), None), IMAGE_COLUMNS, "image")
    label = find_column(features, label or next(iter(labels), None), LABEL_COLUMNS, "label")
    return image, label, features[label].names if label in labels else None


def _encoded_images(rows: Any, image: str | None) -> tuple[Any, str]:
    """Rows whose images are neither decoded nor transformed (the backbone has its own transform), and their column."""
    from datasets import Image

    features = rows.features or {}
    images = [name for name, feature in features.items() if isinstance(feature, Image)]
    image = find_column(features, image or next(iter(images), None), IMAGE_COLUMNS, "image")
    rows = rows.with_format(None)
    return rows.cast_column(image, Image(decode=False)) if image in images else rows, image


def _first_of_each(stream: Any, count: int, title: str, image: str | None, label: str | None) -> Any:
    """The first `count` rows of each class of a stream, as a table in memory."""
    from datasets import Dataset as Rows

    image, label, names = _typed_columns(stream, image, label)
    stream, _ = _encoded_images(stream, image)
    if hasattr(stream, "to_iterable_dataset"):  # it is saved on disk
        stream = stream.to_iterable_dataset()
    seen: Counter[Any] = Counter()
    rows = []
    with Progress(f"{title or 'images'}: streaming", count * len(names or ())) as bar:
        for row in stream.shuffle(seed=0, buffer_size=_BUFFER):
            seen[row[label]] += 1
            if seen[row[label]] <= count:
                rows.append(row)
                bar.update()
            if names and len(rows) == count * len(names):
                break
    return Rows.from_list(rows, features=stream.features)


def _load_rows(name: str, split: str, config: str | None, streaming: bool) -> Any:
    with needing("Datasets of Hugging Face need its library", "'dear-vlm[data]'"):
        import datasets
    odd = (p for p in Path(name).rglob("*") if p.exists() and not p.is_file() and not p.is_dir())
    if (pipe := next(odd, None)) is not None:  # the library would wait for somebody to write
        raise DearError(f"{pipe} is not a regular file: remove it.")
    saved = [Path(name) / file for file in ("dataset_dict.json", "state.json")]
    try:
        if any(file.is_file() for file in saved):
            rows = datasets.load_from_disk(name)
            if split and not isinstance(rows, dict):
                raise DearError(f"{name} has no splits: leave out :{split}.")
            return rows[split] if split else rows
        return datasets.load_dataset(name, config, split=split or None, streaming=streaming)
    except DearError:
        raise
    except Exception as error:  # the library raises many kinds
        if "gated" in str(error).lower():
            raise DearError(f"{name} is gated: accept its terms on the hub, then run hf auth login.") from None
        raise DearError(f"The dataset {name} cannot be loaded: {first_line(error)}.") from None


def _class_file(name: str) -> list[str] | None:
    """Class names of a dataset whose labels are numbers, in CLIP_benchmark's file; None if it has no such file."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    if Path(name).is_dir():
        file = Path(name) / CLASS_NAMES_FILE
    else:
        try:
            file = Path(hf_hub_download(name, CLASS_NAMES_FILE, repo_type="dataset"))
        except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError):
            return None
    return read_text(file).splitlines() if file.is_file() else None
