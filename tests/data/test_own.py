"""One's own pictures: folders, lists and split files are read as documented, and mistakes are said in a sentence."""

import json
from pathlib import Path

import pytest

from dear.core.errors import DearError, DearWarning
from dear.data.check import describe_dataset
from dear.data.dataset import Dataset
from dear.data.folder import clean_names, find_images
from dear.data.resolve import resolve_dataset

from .conftest import counts, picture


def class_folders(root: Path, *counts: int) -> None:
    """The folders a, b, ... with so many pictures each."""
    for name, count in zip("abc", counts, strict=False):
        for i in range(count):
            picture(root / name / f"{i}.png")


def names(dataset: Dataset, split: str, root: Path) -> list[tuple[str, int]]:
    return [(e.picture.path.relative_to(root).as_posix(), e.label) for e in getattr(dataset, split)]


def refused(name: Path | str, sentence: str, **options: str) -> None:
    with pytest.raises(DearError, match=sentence) as caught:
        resolve_dataset(str(name), **options)
    assert "\n" not in str(caught.value)


# --- folders -------------------------------------------------------------------------------------------------


def test_class_folders_are_split_the_same_way_every_time(tmp_path: Path) -> None:
    for i in range(10):
        picture(tmp_path / "001.polar_bear" / f"{i}.png")
        picture(tmp_path / "002.cat" / f"{i}.JPG")
    dataset = resolve_dataset(str(tmp_path))
    assert dataset.classes == ("polar bear", "cat")
    assert dataset.prompts == ["a photo of a polar bear.", "a photo of a cat."]
    assert counts(dataset) == (16, 0, 4)
    every = [e.picture.path for e in (*dataset.train, *dataset.val, *dataset.test)]
    assert len(set(every)) == 20
    assert all((e.label == 1) == ("cat" in str(e.picture.path)) for e in dataset.test)
    assert resolve_dataset(str(tmp_path)) == dataset


@pytest.mark.parametrize(
    ("images", "rule", "counts"),
    [(16, "75/0/25", (12, 0, 4)), (16, "60/15/25", (10, 2, 4)), (4, "75/0/25", (3, 0, 1)), (2, "75/0/25", (1, 0, 1)),
     (1, "75/0/25", (1, 0, 0)), (3, "60/15/25", (2, 0, 1)), (10, "100/0/0", (10, 0, 0)), (16, "50/20/30", (8, 3, 5)),
     (3, "50/20/30", (2, 1, 0))],
)  # fmt: skip
def test_a_rule_divides_every_class(tmp_path: Path, images: int, rule: str, counts: tuple[int, ...]) -> None:
    class_folders(tmp_path, images, images)
    dataset = resolve_dataset(str(tmp_path), split=rule)
    assert dataset.rule == rule
    splits = (dataset.train, dataset.val, dataset.test)
    assert [tuple(sum(e.label == label for e in s) for s in splits) for label in (0, 1)] == [counts, counts]


def test_a_wrong_rule_or_one_for_images_with_a_split_is_refused(tmp_path: Path) -> None:
    class_folders(tmp_path / "train", 1, 1)
    class_folders(tmp_path / "test", 1, 1)
    refused(tmp_path, "has a split of its own: leave --split out", split="80/0/20")
    for rule in ("80/20", "80/10/20", "a/b/c", "0/50/50", "-10/10/100", "1e2/0/0"):
        refused(tmp_path, "--split", split=rule)


def test_folds_test_every_image_once_and_balance_classes(tmp_path: Path) -> None:
    class_folders(tmp_path, 7, 5)
    dataset = resolve_dataset(str(tmp_path))
    every = sorted(str(e.picture) for e in (*dataset.train, *dataset.test))
    folds = dataset.folds(3)
    assert sorted(str(e.picture) for fold in folds for e in fold.test) == every
    for fold in folds:
        assert not set(fold.train) & set(fold.test)
        assert len(fold.train) + len(fold.test) == 12
        assert [sum(e.label == label for e in fold.test) for label in (0, 1)] in ([3, 2], [2, 2], [2, 1])
    assert dataset.folds(3) == folds


def test_names_stay_apart_where_cleaning_would_make_them_the_same() -> None:
    assert clean_names(["01_red_fox", "02_cat"]) == ["red fox", "cat"]
    assert clean_names(["737-200", "747-200"]) == ["737-200", "747-200"]


def test_split_folders_are_taken_as_they_are(tmp_path: Path) -> None:
    class_folders(tmp_path / "train", 3, 3)
    class_folders(tmp_path / "test", 2, 2)
    dataset = resolve_dataset(str(tmp_path))
    assert counts(dataset) == (6, 0, 4)
    picture(tmp_path / "test" / "c" / "0.png")
    refused(tmp_path, "test/c has no counterpart in train: rename it")


def test_wrong_folders_are_refused(tmp_path: Path) -> None:
    picture(tmp_path / "one" / "cat" / "0.png")
    refused(tmp_path / "one", "holds 1 class folders: make one folder of images for each class")
    (tmp_path / "one" / "dog").mkdir()
    refused(tmp_path / "one", "dog has no images: add some or remove it")
    refused(tmp_path / "none", "There is no folder or file .*: give a folder .* or one of ImageNet, .*, ImageNet-R")
    (tmp_path / "notes.txt").write_text("cats")
    refused(tmp_path / "notes.txt", "is not a dataset: give a folder, a split .json, or a .csv or .jsonl")


# --- split files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("images", ["", "images"])
@pytest.mark.parametrize("file", ["split.json", "split_zhou_Own.json"])
def test_split_files_work_by_themselves_and_by_their_folder(tmp_path: Path, images: str, file: str) -> None:
    entries = {s: [[f"{s}{i}.png", i, ("red_fox", "cat")[i]] for i in (0, 1)] for s in ("train", "val", "test")}
    for split in entries.values():
        for path, *_ in split:
            picture(tmp_path / images / path)
    (tmp_path / file).write_text(json.dumps(entries))
    dataset = resolve_dataset(str(tmp_path))
    assert dataset == resolve_dataset(str(tmp_path / file))
    assert dataset.classes == ("red fox", "cat")  # CoOp's prompts have no underscores
    assert names(dataset, "test", tmp_path / images) == [("test0.png", 0), ("test1.png", 1)]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ([1, 2], "is damaged .*: each entry must be"),
        ({"train": [["a.png", "cat"]]}, "is damaged .*: each entry must be"),
        ({"test": [["a.png", 0, "cat"]]}, 'no training images: it needs a list under "train"'),
        ({"train": [["a.png", 1, "cat"]]}, "must number its classes from 0 without gaps"),
        ({"train": [["b.png", 0, "cat"], ["b.png", 1, "dog"]]}, "names the image b.png, but there is no .*/b.png: put"),
    ],
)
def test_wrong_split_files_are_refused(tmp_path: Path, value: object, sentence: str) -> None:
    picture(tmp_path / "a.png")
    (tmp_path / "split.json").write_text(json.dumps(value))
    refused(tmp_path, sentence)


# --- lists ---------------------------------------------------------------------------------------------------


def write_list(file: Path, rows: list[dict]) -> Path:
    if file.suffix == ".csv":
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        file.write_text("\ufeff" + "\n".join(lines) + "\n", encoding="utf-8")
    else:
        file.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    return file


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_list_with_splits(tmp_path: Path, kind: str) -> None:
    elsewhere = picture(tmp_path / "elsewhere" / "x.png")
    rows = [{"path": str(elsewhere), "label": "red_fox", "split": "test"}]
    for i, split in enumerate(["train", "train", "val", "test"]):
        picture(tmp_path / "lists" / "pics" / f"{i}.png")
        rows.append({"path": f"pics/{i}.png", "label": ("red_fox", "cat")[i % 2], "split": split})
    dataset = resolve_dataset(str(write_list(tmp_path / "lists" / f"mine.{kind}", rows)))
    assert (dataset.name, dataset.classes) == ("mine", ("cat", "red fox"))
    assert names(dataset, "train", tmp_path / "lists") == [("pics/0.png", 1), ("pics/1.png", 0)]
    assert names(dataset, "val", tmp_path / "lists") == [("pics/2.png", 1)]
    assert [e.picture.path for e in dataset.test] == [elsewhere, tmp_path / "lists" / "pics" / "3.png"]


def test_photos_that_are_left_out_are_named(tmp_path: Path) -> None:
    """Photos of phones and cameras: without a warning, most of a folder could be missing."""
    for name in ("cat", "dog"):
        picture(tmp_path / "photos" / name / "0.png")
    picture(tmp_path / "photos" / "cat" / "1.JFIF")
    (tmp_path / "photos" / "notes.txt").write_text("x")
    assert describe_dataset(resolve_dataset(str(tmp_path / "photos"))).count("cannot be read") == 0
    picture(tmp_path / "photos" / "lost.png")
    assert "left out, in no folder of a class: 1 image" in describe_dataset(resolve_dataset(str(tmp_path / "photos")))
    (tmp_path / "photos" / "lost.png").unlink()
    for file in ("cat/2.HEIC", "cat/3.heic", "dog/4.CR2"):
        (tmp_path / "photos" / file).write_bytes(b"x")
    dataset = resolve_dataset(str(tmp_path / "photos"))
    assert len((*dataset.train, *dataset.test)) == 3
    assert "left out, as they cannot be read: 3 photos (.cr2, .heic); convert them to JPEG" in describe_dataset(dataset)
    with pytest.warns(DearWarning, match=r"3 photos \(.cr2, .heic\) of "):
        assert [path.name for path in find_images([str(tmp_path / "photos")])] == ["0.png", "1.JFIF", "0.png"]
    for file in ("0.png", "1.JFIF"):
        (tmp_path / "photos" / "cat" / file).unlink()
    refused(tmp_path / "photos", r"has 2 photos \(.heic\) that cannot be read, and no images: convert them to JPEG")
    with pytest.raises(DearError, match=r"has 2 photos \(.heic\) that cannot be read: convert"):
        find_images([str(tmp_path / "photos" / "cat")])


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_list_without_splits_is_split_like_folders(tmp_path: Path, kind: str) -> None:
    class_folders(tmp_path / "photos", 7, 7)
    rows = [{"path": f"photos/{name}/{i}.png", "label": name} for name in "ab" for i in range(7)]
    listed = resolve_dataset(str(write_list(tmp_path / f"mine.{kind}", rows[::-1])))  # the order of rows is no matter
    folders = resolve_dataset(str(tmp_path / "photos"))
    assert (listed.train, listed.val, listed.test) == (folders.train, folders.val, folders.test)


def test_numbered_classes_come_in_the_order_of_numbers(tmp_path: Path) -> None:
    picture(tmp_path / "0.png")
    rows = [{"path": "0.png", "label": label, "split": "train"} for label in (10, 9, 0)]
    assert resolve_dataset(str(write_list(tmp_path / "mine.jsonl", rows))).classes == ("0", "9", "10")


@pytest.mark.parametrize(
    ("kind", "text", "sentence"),
    [
        ("csv", "image,class\n0.png,cat\n", "first line of .* must be path,label or path,label,split"),
        ("csv", "", "first line of .* must be path,label"),
        ("csv", "path,label\n0.png,\n", "line 2: each row needs a path and a label"),
        ("csv", "path,label\n0.png,cat\n1.png,dog\n", "line 3 names 1.png, but there is no file .*: correct the path"),
        ("csv", "path,label,split\n0.png,cat,train\n0.png,dog,demo\n", "3: split must be train, val or test, not demo"),
        ("csv", "path,label,split\n0.png,cat,train\n0.png,dog\n", "3: split must be train, val or test, not empty"),
        ("csv", "path,label\n0.png,cat\n", "has one class, 'cat': it needs images of at least two"),
        ("jsonl", '{"path": "0.png"}\n', "line 1.*: each row needs a path"),
        ("jsonl", '["0.png", "cat"]\n', 'line 1 is not an object like {"path"'),
        ("jsonl", '{"path": \n', "cannot be read as a list of images"),
    ],
)  # fmt: skip
def test_wrong_lists_are_refused(tmp_path: Path, kind: str, text: str, sentence: str) -> None:
    picture(tmp_path / "0.png")
    (tmp_path / f"mine.{kind}").write_text(text)
    refused(tmp_path / f"mine.{kind}", sentence)


# --- class names ---------------------------------------------------------------------------------------------


def test_class_names_are_replaced_by_a_file(tmp_path: Path) -> None:
    file = tmp_path / "names.json"
    file.write_text('{"teal": "blue-green"}')
    dataset = resolve_dataset("world:colors", "a {}.", str(file))
    before = resolve_dataset("world:colors")
    assert dataset.classes == tuple("blue-green" if name == "teal" else name for name in before.classes)
    assert "a blue-green." in dataset.prompts
    assert dataset.test == before.test


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"mauve": "x"}', "world:colors has no class 'mauve': give the names exactly as they are shown"),
        ('{"teal": "red"}', "Two classes would be called 'red': give each its own name"),
        ('["teal"]', "must hold one JSON object like"),
        ('{"teal": 3}', "must hold one JSON object like"),
        ("{", "cannot be read as JSON"),
    ],
)
def test_wrong_class_names_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "names.json").write_text(text)
    refused("world:colors", sentence, class_names=str(tmp_path / "names.json"))


def test_a_template_needs_a_place_for_the_name() -> None:
    refused("world:colors", "must have one {} where the class name goes", template="a photo")
