"""dear data get, against a server on this machine that truncates, changes, stalls and fails; and every layout."""

import hashlib
import http.server
import io
import json
import re
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dear.cli import main
from dear.core.errors import DearError
from dear.data.known import KNOWN, find_known
from dear.data.known import download as downloads
from dear.data.known import get as getting
from dear.data.known.download import download, read_member
from dear.data.known.get import get_dataset, imagenet_class_names
from dear.data.known.sources import SOURCES, Archive, Source
from dear.data.known.unpack import unpack

from .conftest import LAYOUTS

pytest.importorskip("aiohttp")


class Server(http.server.ThreadingHTTPServer):
    """Serves `files`; `faults` are taken one per request for content: a status, "short", "stall" or "drop"."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.faults: list[int | str] = []
        self.asked: list[str] = []
        self.ranges = True

    def handle_error(self, request, client_address) -> None:
        """A client that gave up is no news."""

    def archive(self, name: str, data: bytes, **changes) -> Archive:
        self.files["/" + name] = data
        url = f"http://127.0.0.1:{self.server_port}/{name}"
        return replace(Archive(url, "today", 1, len(data), "sha256:" + hashlib.sha256(data).hexdigest()), **changes)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(head=True)

    def do_GET(self) -> None:
        self._answer()

    def _answer(self, head: bool = False) -> None:
        data = self.server.files.get(self.path.partition("?")[0])
        fault = 404 if data is None else self.server.faults.pop(0) if self.server.faults and not head else None
        if isinstance(fault, int):
            self.send_error(fault)
            return
        asked = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "") if self.server.ranges else None
        start, end = (int(asked[1]), min(int(asked[2]), len(data) - 1)) if asked else (0, len(data) - 1)
        if not head:
            self.server.asked.append(self.headers.get("Range") or "all")
        self.send_response(206 if asked else 200)
        if self.server.ranges:
            self.send_header("Accept-Ranges", "bytes")
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{end}/{len(data)}")
        self.send_header("Content-Length", str(end - start + 1))
        self.end_headers()
        if head:
            return
        if fault == "stall":
            time.sleep(1.5)
        part = data[start : end + 1]
        self.wfile.write(part[: len(part) // 2] if fault in ("short", "drop") else part)


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setattr(downloads, "_WAIT", 0.01)
    monkeypatch.setattr(downloads, "_BLOCK", 40_000)
    server = Server()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


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


# Every layout, from archives as their owners make them


def packed(folder: Path, top: str, kind: str, only: str = "") -> bytes:
    """A folder as an archive whose members start with `top`."""
    stream = io.BytesIO()
    files = sorted(
        path for path in folder.rglob("*") if path.is_file() and str(path.relative_to(folder)).startswith(only)
    )
    names = [f"{top}/{path.relative_to(folder / only)}".lstrip("/") for path in files]
    if kind == "zip":
        with zipfile.ZipFile(stream, "w") as zipped:
            for path, name in zip(files, names, strict=True):
                zipped.write(path, name)
    else:
        with tarfile.open(fileobj=stream, mode="w:gz" if kind != "tar" else "w") as tar:
            for path, name in zip(files, names, strict=True):
                tar.add(path, name)
    return stream.getvalue()


def served_by_owner(entry, folder: Path, server: Server) -> list[Archive]:
    """The archives of the owner, with the fixture's files in the places that the table expects."""
    archives = []
    for archive in SOURCES[entry.name].ways[0]:
        (inside, place), *_ = archive.take.items()
        kind = "zip" if archive.name.endswith("zip") else "tar" if archive.name.endswith("tar") else "tar.gz"
        if inside.endswith(".tar.gz"):  # an archive in another
            inner = folder.parent / Path(inside).name
            inner.write_bytes(packed(folder, "101_ObjectCategories", "tar.gz", "101_ObjectCategories"))
            outer = folder.parent / "outer" / inside
            outer.parent.mkdir(parents=True)
            inner.rename(outer)
            data = packed(folder.parent / "outer", "", kind)
        else:
            data = packed(folder, inside, kind, "" if place == "." else place)
        made = server.archive(archive.name, data)
        archives.append(replace(made, take=archive.take))
    return archives


@pytest.mark.parametrize("way", ["owner", "mirror"])
@pytest.mark.parametrize("name", [entry.name for entry in KNOWN if entry.name != "ImageNet"])
def test_every_known_dataset(name, way, server, tmp_path, monkeypatch, capsys):
    entry, layout, source = find_known(name), LAYOUTS[name], SOURCES[name]
    if way == "owner" and len(source.ways) < 2:
        pytest.skip("only the mirror has it")
    folder = tmp_path / "made" / entry.folder
    folder.mkdir(parents=True)
    layout.build(folder)
    mirror = replace(server.archive("mirror.zip", packed(folder, entry.folder, "zip")), take={})
    split = (folder / entry.split_name).read_bytes() if entry.split_name else b""
    known_split = (len(split), hashlib.sha256(split).hexdigest()) if split else None
    (folder / "pickled.pkl").write_bytes(b"never")
    dead = replace(mirror, url=mirror.url + ".gone")
    owner = served_by_owner(entry, folder, server) if way == "owner" else [dead]
    changed = Source(source.licence, (tuple(owner), (mirror,)), source.asks, known_split, mirror)
    monkeypatch.setitem(SOURCES, name, changed)
    root = tmp_path / "root"
    monkeypatch.setattr(getting, "imagenet_class_names", lambda: (folder / "classnames.txt").read_text())
    if source.asks:
        with pytest.raises(DearError, match="asks for consent"):
            get_dataset(entry, root)
    assert "not as published" in get_dataset(entry, root, accept_licence=True)
    dataset = entry.load(root)
    assert dataset.classes == layout.classes
    assert tuple(map(len, (dataset.train, dataset.val, dataset.test))) == layout.counts
    assert not dataset.note.startswith("split by")
    assert {path.name for path in root.iterdir()} == {entry.folder}, "archives are removed"
    assert not list(root.rglob("*.pkl"))
    warned = capsys.readouterr().err
    assert ("Trying the mirror" in warned) == (way == "mirror")
    server.files.clear()
    assert "not as published" in get_dataset(entry, root, accept_licence=True), "what is there is not downloaded again"


def test_images_without_the_split_file_are_split_by_rule(server, tmp_path, monkeypatch, capsys):
    entry, folder = find_known("DTD"), tmp_path / "made" / "dtd"
    LAYOUTS["DTD"].build(folder)
    gone = replace(server.archive("x.zip", b""), url=f"http://127.0.0.1:{server.server_port}/gone.zip")
    without = replace(server.archive("dtd.tar.gz", packed(folder, "dtd/images", "tar.gz", "images")), take={"dtd": "."})
    monkeypatch.setitem(SOURCES, "DTD", Source("", ((without,),), split=(1, "0" * 64), split_in=gone))
    get_dataset(entry, tmp_path / "root")
    assert "split by a fixed rule" in capsys.readouterr().err
    assert "split by a fixed rule" in entry.load(tmp_path / "root").note


def test_imagenet_is_a_sentence_and_its_class_names_are_written(tmp_path, capsys):
    with pytest.raises(DearError, match=r"sign in at image-net.org, download ILSVRC2012_img_train.tar"):
        get_dataset(find_known("ImageNet"), tmp_path, accept_licence=True)
    lines = imagenet_class_names().splitlines()
    assert (len(lines), lines[0], lines[7]) == (1000, "n01440764 tench", "n01514668 rooster")
    assert [line.split()[0] for line in lines] == sorted(line.split()[0] for line in lines)
    LAYOUTS["ImageNet"].build(tmp_path / "imagenet")
    (tmp_path / "imagenet" / "classnames.txt").unlink()
    get_dataset(find_known("ImageNet"), tmp_path, accept_licence=True)
    assert find_known("ImageNet").load(tmp_path).classes == ("tench", "great white shark")


def test_the_command(tmp_path, capsys):
    assert main(["data", "get", "Pets", "ImageNet", "--root", str(tmp_path / "root"), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "download 811 MB: https://www.robots.ox.ac.uk" in out
    assert "image-net.org" in out
    assert not (tmp_path / "root").exists()
    assert main(["data", "get", "Petz", "--root", str(tmp_path)]) == 2
    assert main(["data", "get", "ImageNet", "--root", str(tmp_path)]) == 2
    assert "--accept-licence" in capsys.readouterr().err


def test_no_download_begins_where_it_cannot_end(tmp_path, monkeypatch):
    monkeypatch.setattr(getting.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10**9}))
    with pytest.raises(DearError, match="MB free, and this needs about"):
        get_dataset(find_known("SUN397"), tmp_path)


# Archives that mean harm


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


def test_the_table_names_every_dataset_and_invents_no_checksum():
    assert SOURCES.keys() == {entry.name for entry in KNOWN}
    for source in SOURCES.values():
        for archive in [archive for way in source.ways for archive in way]:
            assert archive.checksum is None or re.fullmatch(r"(sha256:[0-9a-f]{64}|md5:[0-9a-f]{32})", archive.checksum)
            assert archive.size is None or abs(archive.size / 10**6 - archive.megabytes) < 1
