"""Downloads from a server that truncates, changes, stalls and fails; archives that mean harm, or are damaged."""

import hashlib
import io
import json
import re
import tarfile
import zipfile
from dataclasses import replace

import pytest

from dear.core.errors import DearError
from dear.data.known import archives
from dear.data.known.archives import download, read_member, unpack

pytest.importorskip("aiohttp")

DATA = bytes(range(256)) * 1000  # seven blocks


@pytest.mark.parametrize(
    "faults",
    [[], ["short"], [500, 503], ["drop", "drop", "drop"], [None, None, "short", 502, None, "short"]],
    ids=["well", "truncated", "failing", "dropped", "all of it"],
)
def test_a_download_ends_whole(server, tmp_path, faults):
    archive = server.archive("a.zip", DATA)
    server.faults = faults
    assert download(archive, tmp_path).read_bytes() == DATA
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]


def test_a_slow_server_is_given_up_and_asked_again(server, tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "_TIMEOUT", 0.5)
    server.faults = [None, "stall"]
    assert download(server.archive("a.zip", DATA), tmp_path).read_bytes() == DATA


def test_a_killed_download_continues_where_it_ended(server, tmp_path):
    archive = server.archive("a.zip", DATA)
    (tmp_path / "a.zip.part").write_bytes(DATA[:200_000])
    assert download(archive, tmp_path).read_bytes() == DATA
    assert all(int(re.search(r"=(\d+)-", asked)[1]) >= 200_000 for asked in server.asked)


def test_a_server_that_cannot_continue_is_read_from_the_start(server, tmp_path):
    archive = server.archive("a.zip", DATA)
    server.ranges = False
    (tmp_path / "a.zip.part").write_bytes(DATA[:200_000])
    assert download(archive, tmp_path).read_bytes() == DATA


def test_a_part_of_another_version_is_thrown_away(server, tmp_path):
    (tmp_path / "a.zip.part").write_bytes(b"x" * 1000)
    assert download(server.archive("a.zip", DATA), tmp_path).read_bytes() == DATA


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"size": 7}, "has changed .* not 7.: nothing was downloaded"),
        ({"checksum": "sha256:" + "0" * 64}, "has changed .its SHA256 is .*: the download was discarded"),
        ({"checksum": "md5:" + "0" * 32, "size": None}, "its MD5 is"),
    ],
)
def test_a_changed_file_is_refused_and_not_kept(server, tmp_path, changes, sentence):
    with pytest.raises(DearError, match=sentence):
        download(server.archive("a.zip", DATA, **changes), tmp_path)
    assert [path for path in tmp_path.iterdir() if path.stat().st_size] == []


@pytest.mark.parametrize("faults", [[404], [403], [500] * 99])
def test_a_dead_server_is_named(server, tmp_path, faults):
    server.faults = faults
    with pytest.raises(DearError, match=r"127.0.0.1.*a.zip cannot be downloaded"):
        download(server.archive("a.zip", DATA), tmp_path)


def test_the_hub_is_asked_for_what_is_missing(server, tmp_path, monkeypatch):
    """The requests of huggingface_hub: what the repository is, what it holds, then the rest of the file."""
    huggingface_hub = pytest.importorskip("huggingface_hub")
    here = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", here)
    place = here + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", place)
    huggingface_hub.HfFileSystem.clear_instance_cache()
    revision = "c" * 40
    archive = server.archive(f"u/n/resolve/{revision}/a.zip", DATA)
    repository = {"id": "u/n", "sha": revision, "siblings": [], "private": False, "tags": []}
    repository |= {"downloads": 0, "likes": 0}
    server.files[f"/api/models/u/n/revision/{revision}"] = json.dumps(repository).encode()
    tree = [{"type": "file", "path": "a.zip", "size": len(DATA), "oid": "a" * 40}]
    server.files[f"/api/models/u/n/tree/{revision}"] = json.dumps(tree).encode()
    (tmp_path / "a.zip.part").write_bytes(DATA[:200_000])
    assert download(replace(archive, url=f"hf://u/n@{revision}/a.zip"), tmp_path).read_bytes() == DATA
    ranges = [asked for asked in server.asked if asked != "all"]
    assert ranges
    assert all(int(re.search(r"=(\d+)-", asked)[1]) >= 200_000 for asked in ranges)


def test_one_file_of_a_remote_zip_without_the_rest(server):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as zipped:
        zipped.writestr("pets/images/large.jpg", DATA * 20)
        zipped.writestr("pets/split.json", b"[1, 2]")
    archive = server.archive("pets.zip", stream.getvalue())
    assert read_member(archive, "split.json", 6, hashlib.sha256(b"[1, 2]").hexdigest()) == b"[1, 2]"
    assert sum(_length(asked) for asked in server.asked) < len(stream.getvalue()) / 4
    with pytest.raises(DearError, match="SHA-256 differs"):
        read_member(archive, "split.json", 6, "0" * 64)
    with pytest.raises(DearError, match="has no split"):
        read_member(archive, "split.json", 7, "0" * 64)


def _length(asked: str) -> int:
    low, high = re.findall(r"\d+", asked)
    return int(high) - int(low) + 1


# --- archives that mean harm, or are damaged ----------------------------------------------------------------------


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
    monkeypatch.setattr("dear.data.known.archives._FLOOR", 10**6)
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


def test_a_download_without_an_end_is_cut(server, tmp_path, monkeypatch):
    """An archive of unknown size may have twice its rough number of megabytes, and no more."""
    monkeypatch.setattr(archives, "_SMALL", 1)
    archive = server.archive("endless.zip", bytes(3 * 2**20), size=None, checksum=None)
    with pytest.raises(DearError, match="has far more than 1 MB: nothing was kept"):
        download(archive, tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 0
    assert download(server.archive("a.zip", bytes(2**20), size=None, checksum=None), tmp_path).stat().st_size == 2**20
