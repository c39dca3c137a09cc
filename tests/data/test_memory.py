"""Data in memory: every form gives the same dataset, and each picture opens as the file does."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset
from torchvision.datasets import ImageFolder, VisionDataset

import dear
from dear.data.check import problems
from dear.data.dataset import Dataset, ImageFile
from dear.data.memory import as_dataset
from dear.data.resolve import resolve_dataset
from dear.training.run_folder import RunFolder

from .conftest import counts

KINDS = ("polar_bear", "red panda")
COLORS = {"polar_bear": (200, 220, 240), "red panda": (190, 60, 20)}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[tuple[Path, str]]:
    """Ten small pictures of each class, all different."""
    folder = tmp_path_factory.mktemp("photos")
    listed = []
    for i in range(10):
        for kind in KINDS:
            path = folder / kind / f"{i}.png"
            path.parent.mkdir(exist_ok=True)
            Image.new("RGB", (8, 6), tuple(value + i for value in COLORS[kind])).save(path)
            listed.append((path, kind))
    return listed


@pytest.fixture(scope="module")
def expected(files) -> dict[str, list[tuple[str, tuple]]]:
    return colors(as_dataset(FORMS["paths"](files)))


def colors(dataset: Dataset) -> dict[str, list[tuple[str, tuple]]]:
    """(class name, color) of every picture of each split, in order."""
    parts = {split: getattr(dataset, split) for split in ("train", "val", "test")}
    return {
        split: [(dataset.classes[e.label], e.picture.open().getpixel((3, 3))) for e in examples]
        for split, examples in parts.items()
    }


class Pairs(torch.utils.data.Dataset):
    """A user's own dataset: labels are known only with their images."""

    classes = KINDS

    def __init__(self, files, transform=lambda image: image):
        self.files, self.transform, self.reads = files, transform, 0

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        self.reads += 1
        path, kind = self.files[index]
        return self.transform(Image.open(path).convert("RGB")), KINDS.index(kind)


class Stream(IterableDataset):
    def __init__(self, files):
        self.files = files

    def __iter__(self):
        for path, kind in self.files:
            yield {"image": Image.open(path), "label": kind}


def to_tensor(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255


def frame(library, files, content):
    rows = {"photo": [content(path) for path, _ in files], "kind": [kind for _, kind in files]}
    return library.DataFrame(rows)


def huggingface(files):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"img": datasets.Image(), "kind": datasets.ClassLabel(names=list(KINDS))})
    rows = {"img": [str(path) for path, _ in files], "kind": [kind for _, kind in files]}
    return datasets.Dataset.from_dict(rows, features)


FORMS = {
    "paths": lambda files: ([str(path) for path, _ in files], [kind for _, kind in files]),
    "bytes": lambda files: ([path.read_bytes() for path, _ in files], [kind for _, kind in files]),
    "unread pictures": lambda files: ([Image.open(path) for path, _ in files], [kind for _, kind in files]),
    "pictures": lambda files: ([Image.open(path).copy() for path, _ in files], [kind for _, kind in files]),
    "array": lambda files: (np.stack([np.array(Image.open(p)) for p, _ in files]), np.array([k for _, k in files])),
    "array of paths": lambda files: (np.array([str(path) for path, _ in files]), np.array([k for _, k in files])),
    "columns": lambda files: {"path": [path for path, _ in files], "label": [kind for _, kind in files]},
    "pairs": lambda files: [(path, kind) for path, kind in files],
    "rows": lambda files: [{"image": {"bytes": path.read_bytes(), "path": None}, "label": k} for path, k in files],
    "torch": Pairs,
    "tensors": lambda files: Pairs(files, to_tensor),
    "loader": lambda files: DataLoader(Pairs(files), batch_size=3, shuffle=True),
    "stream": Stream,
    "subset": lambda files: Subset(Pairs([*files, *files]), range(len(files))),
    "huggingface": huggingface,
    "huggingface with a transform": lambda files: huggingface(files).with_transform(lambda rows: 1 / 0),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_dataset(form, files, expected):
    dataset = as_dataset(FORMS[form](files))
    assert dataset.classes == ("polar bear", "red panda")
    assert colors(dataset) == expected
    assert counts(dataset) == (16, 0, 4)
    assert len({example.picture for example in dataset.train}) == len(dataset.train)


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize("content", [str, Path.read_bytes], ids=["paths", "bytes"])
def test_frames(library, content, files, expected):
    library = pytest.importorskip(library)
    dataset = as_dataset(frame(library, files, content), image="photo", label="kind")
    assert colors(dataset) == expected
    with pytest.raises(dear.DearError, match="There is no column 'x': choose from photo, kind"):
        as_dataset(frame(library, files, content), image="x")
    with pytest.raises(dear.DearError, match="No column of photo, kind is called label"):
        as_dataset(frame(library, files, content))


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_columns_of_frames_are_read_by_position(library, files, expected):
    """After a shuffle, an index of pandas is no position."""
    frames = pytest.importorskip(library)
    rows = frame(frames, files, str)
    if library == "pandas":
        rows.index = reversed(range(len(files)))
    for images, labels in ((rows["photo"], rows["kind"]), (rows[["photo"]], rows["kind"]), (rows, rows["kind"])):
        dataset = as_dataset(images, labels)
        assert colors(dataset) == expected
        assert all(isinstance(example.picture, ImageFile) for example in dataset.train), "and files stay files"


def test_a_folder_has_labels_of_its_own(files):
    with pytest.raises(dear.DearError, match="says which class each image has"):
        as_dataset(files[0][0].parent.parent, [kind for _, kind in files])


def test_relative_paths_start_at_the_root_and_splits_are_taken(files):
    pandas = pytest.importorskip("pandas")
    root = files[0][0].parent.parent
    rows = [
        {"path": str(p.relative_to(root)), "label": k, "split": "train" if int(p.stem) else "test"} for p, k in files
    ]
    dataset = as_dataset(pandas.DataFrame(rows), root=root)
    assert counts(dataset) == (18, 0, 2)
    assert all(isinstance(e.picture, ImageFile) for e in dataset.train)


def test_a_mapping_of_splits(files):
    dataset = as_dataset({"train": FORMS["bytes"](files[:12]), "validation": FORMS["bytes"](files[12:16]),
                          "test": FORMS["bytes"](files[16:])})  # fmt: skip
    assert counts(dataset) == (12, 4, 4)
    assert [str(e.picture) for e in dataset.test] == ["test[0]", "test[1]", "test[2]", "test[3]"]


def test_torchvision_folders_are_opened_as_files_and_transforms_are_left_out(files, expected):
    folder = ImageFolder(str(files[0][0].parent.parent), transform=lambda image: 1 / 0)
    dataset = as_dataset(folder)
    assert all(isinstance(e.picture, ImageFile) for e in dataset.train)

    class InMemory(VisionDataset):  # as CIFAR
        targets = tuple(KINDS.index(kind) for _, kind in files)
        classes = KINDS

        def __len__(self):
            return len(files)

        def __getitem__(self, index):
            image = Image.open(files[index][0])
            return (self.transform(image) if self.transform else image), self.targets[index]

    assert colors(as_dataset(InMemory("", transform=lambda image: 1 / 0))) == expected


def test_labels_that_need_the_image_are_read_in_one_pass(files):
    data = Pairs(files)
    dataset = as_dataset(data)
    colors(dataset), colors(dataset)
    assert data.reads == len(files)


def test_numbers_are_named_by_classes(files, expected):
    numbers = [KINDS.index(kind) for _, kind in files]
    images = FORMS["bytes"](files)[0]
    named = as_dataset(images, numbers, classes=KINDS)
    assert named.classes == ("polar bear", "red panda")
    assert not named.note
    assert colors(named) == expected
    assert "name them" in as_dataset(TensorDataset(torch.zeros(4, 3, 2, 2), torch.tensor([0, 0, 1, 1]))).note
    with pytest.raises(dear.DearError, match="has the label 2, which is none of its 2 classes"):
        as_dataset([*images, images[0]], [*numbers, 2], classes=KINDS)


def test_content_is_equal_where_bytes_are(files):
    by_path, by_bytes = (as_dataset(FORMS[form](files)).train[0].picture for form in ("paths", "bytes"))
    assert by_path.content() == by_bytes.content()
    arrays = [as_dataset(np.full((4, 5, 5, 3), value, np.uint8), list("abab")).train[0].picture for value in (1, 1, 2)]
    assert arrays[0].content() == arrays[1].content() != arrays[2].content()


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (([b"no image"] * 4, list("abab")), r"images\[\d\]: These bytes cannot be read as an image"),
        ((np.zeros((4, 5, 5, 3)) - 1, list("abab")), r"images\[\d\]: Pixels .* must be in 0..1, not in -1 to -1"),
        ((["gone.png"] * 2, ["a", "b"]), r"images\[0\] names gone.png, but there is no file"),
        (([b""] * 3, ["a", "b"]), "3 images and 2 labels"),
        (([], []), "There are no images"),
        (([b""] * 2, ["a", None]), r"images\[1\] has no label"),
        (([b""] * 2, ["a", 1.5]), r"images\[1\] has the label 1.5"),
        (([b""] * 2, ["a", "a"]), "has one class, 'a'"),
        ({"cat": [b""], "dog": [b""]}, "No column of cat, dog is called image"),
        (3.5, "Data cannot be of the type float"),
        ([1, 2], r"images\[0\] is not a pair"),
        ([{"image": b"", "label": "a", "split": "x"}], r"images\[0\] is in no split"),
    ],
)  # fmt: skip
def test_bad_data(data, sentence):
    with pytest.raises(dear.DearError, match=sentence):
        as_dataset(data).train[0].picture.open()


def test_train_and_evaluate(files, tmp_path):
    data = FORMS["bytes"](files)
    settings = {"model": "dear-mini", "method": "coop", "epochs": 1, "shots": 2, "workers": 0}
    model = dear.train(data, out=tmp_path / "run", **settings)
    assert model.classes == ("polar bear", "red panda")
    run = RunFolder(tmp_path / "run")
    assert [name for name, _ in run.few_shot()["train"]] != []
    assert run.settings()["data"].startswith("memory:")
    assert model.evaluate(data).accuracy == pytest.approx(run.test()["all"])
    assert dear.evaluate(model, data, split="all").images == len(files)
    dear.train(data, out=tmp_path / "run", resume=True, **settings)
    with pytest.raises(dear.DearError, match="other settings"):
        dear.train((data[0][2:], data[1][2:]), out=tmp_path / "run", resume=True, **settings)
    with pytest.raises(dear.DearError, match="data in memory"):
        resolve_dataset(run.settings()["data"])


def test_images_in_memory_are_checked_as_files_are(files):
    images, labels = FORMS["bytes"](files)
    splits = ["train"] * 16 + ["test"] * 4
    rows = [{"image": i, "label": k, "split": s} for i, k, s in zip(images, labels, splits, strict=True)]
    rows[17]["image"] = rows[1]["image"]  # also in train
    rows[3]["image"] = b"no image"
    found = problems(as_dataset(rows), 4)
    assert [(str(one), str(other)) for one, other in found.leaked] == [("images[1]", "images[17]")]
    with pytest.raises(dear.DearError, match=r"The image images\[3\] cannot be read \(it is not an image in one"):
        found.refuse_unreadable()


def test_a_folder_may_be_called_memory(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "memory").symlink_to(files[0][0].parent.parent)
    assert resolve_dataset("memory").classes == ("polar bear", "red panda")
