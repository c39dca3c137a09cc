"""Finds the dataset that a value of --data names."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from dear.core.errors import DearError
from dear.core.files import read_json
from dear.core.schema import Name, check_shape
from dear.data.dataset import Dataset
from dear.data.folder import TEMPLATE, read_dataset
from dear.data.known import KNOWN, find_known
from dear.data.memory import as_dataset, read_parquet
from dear.data.prompts import check_name, check_template
from dear.data.splits import divide_again
from dear.data.world.tasks import world_task

HELP = (
    "a folder with one folder of images per class, a split JSON, a CSV or JSONL of path,label[,split], a known dataset "
    "(`dear data list`), a Parquet file, hf:USER/NAME[:SPLIT] of Hugging Face, wds:SHARDS, torchvision:NAME, or "
    "world:TASK[:STYLE] of Attribute World"
)
IN_MEMORY = "memory"


def resolve_dataset(
    data: Any,
    template: str | None = None,
    class_names: str | None = None,
    root: str | None = None,
    split: str | None = None,
) -> Dataset:
    """The dataset that --data names, or one made of data in memory (`dear.data.memory.as_dataset`).

    `template` (with one {}) and the names in the file `class_names` replace the dataset's own; `root`: the folder that
    holds the known datasets; `split`: shares as "80/0/20", for images without a split of their own.
    """
    if template is not None:
        check_template(template)
    names = None if class_names is None else _read_names(Path(class_names))
    dataset = _find_dataset(str(data), root) if isinstance(data, str | Path) else as_dataset(data)
    if split is not None:
        dataset = divide_again(dataset, split)
    if template is not None:
        dataset = replace(dataset, template=template)
    return dataset if names is None else dataset.with_class_names(names)


def name_in_memory(dataset: Dataset) -> str:
    """The value of --data in a run on data in memory, which names its labels: a run continues on equal labels only."""
    parts = [[example.label for example in split] for split in (dataset.train, dataset.val, dataset.test)]
    return f"{IN_MEMORY}:{hashlib.sha256(repr((dataset.classes, parts)).encode()).hexdigest()[:12]}"


def is_world(name: str) -> bool:
    """Whether a value of --data names a task of Attribute World."""
    return name.partition(":")[0] == "world"


def _find_dataset(name: str, root: str | None) -> Dataset:
    if is_world(name):
        return world_task(*name.partition(":")[2].split(":", 1))
    if name.startswith(f"{IN_MEMORY}:"):
        raise DearError("This run was trained on data in memory, which no file holds: give the data again.")
    if (dataset := _from_library(name, root)) is not None:
        return dataset
    entry = find_known(name)
    # With a root, a known name means that dataset even if a local folder has the same name: its template differs.
    if Path(name).exists() and not (entry and root):
        return read_dataset(Path(name), TEMPLATE)
    if entry is None:
        raise DearError(
            f"There is no folder or file {name}: give a folder with one folder of images for each class, or one of "
            f"{', '.join(e.name for e in KNOWN)}."
        )
    if root is None:
        raise DearError(f"{entry.name} needs --data-root: give the folder that holds {entry.folder}.")
    if not Path(root).is_dir():
        raise DearError(f"There is no folder {root}: --data-root must be the folder that holds {entry.folder}.")
    return entry.load(Path(root))


def _from_library(name: str, root: str | None) -> Dataset | None:
    """A dataset of hf:, wds:, torchvision: or a Parquet file; None for other names.

    Options follow a question mark, as in hf:USER/NAME?label=kind.
    """
    kind, _, place = name.partition(":")
    place, _, query = place.partition("?")
    if kind == "hf":
        from dear.data.huggingface import hub_dataset

        drive, rest = (place[:2], place[2:]) if place[1:2] == ":" else ("", place)  # C: on Windows
        where, _, split = rest.partition(":")
        return hub_dataset(
            drive + where, split, _options(query, "image", "label", "split", "config", "per_class"), TEMPLATE
        )
    if kind == "wds":
        from dear.data.shards import shard_dataset

        return shard_dataset(name.partition(":")[2], TEMPLATE)
    if kind == "torchvision":
        from dear.data.torch_data import torchvision_dataset

        return torchvision_dataset(place, root, TEMPLATE)
    file, _, query = name.partition("?")
    if file.endswith(".parquet"):
        if not Path(file).is_file():
            raise DearError(f"There is no file {file}: correct the path.")
        return read_parquet(Path(file), _options(query, "image", "label", "split"), TEMPLATE)
    return None


def _options(query: str, *names: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := next((name for name in options if name not in names), None):
        raise DearError(f"There is no option {unknown!r} of --data here: choose from {', '.join(names)}.")
    return options


def _read_names(file: Path) -> dict[str, str]:
    names = read_json(file)
    check_shape(names, dict[str, Name], str(file), 'it must hold one JSON object like {"current name": "new name"}')
    return {current: check_name(new).strip() for current, new in names.items()}
