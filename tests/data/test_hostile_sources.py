"""Wrong things in every kind of --data, in lists and archives: each ends, and in one sentence."""

import io
import json
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

import dear
from dear.cli import main
from dear.data.few_shot import read_few_shot
from dear.data.known.archives import unpack
from dear.data.resolve import resolve_dataset
from hostile import survives

from .test_hostile_callers import CLASSES, LABELS, NUMBERS, PICTURES, here, refused  # noqa: F401

pandas, arrow = map(pytest.importorskip, ("pandas", "pyarrow"))
parquet = pytest.importorskip("pyarrow.parquet")


def rows(kind: str, first: dict, more: dict | None = None) -> Path:
    """A list whose first row is odd."""
    for number, data in enumerate(PICTURES):
        Path(f"{number}.png").write_bytes(data)
    good = [{"path": f"{i}.png", "label": name, **(more or {})} for i, name in enumerate(LABELS)]
    listed = [{**good[0], **first}, *good[1:]]
    file = Path(f"list.{kind}")
    file.write_text("\n".join(json.dumps(row) for row in listed))
    if kind == "csv":
        pandas.DataFrame(listed).to_csv(file, index=False)
    return file


def shards(*members: tuple[str, bytes]) -> str:
    with tarfile.open("0.tar", "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return "wds:0.tar"


def pipe_in(folder: str, name: str) -> str:
    Path(folder).mkdir(exist_ok=True)
    os.mkfifo(Path(folder) / name)
    return folder


def folders(*paths: str) -> str:
    for path in paths:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(PICTURES[0])
    return str(Path(paths[0]).parts[0])


NAMES = {
    **{f"{kind}: {key}": lambda kind=kind, key=key: rows(kind, {key: "test"}, {key: "train"})
       for kind in ("csv", "jsonl") for key in ("fold", "SubSet", "x", "is_test")},
    **{f"{kind} with {key} {str(value)[:9]}": lambda kind=kind, key=key, value=value: rows(kind, {key: value})
       for kind in ("csv", "jsonl") for key in ("path", "label", "split") 
       for value in ("", "a\0b", "9" * 5000, 1.5, None)
       if (key, value) not in (("label", 1.5), ("split", None))},
    "two headings": lambda: Path("l.csv").write_text("path,label,label\n") and "l.csv",
    "a number in JSONL": lambda: Path("l.jsonl").write_text('{"label": 1%s}' % ("0" * 5000)) and "l.jsonl",
    "folders": lambda: folders("d/Test/cat/0.png", "d/cat/0.png", "d/dog/0.png"),
    "folders of one split": lambda: folders("d/train/a/0.png", "d/train/b/0.png", "d/val/a/0.png",
                                            "d/Validation/a/0.png"),
    "a shard that is a pipe": lambda: "wds:" + pipe_in("w", "0.tar"),
    "an endless range": lambda: "wds:x/{0..99999999999}.tar",
    "a product of ranges": lambda: "wds:x/" + "{0..99}" * 6 + ".tar",
    "a range of 5,000 digits": lambda: "wds:x/{0.." + "9" * 5000 + "}.tar",
    "labels of 5,000 digits":
        lambda: shards(("a.png", PICTURES[0]), ("a.cls", b"1" * 5000), ("b.png", b""), ("b.cls", b"1")),
    "an .arrow that is a pipe": lambda: "hf:" + pipe_in("h", "data.arrow"),
    "many of each class": lambda: "hf:folder?per_class=" + "9" * 5000,
    **{f"torchvision:{name}": lambda name=name: f"torchvision:{name}"
       for name in ("FakeData", "VisionDataset", "DatasetFolder", "EMNIST", "CocoDetection", "", "1" * 5000)},
    **{name[:20]: lambda name=name: name
       for name in ("", "world:", "world:x:y", "memory:x", "hf:", "wds:", "pipe", "a\0b", "9" * 5000, "x.parquet?label",
                    "x.parquet?a=b", "hf:folder?a=b", "list.csv?x=y", "hf:folder:a:b")},
}  # fmt: skip


@pytest.mark.parametrize("kind", NAMES)
def test_names_of_data(kind, capsys):
    name = str(NAMES[kind]())
    assert main(["data", "check", name, "--data-root", "folder"]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith("dear: ")
    assert not any("Traceback" in line for line in lines)


def test_metadata_of_parquet():
    """Whatever it is, the file is read with its own labels, or refused."""
    good = {
        "info": {"features": {"image": {"_type": "Image"}, "label": {"names": ["x", "y", "z"], "_type": "ClassLabel"}}}
    }

    def use(value: object, labels: list = NUMBERS) -> dear.data.dataset.Dataset:
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        made = arrow.table({"image": PICTURES, "label": labels}).replace_schema_metadata({"huggingface": text})
        parquet.write_table(made, "m.parquet")
        return resolve_dataset("m.parquet")

    assert use(good).classes == ("x", "y", "z")
    survives(use, good)
    for odd in (b"{", b"\xff", b"[" * 100_000, b"1" * 5000):
        data = use(odd, LABELS)
        assert data.classes == CLASSES
        assert "metadata" in data.note


def test_few_shot_lists():
    dataset = resolve_dataset(str(rows("csv", {})))
    one = dataset.train[0]
    good = {"_impath": str(one.picture), "_label": one.label, "_domain": 0, "_classname": "cat"}

    def use(value: object) -> None:
        text = value if isinstance(value, str) else json.dumps(value)
        Path("l.jsonl").write_text(text, encoding="utf-8", errors="surrogatepass")
        read_few_shot(Path("l.jsonl"), dataset)

    use(good)
    survives(use, good)
    for text in ("{", "NaN", "[" * 100_000, '{"_impath": "x", "_label": 1%s}' % ("0" * 5000)):
        refused(use, text)


@pytest.mark.parametrize("name", [".", "./.", "/x", "..", "a/../../b", "C:x", "a\\b"])
def test_names_in_archives(name):
    with zipfile.ZipFile("a.zip", "w") as zipped:
        zipped.writestr(zipfile.ZipInfo("x"), b"x")
        zipped.infolist()[0].filename = name
    refused(unpack, Path("a.zip"), Path("out"), {"": "."})
    assert not Path("out").exists() or not list(Path("out").iterdir())
