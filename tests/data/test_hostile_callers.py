"""Wrong things for every public entry point: each ends in one sentence that says what to do, and no other exception."""

import datetime
import io
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset, WeightedRandomSampler

import dear
from dear.core.errors import DearError
from dear.data.check import problems

pandas, polars, arrow = map(pytest.importorskip, ("pandas", "polars", "pyarrow"))

CLASSES = ("cat", "dog", "owl")
LABELS = [name for name in CLASSES for _ in range(4)]
SPLITS = ["train", "train", "train", "test"] * 3
COUNT = len(LABELS)
HUGE = 10**5000


def png(number: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8), (20 * number, 0, 90)).save(stream, "png")
    return stream.getvalue()


PICTURES = [png(number) for number in range(COUNT)]
NUMBERS = [CLASSES.index(name) for name in LABELS]
PIXELS = np.zeros((COUNT, 8, 8, 3), np.uint8)


class Raising:
    """A sequence of the user's whose code fails."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        raise ZeroDivisionError("here")


class NoLength(Raising):
    def __len__(self):
        raise OSError("gone")


def refused(call, *arguments, **options) -> None:
    """The call ends in a DearError of one line, with advice."""
    with pytest.raises(DearError) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    assert re.search(r": | must |\. | not by ", str(caught.value)), str(caught.value)


def whole(*arguments, **options) -> None:
    """A dataset whose every picture is opened."""
    problems(dear.dataset(*arguments, **options), 1).refuse_unreadable()


def fit(data, labels=None) -> None:
    dear.fit(data, labels, model="dear-mini")


def train(data, labels=None) -> None:
    dear.train(data if labels is None else (data, labels), out=Path("run"), model="dear-mini", epochs=1)


USES = [whole, fit, train]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An own folder to work in, with one more folder and a pipe."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")


def all_but_one(value: object) -> list:
    return [value, *LABELS[1:]]


WRONG_LABELS = {
    "one-hot array": np.eye(3)[NUMBERS], "one-hot tensor": torch.eye(3)[NUMBERS], "one-hot lists": [[1, 0, 0]] * COUNT,
    "none": all_but_one(None), "nan": all_but_one(float("nan")), "pandas' none": all_but_one(pandas.NA),
    "half": all_but_one(1.5), "infinite": all_but_one(float("inf")), "bytes": all_but_one(b"cat"),
    "complex": all_but_one(1j), "5,000 digits": all_but_one(HUGE), "5,000 letters": all_but_one("1" * 5000),
    "empty": all_but_one(" "), "an object": all_but_one(object()), "a date": all_but_one(datetime.date(2026, 1, 1)),
    "a control character": all_but_one("a\0b"), "a lone surrogate": all_but_one("\ud800"),
    "too few": LABELS[1:], "too many": [*LABELS, "cat"], "one class": ["cat"] * COUNT, "no sequence": 3,
    "a text": "catdogowlcat", "a set": set(LABELS), "a mapping": dict(enumerate(LABELS)), "a generator": iter(LABELS),
    "no labels": [], "a single number": np.array(3), "raising": Raising(), "no length": NoLength(),
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", WRONG_LABELS)
def test_labels(use, kind):
    refused(use, PICTURES, WRONG_LABELS[kind])


def unread(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


WRONG_IMAGES = {
    "no file": "gone.png", "a folder": "folder", "a pipe": "pipe", "a null byte": "a\0b", "5,000 letters": "a" * 5000,
    "a surrogate": "\ud800", "an address": "https://example.org/a.png", "no image": b"no image", "no bytes": b"",
    "a cut file": PICTURES[0][:45], "a cut picture": unread(PICTURES[0][:45]), "none": None, "a number": 7,
    "an object": object(), "an empty dict": {}, "a dict of numbers": {0: PICTURES[0]},
    "32 bits": Image.new("I", (8, 8)),
    "no pixels": Image.new("RGB", (0, 8)), "flat": np.zeros(8, np.uint8),
    "four channels": np.zeros((8, 8, 4), np.uint8),
    "no height": np.zeros((0, 8, 3), np.uint8), "five axes": np.zeros((1, 1, 8, 8, 3)), "objects": np.array([[None]]),
    "whole numbers": np.zeros((8, 8, 3), np.int64), "truth": np.zeros((8, 8, 3), bool),
    "complex": np.zeros((8, 8, 3)) + 1j,
    "nan": np.full((8, 8, 3), np.nan), "normalised": torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(0)),
    "normalised bfloat16": torch.full((3, 8, 8), -1.0).bfloat16(), "sparse": torch.zeros(3, 8, 8).to_sparse(),
    "meta": torch.zeros(3, 8, 8, device="meta"), "too thin": Image.new("RGB", (1, 5000)),
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", WRONG_IMAGES)
def test_images(use, kind):
    refused(use, [WRONG_IMAGES[kind], *PICTURES[1:]], LABELS)


def twice(name: str):
    return pandas.DataFrame(list(zip(PICTURES, LABELS, LABELS, strict=True)), columns=["image", "label", name])


def table(**more) -> dict:
    return {"image": PICTURES, "label": LABELS, **more}


def loader(sampler) -> DataLoader:
    return DataLoader(TensorDataset(torch.zeros(COUNT, 3, 8, 8), torch.tensor(NUMBERS)), sampler=sampler)


def columns(names: list) -> "arrow.Table":
    return arrow.table([arrow.array(PICTURES), arrow.array(LABELS), arrow.array(LABELS)], names=names)


WRONG_DATA = {
    **{f"a column {name}": table(**{name: SPLITS}) for name in ("fold", "Subset", "data_set", "isTest",
    "partition", "x")},
    "folds": table(fold=NUMBERS), "two labels": twice("label"), "labels in capitals": twice("Label"),
    "two labels of Arrow": columns(["image", "label", "label"]), "numbers as names": {0: PICTURES, 1: LABELS},
    "rows with numbers": [{0: image, 1: label} for image, label in zip(PICTURES, LABELS, strict=True)],
    "unknown splits": table(split=["a"] * COUNT), "a missing split": table(Split=[None, *SPLITS[1:]]),
    "a row without split": [{"image": PICTURES[0], "label": "cat"},
                            *({"image": i, "label": k, "split": "test"} for i, k in zip(PICTURES, LABELS,
                            strict=True))],
    "splits at odds": {"train": table(split=SPLITS), "test": table(split=SPLITS)},
    "a split twice": {"val": table(), "validation": table()}, "a split of nothing": {"train": table(), "test": []},
    "a split of another type": {"train": table(), "test": 3}, "no rows": pandas.DataFrame({"image": [], "label": []}),
    "no columns": pandas.DataFrame(), "an empty dict": {}, "an empty list": [],
    "none": None, "a number": HUGE, "a text": b"x",
    "columns of unequal length": {"image": PICTURES, "label": LABELS[1:]}, "texts": ["a", "b"], "a type": dict,
    "triples": [(PICTURES[0], "cat", "train")] * COUNT, "raising": Raising(), "no length": NoLength(),
    "a raising generator": (1 / 0 for _ in range(3)),
    "one-hot tensors": TensorDataset(torch.zeros(6, 3, 8, 8), torch.eye(6)),
    "a loader of a part": loader(SubsetRandomSampler(range(6))),
    "a loader that repeats": loader(WeightedRandomSampler([1.0] * COUNT, COUNT)),
    "polars of folds": polars.DataFrame({"image": PICTURES, "label": LABELS, "Fold": NUMBERS}),
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", WRONG_DATA)
def test_data(use, kind):
    refused(use, WRONG_DATA[kind])


@pytest.mark.parametrize(
    "options",
    [{"image": "x"}, {"label": 3}, {"split": "x"}, {"classes": 3}, {"classes": "abc"}, {"classes": [1, 2]},
    {"classes": []},
     {"classes": ["cat",
     "CAT"]}, {"classes": CLASSES[:2]}, {"template": "a photo"}, {"template": 3}, {"template": "{} {x}"},
     {"template": "{}" + "x" * 5000}, {"root": 3}],
    ids=str,
)  # fmt: skip
def test_options(options):
    refused(whole, table(), **options)


@pytest.fixture(scope="module")
def model():
    return dear.create("dear-mini", classes=CLASSES, method="zero-shot")


@pytest.mark.parametrize("kind", WRONG_IMAGES)
def test_images_to_predict(model, kind):
    refused(model.predict, WRONG_IMAGES[kind])
    refused(model.predict, [PICTURES[0], WRONG_IMAGES[kind]])


WRONG_QUESTIONS = {
    "a stream": io.BytesIO(PICTURES[0]), "a raising sequence": Raising(), "no length": NoLength(),
    "a raising generator": (1 / 0 for _ in range(3)), "a table without images": pandas.DataFrame({"x": [1]}),
    "a loader of a part": loader(SubsetRandomSampler(range(6))), "a type": dict, "a set of numbers": {1, 2},
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG_QUESTIONS)
def test_what_predict_is_given(model, kind):
    refused(model.predict, WRONG_QUESTIONS[kind])


@pytest.mark.parametrize("options", [{"topk": n} for n in (0, -1, 1.5, "3", None)] + [{"inference": 5}], ids=str)
def test_settings_of_predict(model, options):
    refused(model.predict, PICTURES[0], **options)


@pytest.mark.parametrize("kind", WRONG_IMAGES)
def test_the_classifier(kind):
    sklearn = pytest.importorskip("dear.sklearn")
    refused(sklearn.DearClassifier(model="dear-mini", cache=".").fit, [WRONG_IMAGES[kind], *PICTURES[1:]], LABELS)
