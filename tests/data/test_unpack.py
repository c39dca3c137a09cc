"""Archives that mean harm, or are damaged."""

import hashlib
import io
import tarfile
import zipfile

import pytest

from dear.core.errors import DearError
from dear.data.known.unpack import unpack


def zip_of(**files: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as zipped:
        for name, data in files.items():
            zipped.writestr(name.replace("__", "/").replace("DOTS", ".."), data)
    return stream.getvalue()


def tar_of(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size = kind, target, 1 if kind == tarfile.REGTYPE else 0
        tar.addfile(info, io.BytesIO(b"x"))
        inside = tarfile.TarInfo("data/a.txt")
        tar.addfile(inside)
    return stream.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        zip_of(**{"DOTS/evil.txt": b"x"}), zip_of(**{"data/DOTS/DOTS/evil.txt": b"x"}), zip_of(**{"/evil.txt": b"x"}),
        zip_of(**{"C:\\evil.txt": b"x"}), zip_of(**{"data\\..\\..\\evil.txt": b"x"}),
        tar_of("../evil.txt"), tar_of("data/../../evil.txt"), tar_of("/../../evil.txt"),
    ],
)  # fmt: skip
def test_nothing_leaves_the_folder(data, tmp_path):
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(DearError, match="cannot be unpacked"):
        unpack(tmp_path / "a.zip", tmp_path / "in" / "here", {"": "."})
    assert not list(tmp_path.rglob("evil.txt"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_left_out(kind, tmp_path):
    (tmp_path / "a.tar").write_bytes(tar_of("data/link", kind, "/etc/passwd"))
    unpack(tmp_path / "a.tar", tmp_path / "out", {"": "."})
    assert [path.name for path in (tmp_path / "out" / "data").iterdir()] == ["a.txt"]


def test_a_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("dear.data.known.unpack._FLOOR", 10**6)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as zipped:
        for number in range(30):
            zipped.writestr(f"{number}.txt", bytes(10**5))
    (tmp_path / "a.zip").write_bytes(stream.getvalue())
    with pytest.raises(DearError, match="far more than a dataset of its size"):
        unpack(tmp_path / "a.zip", tmp_path / "out", {"": "."})


@pytest.mark.parametrize("cut", [100, 400])
def test_damaged_archives(cut, tmp_path):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        info = tarfile.TarInfo("a.txt")
        info.size = 5000
        tar.addfile(info, io.BytesIO(hashlib.sha512(b"").digest() * 100))
    (tmp_path / "a.tar.gz").write_bytes(stream.getvalue()[: -cut if cut < len(stream.getvalue()) else 20])
    with pytest.raises(DearError, match="cannot be unpacked"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "out", {"": "."})
