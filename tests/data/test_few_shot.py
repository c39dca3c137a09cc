"""Few-shot lists: 2SFS's form, CoOp's pickles without running them, and training on the list of others."""

import json
import os
import pickle
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest

import convert_few_shot
from dear.cli import main
from dear.core.errors import DearError
from dear.data.few_shot import read_few_shot, shared_images, with_few_shot, write_few_shot
from dear.data.folder import read_dataset
from dear.data.splits import VALIDATED_SPLIT, divide_again
from dear.data.world.tasks import world_task
from dear.training.run_folder import RunFolder

from .conftest import picture

pytestmark = pytest.mark.usefixtures("few_pictures")


@pytest.fixture
def photos(tmp_path) -> Path:
    """Two classes whose files have the same names."""
    for kind in ("cat", "dog"):
        for number in range(10):
            picture(tmp_path / "photos" / kind / f"{number}.png")
    return tmp_path / "photos"


def elsewhere(file: Path, photos: Path) -> None:
    """The list with the paths of another machine."""
    file.write_text(file.read_text().replace(str(photos), "/home/somebody/DATA/photos"))


def test_what_is_written_is_read_again_from_any_machine(photos, tmp_path):
    dataset = divide_again(read_dataset(photos), VALIDATED_SPLIT)
    train, val = write_few_shot(dataset, 3, 7, tmp_path / "lists")
    assert [f.name for f in (train, val)] == ["shot_3-seed_7_train.jsonl", "shot_3-seed_7_val.jsonl"]
    rows = [json.loads(line) for line in train.read_text().splitlines()]
    assert {tuple(row) for row in rows} == {("_impath", "_label", "_domain", "_classname")}
    elsewhere(train, photos), elsewhere(val, photos)
    drawn = dataset.few_shot(3, 7)
    assert with_few_shot(dataset, train) == drawn
    assert shared_images(drawn.train, dataset.few_shot(3, 7).train) == (6, 0, 0, 2)


def test_lists_are_compared_image_by_image(photos, tmp_path, capsys):
    dataset = read_dataset(photos)
    train, *_ = write_few_shot(dataset, 3, 2, tmp_path)
    assert main(["data", "few-shot", str(photos), "--shots", "3", "--seed", "1", "--compare", str(train)]) == 0
    one, two = (set(dataset.few_shot(3, seed).train) for seed in (1, 2))
    assert f"{len(one & two)} images in both, {len(one - two)} only in this draw" in capsys.readouterr().out
    assert main(["data", "few-shot", str(photos)]) == 2
    assert main(["data", "few-shot", str(photos), "--out", str(tmp_path / "a")]) == 0
    assert sorted(path.name for path in (tmp_path / "a").iterdir())[0] == "shot_16-seed_1_train.jsonl"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"_impath": "x/photos/cat/77.png", "_label": 0}', "which is not exactly one of the images"),
        ('{"_impath": "3.png", "_label": 0}', "which is not exactly one of the images"),
        ('{"_impath": "x/cat/%s", "_label": 1}', "the class 1, but in photos its class is 0"),
        ('{"path": "a"}', "each line must be"),
        ("", "is empty"),
    ],
)
def test_bad_lists(photos, tmp_path, line, sentence):
    dataset = read_dataset(photos)
    a_cat = next(e.picture.path.name for e in dataset.train if e.label == 0)
    (tmp_path / "list.jsonl").write_text(line.replace("%s", a_cat))
    with pytest.raises(DearError, match=sentence):
        read_few_shot(tmp_path / "list.jsonl", dataset)


class Datum:
    """A copy of Dassl's class, which is pickled by its module and name."""

    def __init__(self, impath, label, classname):
        self._impath, self._label, self._domain, self._classname = impath, label, 0, classname


def pickled(module: str, content, monkeypatch) -> bytes:
    """A pickle made where Dassl is installed."""
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
    sys.modules[module].Datum = Datum
    monkeypatch.setattr(Datum, "__module__", module)
    return pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL)


@pytest.mark.parametrize("module", ["dassl.data.datasets.base_dataset", "datasets.utils"])
def test_pickles_of_coop(photos, tmp_path, module, monkeypatch):
    dataset = divide_again(read_dataset(photos), VALIDATED_SPLIT)
    drawn = dataset.few_shot(2, 1)
    content = {
        split: [Datum(f"/data/photos/{e.picture.path.parent.name}/{e.picture.path.name}", e.label, "?") for e in part]
        for split, part in (("train", drawn.train), ("val", drawn.val))
    }
    (tmp_path / "shot_2-seed_1.pkl").write_bytes(pickled(module, content, monkeypatch))
    train, _ = convert_few_shot.convert(tmp_path / "shot_2-seed_1.pkl")
    assert train.name == "shot_2-seed_1_train.jsonl"
    assert with_few_shot(dataset, train) == drawn


class Evil:
    def __reduce__(self):
        return os.system, ("touch ran",)


class Tricky:
    def __reduce__(self):
        return getattr, (Datum, "__init__")


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps({"train": [Evil()]}), pickle.dumps(Evil()), pickle.dumps({"train": [Tricky()]}),
        pickle.dumps({"train": [1]}), pickle.dumps([1]), b"", b"\x80\x04garbage",
        b"cbuiltins\nexec\n(S'open(\"ran\", \"w\")'\ntR.", b"cdassl.x\nDatum.__init__\n.",
        b"cos\nsystem\n(S'touch ran'\ntR.",
    ],
)  # fmt: skip
def test_nothing_of_a_pickle_is_run(tmp_path, data, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.pkl").write_bytes(data)
    monkeypatch.setattr(sys, "argv", ["convert", str(tmp_path / "a.pkl")])
    assert convert_few_shot.main() == 2
    assert [path.name for path in tmp_path.iterdir()] == ["a.pkl"]


def test_training_on_the_list_of_others(tmp_path):
    dataset = world_task("colors")
    others = replace(dataset, train=dataset.train[:24])  # another choice than ours
    train, *_ = write_few_shot(others, 1, 5, tmp_path)
    asked = ["train", "--data", "world:colors", "--method", "coop", "--epochs", "1", "--workers", "0"]
    assert main([*asked, "--few-shot", str(train), "--out", str(tmp_path / "run")]) == 0
    drawn = [json.loads(line)["_impath"] for line in train.read_text().splitlines()]
    assert [name for name, _ in RunFolder(tmp_path / "run").few_shot()["train"]] == drawn
    bench = ["bench", "few-shot", "--few-shot", str(train), "--out", str(tmp_path / "b")]
    assert main(bench) == 2
