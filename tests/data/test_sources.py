"""--data hf:, wds:, torchvision: and Parquet, each from files on disk, beside the same pictures as files."""

import io
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from dear.core.errors import DearError
from dear.data.dataset import Dataset
from dear.data.resolve import resolve_dataset

from .conftest import counts

datasets = pytest.importorskip("datasets")

CLASSES = ("tabby_cat", "dog", "owl")
COUNTS = {"train": 4, "val": 2, "test": 3}  # per class


def color(split: str, label: int, number: int) -> tuple[int, int, int]:
    return 20 * list(COUNTS).index(split), 30 * label, 10 * number


def png(split: str, label: int, number: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (6, 5), color(split, label, number)).save(stream, "png")
    return stream.getvalue()


def rows(split: str) -> list[tuple[bytes, int]]:
    return [(png(split, label, i), label) for label in range(len(CLASSES)) for i in range(COUNTS[split])]


def seen(dataset: Dataset) -> dict[str, set[tuple[str, tuple]]]:
    return {
        split: {(dataset.classes[e.label], e.picture.open().getpixel((2, 2))) for e in getattr(dataset, split)}
        for split in COUNTS
    }


def expected(*splits: str) -> dict[str, set[tuple[str, tuple]]]:
    counts = {split: count * (split in splits) for split, count in COUNTS.items()}
    names = [*enumerate(name.replace("_", " ") for name in CLASSES)]
    return {split: {(name, color(split, k, i)) for k, name in names for i in range(n)} for split, n in counts.items()}


def table(split: str):
    features = datasets.Features({"photo": datasets.Image(), "kind": datasets.ClassLabel(names=list(CLASSES))})
    images, labels = zip(*rows(split), strict=True)
    return datasets.Dataset.from_dict({"photo": [{"bytes": i, "path": None} for i in images], "kind": labels}, features)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A folder of `save_to_disk`, and the same dataset as Parquet files, the form of most of the hub."""
    folder = tmp_path_factory.mktemp("hub")
    parts = {"train": table("train"), "validation": table("val"), "test": table("test")}
    datasets.DatasetDict(parts).save_to_disk(folder / "saved")
    for split, part in parts.items():
        part.to_parquet(folder / "parquet" / "data" / f"{split}-00000-of-00001.parquet")
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("form", ["saved", "parquet"])
def test_every_split_of_a_hub_dataset(saved, form):
    assert seen(resolve_dataset(f"hf:{saved}/{form}")) == expected("train", "val", "test")


@pytest.mark.parametrize("form", ["saved", "parquet"])
def test_one_split_of_a_hub_dataset(saved, form):
    assert seen(resolve_dataset(f"hf:{saved}/{form}:test?image=photo&label=kind")) == expected("test")
    by_rule = resolve_dataset(f"hf:{saved}/{form}:train")  # of training images alone, some must be for testing
    assert counts(by_rule) == (9, 0, 3)


def test_streaming_keeps_some_of_each_class(saved):
    dataset = resolve_dataset(f"hf:{saved}/parquet:test?per_class=2")
    assert "at most 2 images" in dataset.note
    assert sorted(e.label for e in dataset.test) == [0, 0, 1, 1, 2, 2]
    assert seen(dataset)["test"] < expected("test")["test"]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("hf:{}/gone", "cannot be loaded"),
        ("hf:{}/saved:other", "cannot be loaded"),
        ("hf:{}/saved?label=x", "There is no column 'x': choose from photo, kind"),
        ("hf:{}/saved?colour=x", "There is no option 'colour'"),
        ("hf:{}/parquet?per_class=0", "per_class must be a number"),
    ],
)
def test_bad_names_of_the_hub(saved, data, sentence, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(DearError, match=sentence):
        resolve_dataset(data.format(saved))


def test_parquet_of_hugging_face_bytes_and_paths(saved, tmp_path):
    pandas = pytest.importorskip("pandas")
    written = saved / "parquet" / "data" / "train-00000-of-00001.parquet"
    dataset = resolve_dataset(f"{written}?image=photo&label=kind")
    together = set.union(*seen(dataset).values())
    assert together == expected("train")["train"]
    for number, (data, _) in enumerate(rows("train")):
        (tmp_path / f"{number}.png").write_bytes(data)
    names = [CLASSES[label] for _, label in rows("train")]
    frame = pandas.DataFrame({"path": [f"{i}.png" for i in range(len(names))], "label": names, "split": "test"})
    frame.to_parquet(tmp_path / "list.parquet")
    dataset = resolve_dataset(str(tmp_path / "list.parquet"))
    assert sorted(seen(dataset)["test"]) == sorted(together)
    assert dataset.test[0].picture.path == tmp_path / "0.png"


def test_a_damaged_parquet_file(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 is not enough")
    with pytest.raises(DearError, match="cannot be read as a Parquet file"):
        resolve_dataset(str(tmp_path / "a.parquet"))
    with pytest.raises(DearError, match="There is no file"):
        resolve_dataset(str(tmp_path / "b.parquet"))


def shard(path: Path, samples: list[tuple[str, bytes]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in samples:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


@pytest.fixture
def shards(tmp_path) -> Path:
    folder = tmp_path / "wds_pets"
    for split in ("train", "test"):
        samples = [(f"s{i:07d}", image, label) for i, (image, label) in enumerate(rows(split))]
        for number, part in enumerate((samples[:5], samples[5:])):
            files = [(f"{key}.{kind}", data) for key, image, label in part
                     for kind, data in (("png", image), ("cls", str(label).encode()))]  # fmt: skip
            shard(folder / split / f"{number}.tar", files)
        (folder / split / "nshards.txt").write_text("2\n")
    (folder / "classnames.txt").write_text("\n".join(CLASSES) + "\n")
    (folder / "zeroshot_classification_templates.txt").write_text("a bad photo of {c}.\na photo of {c}.\n")
    return folder


def test_shards(shards):
    dataset = resolve_dataset(f"wds:{shards}")
    assert seen(dataset) == expected("train", "test")
    assert (dataset.name, dataset.template) == ("wds_pets", "a bad photo of {}.")
    assert seen(resolve_dataset(f"wds:{shards}/test/{{0..1}}.tar")) == expected("test")
    some = resolve_dataset(f"wds:{shards}/*/0.tar")
    assert (len(some.train), len(some.test)) == (5, 5)
    assert some.train[0].picture.content() == png("train", 0, 0)
    assert str(some.train[0].picture).endswith("train/0.tar/s0000000.png")


def test_shards_are_what_webdataset_writes(tmp_path):
    """The library's own writer, as CLIP_benchmark calls it."""
    webdataset = pytest.importorskip("webdataset")
    (tmp_path / "test").mkdir()
    with webdataset.ShardWriter(str(tmp_path / "test" / "%d.tar"), maxcount=4, verbose=0) as sink:
        for number, (image, label) in enumerate(rows("test")):
            sink.write({"__key__": f"s{number:07d}", "png": image, "cls": label})
    (tmp_path / "classnames.txt").write_text("\n".join(CLASSES))
    assert seen(resolve_dataset(f"wds:{tmp_path}")) == expected("test")


@pytest.mark.parametrize(
    ("samples", "sentence"),
    [
        ([("a.png", b"x"), ("b.cls", b"0")], r"no label \(.cls\) for /a"),
        ([("a.cls", b"0")], "no image for /a"),
        ([("a.png", b"x"), ("a.cls", b"7")], "has the label 7, which is none of its 3 classes"),
    ],
)
def test_bad_shards(shards, samples, sentence):
    shard(shards / "test" / "2.tar", samples)
    with pytest.raises(DearError, match=sentence):
        resolve_dataset(f"wds:{shards}")


def test_a_cut_shard_and_no_shard(shards):
    whole = (shards / "test" / "0.tar").read_bytes()
    (shards / "test" / "0.tar").write_bytes(whole[:700])
    with pytest.raises(DearError, match="cannot be read as a shard"):
        resolve_dataset(f"wds:{shards}")
    with pytest.raises(DearError, match="names no shards"):
        resolve_dataset(f"wds:{shards}/gone/*.tar")
    with pytest.raises(DearError, match="is an address"):
        resolve_dataset("wds:https://example.org/{0..3}.tar")


def test_torchvision(tmp_path):
    folder = tmp_path / "dtd" / "dtd"
    for split in COUNTS:
        lines = []
        for number, (image, label) in enumerate(rows(split)):
            path = folder / "images" / CLASSES[label] / f"{split}_{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image)
            lines.append(f"{CLASSES[label]}/{path.name}\n")
        (folder / "labels").mkdir(exist_ok=True)
        (folder / "labels" / f"{split}1.txt").write_text("".join(lines))
    dataset = resolve_dataset("torchvision:dtd", root=str(tmp_path))
    assert seen(dataset) == {split: {(n, c) for n, c in part} for split, part in expected(*COUNTS).items()}
    with pytest.raises(DearError, match="needs --data-root"):
        resolve_dataset("torchvision:DTD")
    with pytest.raises(DearError, match="torchvision has no dataset dtx: did you mean dtd"):
        resolve_dataset("torchvision:dtx", root=str(tmp_path))
