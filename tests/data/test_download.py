"""Downloads from a server that truncates, changes, stalls and fails: whole, or refused in a sentence."""

import hashlib
import io
import json
import re
import zipfile
from dataclasses import replace

import pytest

from dear.core.errors import DearError
from dear.data.known import download as downloads
from dear.data.known.download import download, read_member

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
    monkeypatch.setattr(downloads, "_TIMEOUT", 0.5)
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
        ({"size": 7}, "instead of 7: it is not what it was"),
        ({"checksum": "sha256:" + "0" * 64}, "is not what it was: its SHA256 is"),
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
    """As huggingface_hub asks it: what the repository is, what it holds, then the rest of the file."""
    huggingface_hub = pytest.importorskip("huggingface_hub")
    here = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", here)
    place = here + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", place)
    huggingface_hub.HfFileSystem.clear_instance_cache()
    revision = "c" * 40
    archive = server.archive(f"u/n/resolve/{revision}/a.zip", DATA)
    repository = {
        "id": "u/n",
        "sha": revision,
        "siblings": [],
        "private": False,
        "downloads": 0,
        "likes": 0,
        "tags": [],
    }
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
