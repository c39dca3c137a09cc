"""Few-shot lists in the form of 2SFS, so that draws can be compared image by image, and trained on.

    split_fewshot/shot_16-seed_1_train.jsonl     one {"_impath", "_label", "_domain", "_classname"} per line
    split_fewshot/shot_16-seed_1_val.jsonl

The repository of 2SFS gives such lists for eleven datasets; `scripts/convert_few_shot.py` makes them of CoOp's pickles.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypedDict

from dear.core.errors import DearError
from dear.core.files import parse_json, read_text, to_json, write_text
from dear.core.schema import check_shape
from dear.data.dataset import Dataset, Example

_SPLITS = ("train", "val")


class _Needed(TypedDict):
    _impath: str
    _label: int


class _Row(_Needed, total=False):
    _domain: int
    _classname: str


class Overlap(NamedTuple):
    """Images in both lists, only in the first, only in the second; and classes whose images are all the same."""

    both: int
    first: int
    second: int
    equal_classes: int


def write_few_shot(dataset: Dataset, shots: int, seed: int, folder: Path) -> list[Path]:
    """Writes the images that `dear train --shots N --seed S` draws; the files."""
    drawn = dataset.few_shot(shots, seed)
    files = []
    for split in _SPLITS:
        lines = [
            {"_impath": str(e.picture), "_label": e.label, "_domain": 0, "_classname": dataset.classes[e.label]}
            for e in getattr(drawn, split)
        ]
        if lines:  # most folders have no validation images
            files.append(folder / f"shot_{shots}-seed_{seed}_{split}.jsonl")
            write_text(files[-1], "".join(to_json(line) + "\n" for line in lines))
    return files


def read_few_shot(file: Path, dataset: Dataset) -> tuple[Example, ...]:
    """The images of a list, found in the dataset by the end of their paths: lists hold paths of other machines."""
    places: dict[str, list[Example]] = {}
    for example in (*dataset.train, *dataset.val):
        places.setdefault(_end(str(example.picture), 1), []).append(example)
    found = []
    for number, line in enumerate(filter(str.strip, read_text(file).splitlines()), 1):
        where = f"{file}, line {number},"
        row = check_shape(parse_json(line), _Row, where, 'each line must be {"_impath": ..., "_label": ...}')
        found.append(_match(row["_impath"], row["_label"], places, where, dataset.name))
    if not found:
        raise DearError(f"{file} is empty: give a list with one image per line.")
    return tuple(found)


def with_few_shot(dataset: Dataset, file: Path) -> Dataset:
    """The dataset with the training images of a list and, if it lies beside it, the validation images."""
    val = file.with_name(file.name.replace("_train.jsonl", "_val.jsonl"))
    has_val = val != file and val.is_file()
    return replace(
        dataset, train=read_few_shot(file, dataset), val=read_few_shot(val, dataset) if has_val else dataset.val
    )


def overlap(first: Sequence[Example], second: Sequence[Example]) -> Overlap:
    one, other = set(first), set(second)
    labels = {example.label for example in one | other}
    equal = [
        label for label in labels if {e for e in one if e.label == label} == {e for e in other if e.label == label}
    ]
    return Overlap(len(one & other), len(one - other), len(other - one), len(equal))


def _match(path: str, label: int, places: dict[str, list[Example]], where: str, name: str) -> Example:
    """Of images with the same file name, the one that shares most of the path; it must be the only one."""
    candidates = places.get(_end(path, 1), [])
    parts = 2
    while len(candidates) > 1 and parts <= len(PurePosixPath(path).parts):
        candidates = [e for e in candidates if _end(str(e.picture), parts) == _end(path, parts)]
        parts += 1
    if len(candidates) != 1:
        raise DearError(f"{where} names {path}, which is not one image to train on of {name}.")
    if candidates[0].label != label:
        raise DearError(f"{where} gives {path} the class {label}, and {name} {candidates[0].label}: they differ.")
    return candidates[0]


def _end(path: str, parts: int) -> str:
    return "/".join(PurePosixPath(path.replace("\\", "/")).parts[-parts:])
