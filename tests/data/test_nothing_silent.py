"""Nothing is decided in silence: no test image is trained on, pictures are those shown, and a line tells the rest."""

import json
from pathlib import Path

import pytest
from PIL import Image
from torch.utils.data import DataLoader, Subset
from torchvision.datasets import ImageFolder, VisionDataset

import dear
from dear.cli import main
from dear.core.errors import DearError
from dear.data.check import problems
from dear.data.dataset import Dataset
from dear.data.resolve import resolve_dataset

from .conftest import picture

pandas, polars, arrow = map(pytest.importorskip, ("pandas", "polars", "pyarrow"))
KINDS = ("cat", "dog")
LABELS = [kind for kind in KINDS for _ in range(4)]


@pytest.fixture
def files(tmp_path, monkeypatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    return [
        str(picture(tmp_path / "photos" / kind / f"{i}.png", 20 * i + ord(kind[0]) - 90))
        for kind in KINDS
        for i in range(4)
    ]


def in_rows(columns: dict) -> list[dict]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def in_parquet(columns: dict) -> Dataset:
    pandas.DataFrame(columns).to_parquet("list.parquet")
    return resolve_dataset("list.parquet")


def in_csv(columns: dict) -> Dataset:
    pandas.DataFrame(columns).to_csv("list.csv", index=False)
    return resolve_dataset("list.csv")


def in_jsonl(columns: dict) -> Dataset:
    Path("list.jsonl").write_text("\n".join(map(json.dumps, in_rows(columns))))
    return resolve_dataset("list.jsonl")


def in_hub(columns: dict) -> Dataset:
    return dear.dataset(pytest.importorskip("datasets").Dataset.from_dict(columns))


FORMS = {
    "dict": dear.dataset, "rows": lambda columns: dear.dataset(in_rows(columns)), "Parquet": in_parquet, "hub": in_hub,
    "pandas": lambda columns: dear.dataset(pandas.DataFrame(columns)), "CSV": in_csv, "JSONL": in_jsonl,
    "Polars": lambda columns: dear.dataset(polars.DataFrame(columns)),
    "Arrow": lambda columns: dear.dataset(arrow.table(columns)),
}  # fmt: skip
NAMES = ["split", "Split", "SPLIT", "subset", "Fold", "set", "dataSet", "is_test", "partition", "whatever"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("words", [("train", "test"), ("Train", " TEST")], ids=str)
def test_no_test_image_is_trained_on(form, name, words, files):
    columns = {"Path": files, "Label": LABELS, "weight": [1] * 8, name: [words[i % 4 == 3] for i in range(8)]}
    if name.lower() != "split":
        with pytest.raises(DearError, match=f"The column '{name}' may say which images are for testing"):
            FORMS[form](columns)
        return
    dataset = FORMS[form](columns)
    assert {e.picture.open().tobytes() for e in dataset.test} == {Image.open(file).tobytes() for file in files[3::4]}
    assert len(dataset.train) == 6
    assert dataset.note == f"columns: images 'Path', classes 'Label', splits '{name}'; not used: 'weight'"


@pytest.mark.parametrize("form", FORMS)
def test_columns_are_named_where_there_is_no_split(form, files):
    dataset = FORMS[form]({"path": files, "label": LABELS, "size": [3] * 8})
    assert dataset.note == "columns: images 'path', classes 'label'; not used: 'size'"
    assert dataset.rule


def test_a_column_that_is_no_split_is_left_out_by_name(files):
    columns = {"image": files, "label": LABELS, "fold": [0, 1] * 4}
    assert dear.dataset(columns, split="").rule
    assert "not used: 'fold'" in dear.dataset(columns, split="").note
    assert len(dear.dataset({**columns, "fold": ["train", "test"] * 4}, split="fold").test) == 4
    pandas.DataFrame(columns).to_parquet("list.parquet")
    assert resolve_dataset("list.parquet?split=").rule


@pytest.mark.parametrize("parts", [("train", "test"), ("Train", "TEST"), ("training", "testing")], ids=str)
def test_folders_of_splits_in_any_case(parts, tmp_path):
    for part, count in zip(parts, (3, 2), strict=True):
        for kind in KINDS:
            for i in range(count):
                picture(tmp_path / part / kind / "more" / f"{i}.png")
    picture(tmp_path / "old" / "cat" / "0.png")
    dataset = resolve_dataset(str(tmp_path))
    assert (len(dataset.train), len(dataset.test), dataset.rule) == (6, 4, "")
    assert "left out, beside the folders of the splits: old" in dataset.note
    assert "in folders within those of the classes, and taken for these: 10 images" in dataset.note


def test_every_command_tells_it(files, capsys, model_folder):
    pandas.DataFrame({"path": files, "Label": ["cat ", *LABELS[1:]], "size": 3}).to_csv("list.csv", index=False)
    model = ["--model", f"local-dir:{model_folder}", "--device", "cpu"]
    commands = (
        ["data", "check", "list.csv"],
        ["fit", "list.csv", "--out", "fit", "--cache", "kept", *model],
        ["compare", "list.csv", "--methods", "zero-shot", *model],
        ["train", "--data", "list.csv", "--method", "coop", "--epochs", "1", "--out", "run", *model],
    )
    for command in commands:
        assert main(command) == 0
        told = capsys.readouterr().out
        assert "columns: images 'path', classes 'Label'; not used: 'size'" in told, command[0]
        assert "labels read as one class: 'cat ' and 'cat'" in told, command[0]


@pytest.mark.parametrize("labels", [["cat ", "cat", "dog", "dog"], [1.0, 1, 2, 2], [True, 1, 2, 2]], ids=str)
def test_merged_labels_are_named(labels, files):
    assert "labels read as one class: " in dear.dataset(files[:4], labels).note


@pytest.mark.parametrize("kind", ["gif", "tiff", "png", "webp"])
def test_the_frame_that_is_shown_is_read(kind, tmp_path):
    shades = (30, 120, 220)
    frames = [Image.new("RGB", (16, 16), (shade,) * 3) for shade in shades]
    frames[0].save(tmp_path / f"a.{kind}", save_all=True, append_images=frames[1:], lossless=True)

    def shown(number: int) -> Image.Image:
        image = Image.open(tmp_path / f"a.{kind}")
        image.seek(number)
        return image

    one = shown(0)
    moving = []
    for number in range(3):
        one.seek(number)
        moving.append((one, "cat" if number else "dog"))
        dataset = dear.dataset([shown(number)] * 2, KINDS)
        one.seek(0)  # the caller goes on
        assert [e.picture.open().getpixel((5, 5))[0] for e in dataset.train] == [shades[number]] * 2

    def going_on():
        for number in range(3):
            one.seek(number)
            yield one, KINDS[number % 2]

    dataset = dear.dataset(going_on())
    seen = [e.picture.open().getpixel((5, 5))[0] for e in (*dataset.train, *dataset.test)]
    assert sorted(seen) == sorted(shades)
    frames[0].save(tmp_path / "b.png")
    found = problems(dear.dataset([tmp_path / f"a.{kind}", tmp_path / "b.png"], KINDS), 1)
    assert [line for line in found.warnings() if f"files with several pictures: 1 ({tmp_path / f'a.{kind}'})" in line]


class Own(VisionDataset):
    """Pictures whose labels an item may change."""

    classes, targets = KINDS, tuple(map(KINDS.index, LABELS))

    def __init__(self, files, **transforms):
        super().__init__("", **transforms)
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        pair = Image.open(self.files[index]), self.targets[index]
        return self.transforms(*pair) if self.transforms else pair


class Swapped(Own):
    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image, 1 - label


def swap(label: int) -> int:
    return 1 - label


TORCH = {
    "target_transform": lambda files: Own(files, target_transform=swap),
    "both": lambda files: Own(files, transform=lambda image: 1 / 0, target_transform=swap),
    "transforms": lambda files: Own(files, transforms=lambda image, label: (image, swap(label))),
    "own items": Swapped,
    "folder": lambda files: ImageFolder(str(Path(files[0]).parent.parent), target_transform=swap),
    "loader of files": lambda files: ImageFolder(str(Path(files[0]).parent.parent), target_transform=swap,
                                                 loader=lambda path: Image.open(path)),
    "subset": lambda files: Subset(Own(files, target_transform=swap), range(8)),
    "loader": lambda files: DataLoader(Own(files, target_transform=swap), shuffle=True),
}  # fmt: skip


@pytest.mark.parametrize("form", TORCH)
def test_labels_are_those_that_items_have(form, files):
    dataset = dear.dataset(TORCH[form](files))
    found = {(e.picture.open().tobytes(), dataset.classes[e.label]) for e in (*dataset.train, *dataset.test)}
    assert found == {(Image.open(file).tobytes(), KINDS[1 - i // 4]) for i, file in enumerate(files)}


def test_what_becomes_of_a_transform_is_said(files):
    assert "left out: the dataset's transform" in dear.dataset(Own(files, transform=lambda image: 1 / 0)).note
    loader = DataLoader(Own(files), collate_fn=lambda items: items)
    assert "left out: the loader's collate_fn" in dear.dataset(loader).note
