"""Few-shot lists in the form of 2SFS: draws are written, compared image by image, and trained on.

    split_fewshot/shot_16-seed_1_train.jsonl     one {"_impath", "_label", "_domain", "_classname"} per line
    split_fewshot/shot_16-seed_1_val.jsonl

The repository of 2SFS has such lists for eleven datasets; `scripts/convert_few_shot.py` converts CoOp's pickles.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TypedDict

from dear.core.errors import DearError
from dear.core.files import parse_json, read_text, to_json, write_text
from dear.core.schema import check_shape, damaged
from dear.data.dataset import Dataset, Example


class _DrawnImage(TypedDict):
    _impath: str
    _label: int


def write_few_shot(dataset: Dataset, shots: int, seed: int, folder: Path) -> list[Path]:
    """Writes the images that `dear train --shots N --seed S` draws, and returns the files."""
    drawn = dataset.few_shot(shots, seed)
    files = []
    for split in ("train", "val"):
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
    by_file: dict[str, list[Example]] = {}
    for example in (*dataset.train, *dataset.val):
        by_file.setdefault(_path_end(str(example.picture), 1), []).append(example)
    found = []
    for number, line in enumerate(filter(str.strip, read_text(file).split("\n")), 1):
        where, advice = f"{file}, line {number},", 'each line must be {"_impath": ..., "_label": ...}'
        with damaged(where, advice):
            row = check_shape(parse_json(line), _DrawnImage, where, advice)
        found.append(_match(row["_impath"], row["_label"], by_file, where, dataset.name))
    if not found:
        raise DearError(f"{file} is empty: give a list with one image per line.")
    return tuple(found)


def with_few_shot(dataset: Dataset, file: Path) -> Dataset:
    """The dataset with the training images of a list, and the validation images of the list beside it, if any."""
    val = file.with_name(file.name.replace("_train.jsonl", "_val.jsonl"))
    has_val = val != file and val.is_file()
    return replace(
        dataset, train=read_few_shot(file, dataset), val=read_few_shot(val, dataset) if has_val else dataset.val
    )


def shared_images(first: Sequence[Example], second: Sequence[Example]) -> tuple[int, int, int, int]:
    """Images in both lists, only in the first, only in the second; and classes whose images are all the same."""
    one, other = set(first), set(second)
    unequal = {example.label for example in one ^ other}
    equal = {example.label for example in one & other} - unequal
    return len(one & other), len(one - other), len(other - one), len(equal)


def _match(path: str, label: int, by_file: dict[str, list[Example]], where: str, name: str) -> Example:
    """The only image with the same file name that shares most of the path."""
    candidates = by_file.get(_path_end(path, 1), [])
    parts = 2
    while len(candidates) > 1 and parts <= len(PurePosixPath(path).parts):
        candidates = [e for e in candidates if _path_end(str(e.picture), parts) == _path_end(path, parts)]
        parts += 1
    if len(candidates) != 1:
        raise DearError(
            f"{where} names {path}, which is not exactly one of the images to train on: take {name}'s list."
        )
    if candidates[0].label != label:
        own = candidates[0].label
        raise DearError(f"{where} gives {path} the class {label}, but in {name} its class is {own}: take its own list.")
    return candidates[0]


def _path_end(path: str, parts: int) -> str:
    return "/".join(PurePosixPath(path.replace("\\", "/")).parts[-parts:])
