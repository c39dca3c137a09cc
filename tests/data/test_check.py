"""Problems of a dataset are found and reported before training starts."""

import io
import json
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dear.cli import main
from dear.clip import load_backbone
from dear.core.errors import DearError
from dear.data import check
from dear.data.check import check_before_training, describe_dataset, problems
from dear.data.dataset import Dataset, Example, ImageFile
from dear.data.decode import why_unreadable
from dear.data.prompts import check_class_names
from dear.data.resolve import resolve_dataset
from dear.data.world.tasks import world_task


def picture(path: Path, seed: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three images of two classes in each split, all different and in order."""
    seed = 0
    for split in ("train", "val", "test"):
        for name in ("cat", "dog"):
            for i in range(3):
                picture(tmp_path / "photos" / split / name / f"{i}.png", seed := seed + 1)
    return tmp_path / "photos"


def leak(photos: Path) -> None:
    shutil.copy(photos / "train" / "cat" / "1.png", photos / "test" / "cat" / "renamed.png")


def read(photos: Path) -> Dataset:
    return resolve_dataset(str(photos))


def test_nothing_is_found_where_nothing_is_wrong(photos: Path) -> None:
    findings = problems(read(photos), 3)
    assert findings.warnings() == []
    findings.refuse_unreadable()


def test_copies_and_leaks_are_found_by_their_bytes(photos: Path) -> None:
    shutil.copy(photos / "train" / "cat" / "0.png", photos / "train" / "dog" / "again.png")
    leak(photos)
    shutil.copy(photos / "val" / "dog" / "1.png", photos / "val" / "dog" / "9.png")
    findings = problems(read(photos), 3)

    def pair(one: str, other: str) -> tuple[ImageFile, ImageFile]:
        return ImageFile(photos / one), ImageFile(photos / other)

    assert findings.leaked == [pair("train/cat/1.png", "test/cat/renamed.png")]
    assert findings.duplicates == {
        "train": [pair("train/dog/again.png", "train/cat/0.png")],
        "val": [pair("val/dog/9.png", "val/dog/1.png")],
    }
    leaks, train, val, labels = findings.warnings()
    assert "cat and dog" in labels
    assert "also in test (same bytes): 1, such as" in leaks
    assert "remove one of each" in leaks
    assert "twice in train (same bytes): 1" in train
    assert "twice in val (same bytes): 1" in val
    assert "keep one of each" in val


def test_same_size_is_not_same_bytes(photos: Path) -> None:
    file = photos / "test" / "dog" / "twin.png"
    data = bytearray((photos / "train" / "dog" / "0.png").read_bytes())
    file.write_bytes(data + b"ab")
    (photos / "train" / "dog" / "twin.png").write_bytes(data + b"ba")
    assert problems(read(photos), 3).leaked == []


def test_only_files_of_equal_size_are_read_to_compare(photos: Path, monkeypatch) -> None:
    leak(photos)
    for i in range(3):
        longer = photos / "val" / "dog" / f"{i}.png"
        longer.write_bytes(longer.read_bytes() + bytes(i + 1))  # what follows a PNG's end is not looked at
    dataset = read(photos)
    sizes = [p.stat().st_size for p in photos.rglob("*.png")]
    hashed = []
    monkeypatch.setattr(check, "_file_digest", lambda path, _: hashed.append(path) or path.read_bytes())
    problems(dataset, 3)
    assert len(hashed) == sum(sizes.count(size) > 1 for size in sizes) == len(sizes) - 3


def jpeg(**options: bool) -> bytes:
    out = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    Image.fromarray(noise).save(out, "JPEG", **options)
    return out.getvalue()


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_images_that_end_too_early_are_unreadable(tmp_path: Path, share: float, progressive: bool) -> None:
    data = jpeg(progressive=progressive)
    file = tmp_path / "a.jpg"
    file.write_bytes(data)
    assert why_unreadable(ImageFile(file, side=1)) == ""
    file.write_bytes(data[: int(len(data) * share)])
    assert why_unreadable(ImageFile(file, side=1))


def test_the_check_agrees_with_what_training_reads(tmp_path: Path) -> None:
    """An image is unreadable to the check exactly if opening it as training does fails."""
    cases = {"text.jpg": b"not an image", "empty.png": b"", "whole.jpg": jpeg(), "cut.jpg": jpeg()[:-300]}
    for name, data in cases.items():
        (tmp_path / name).write_bytes(data)
    Image.new("LA", (5, 4)).save(tmp_path / "grey.png")
    Image.fromarray(np.full((4, 5), 40000, np.uint16)).save(tmp_path / "sixteen_bits.tif")
    (tmp_path / "folder.jpg").mkdir()
    for path in [*tmp_path.iterdir(), tmp_path / "missing.jpg"]:
        readable = False
        with suppress(DearError):
            readable = bool(ImageFile(path).open())
        assert (why_unreadable(ImageFile(path, side=1)) == "") is readable, path.name


def test_unreadable_images_stop_a_run_and_up_to_three_are_named(photos: Path) -> None:
    (photos / "test" / "dog" / "0.png").write_bytes(b"broken")
    with pytest.raises(DearError, match=r"^The image .*test/dog/0.png cannot be read \(.*\): repair or remove it\.$"):
        check_before_training(read(photos), 3)
    for i in range(3):
        (photos / "train" / "cat" / f"{i}.png").write_bytes(b"broken, too")
    with pytest.raises(DearError) as caught:
        check_before_training(read(photos), 3)
    assert str(caught.value).count(".png") == 3
    assert "cannot be read (4 in all): repair or remove them." in str(caught.value)


def test_small_classes_are_named(photos: Path) -> None:
    (photos / "train" / "dog" / "0.png").unlink()
    (line,) = problems(read(photos), 3).warnings()
    assert "unbalanced: 1 of 2 classes have fewer training images than the 3 used of the largest class (dog: 2)" in line
    assert "--shots 2" in line
    task = world_task("colors")
    many = replace(task, train=tuple(e for e in task.train if e.label == 0) + task.train[:5])
    (line,) = problems(many, 16).warnings()
    assert "unbalanced: 11 of 12 classes" in line
    assert ": 0, " in line  # the smallest first
    assert ", ...)" in line
    assert not problems(task, 1000).warnings()  # equally many: no fault


def test_a_name_of_two_classes_is_said(photos: Path) -> None:
    (line,) = problems(replace(read(photos), classes=("cat", "cat")), 3).warnings()
    assert "class names that CLIP reads as one: 'cat' and 'cat'; only the first can be predicted" in line


@pytest.mark.parametrize("names", [("Cat", "cat"), ("caf\u00e9", "cafe\u0301"), ("a  cat", "a cat"), ("cat ", "cat")])
def test_names_that_are_one_for_the_tokenizer_are_said(photos: Path, names: tuple[str, str]) -> None:
    tokens = load_backbone().text.tokenize(list(names))[0]
    assert torch.equal(tokens[0], tokens[1])  # else the warning would be wrong
    (line,) = problems(replace(read(photos), classes=names), 3).warnings()
    assert f"CLIP reads as one: {names[0]!r} and {names[1]!r}" in line
    with pytest.raises(DearError, match="given twice"):
        check_class_names(names)


def test_one_picture_with_two_labels_is_said(photos: Path) -> None:
    image = next((photos / "train" / "cat").iterdir())
    data = read(photos)
    wrong = replace(data, train=(*data.train, Example(ImageFile(image), data.classes.index("dog"))))
    said = "\n".join(problems(wrong, 3).warnings())
    assert f"images with two labels (same bytes): 1, such as {image}, cat and dog; keep the right label" in said


def test_scenes_of_attribute_world_cost_nothing(monkeypatch) -> None:
    monkeypatch.setattr("dear.data.world.vocabulary.Scene.open", None)  # drawing any would fail
    dataset = world_task("signs")
    assert problems(dataset, 16).warnings() == []


def test_what_cannot_be_trained_or_tested_is_refused(photos: Path) -> None:
    dataset = read(photos)
    with pytest.raises(DearError, match="photos has no training images: train on another dataset, and test on this"):
        check_before_training(replace(dataset, train=()), 3)
    with pytest.raises(DearError, match="photos has no test images: add a test split"):
        check_before_training(replace(dataset, test=()), 3)


def test_a_description_shows_the_names_in_a_few_lines(photos: Path) -> None:
    dataset = read(photos)
    assert describe_dataset(dataset).splitlines() == [
        "photos: 6 / 6 / 6 images to train / validate / test",
        "prompt: a photo of a {}.",
        "2 classes: cat, dog",
    ]
    many = replace(dataset, classes=tuple(f"kind of thing number {i}" for i in range(1000)), note="by a rule")
    lines = describe_dataset(many).splitlines()
    assert len(lines) == 6
    assert max(map(len, lines)) < 120
    assert lines[-2].endswith(" ...")
    assert lines[-1] == "by a rule"


# --- as a user sees it ------------------------------------------------------------------------------------------


def test_data_check_reports_everything_and_ends_with_2_if_it_is_serious(photos: Path, capsys) -> None:
    assert main(["data", "check", str(photos), "--shots", "3"]) == 0
    page = capsys.readouterr().out
    assert "No problems found." in page
    assert "2 classes: cat, dog" in page
    assert "class  train  validate  test" in page
    leak(photos)
    assert main(["data", "check", str(photos)]) == 2
    out, error = capsys.readouterr()
    assert "- training images that are also in test" in out
    assert error == "dear: photos has training images that are also in test: remove one of each.\n"
    (photos / "val" / "dog" / "0.png").write_bytes(b"broken")
    assert main(["data", "check", str(photos)]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_train_says_it_before_it_starts(photos: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    """The backbone is not even loaded when data cannot be read; warnings stand on stderr, a line each."""

    def stop(*_, **__):
        raise DearError("here the backbone would be loaded.")

    monkeypatch.setattr("dear.training.backbone.load_backbone", stop)
    names = tmp_path / "names.json"
    names.write_text(json.dumps({"cat": "house cat"}))
    leak(photos)
    command = ["train", "--model", "ViT-B-32", "--pretrained", "openai", "--data", str(photos)]
    command += ["--class-names", str(names), "--out", str(tmp_path / "run")]
    assert main(command) == 2
    out, error = capsys.readouterr()
    assert "2 classes: house cat, dog" in out
    parts = [line.partition(": ")[2].partition(":")[0] for line in error.splitlines()]
    assert parts == ["warning", "here the backbone would be loaded."]
    (photos / "test" / "dog" / "2.png").write_bytes(b"broken")
    assert main(command) == 2
    error = capsys.readouterr().err
    assert "dog/2.png cannot be read" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()
