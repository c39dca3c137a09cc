"""dear data get: every layout, from archives as their owners make them."""

import hashlib
import io
import re
import tarfile
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from dear.cli import main
from dear.core.errors import DearError, DearWarning
from dear.data.known import KNOWN, find_known
from dear.data.known import get as getting
from dear.data.known.get import get_dataset, imagenet_class_names
from dear.data.known.sources import SOURCES, Archive, Origin

from .conftest import LAYOUTS, Server, counts

pytest.importorskip("aiohttp")


def packed(folder: Path, top: str, kind: str, only: str = "") -> bytes:
    """A folder as an archive whose members start with `top`."""
    stream = io.BytesIO()
    mode = "w" if kind in ("zip", "tar") else "w:gz"
    with zipfile.ZipFile(stream, mode) if kind == "zip" else tarfile.open(fileobj=stream, mode=mode) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and str(path.relative_to(folder)).startswith(only):
                name = f"{top}/{path.relative_to(folder / only)}".lstrip("/")
                (archive.write if kind == "zip" else archive.add)(path, name)
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
def test_every_known_dataset(name, way, server, tmp_path, monkeypatch):
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
    changed = Origin(source.licence, (tuple(owner), (mirror,)), source.asks, known_split, mirror)
    monkeypatch.setitem(SOURCES, name, changed)
    root = tmp_path / "root"
    monkeypatch.setattr(getting, "imagenet_class_names", lambda: (folder / "classnames.txt").read_text())
    if source.asks:
        with pytest.raises(DearError, match="asks for consent"):
            get_dataset(entry, root)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert "not as published" in get_dataset(entry, root, accept_licence=True)
    dataset = entry.load(root)
    assert dataset.classes == layout.classes
    assert counts(dataset) == layout.counts
    assert not dataset.note.startswith("split by")
    assert {path.name for path in root.iterdir()} == {entry.folder}, "archives are removed"
    assert not list(root.rglob("*.pkl"))
    said = [str(warning.message) for warning in warned if warning.category is DearWarning]
    assert ["Trying the mirror" in line for line in said] == [True] * (way == "mirror")
    server.files.clear()
    assert "not as published" in get_dataset(entry, root, accept_licence=True), "what is there is not downloaded again"


def test_images_without_the_split_file_are_split_by_rule(server, tmp_path, monkeypatch):
    entry, folder = find_known("DTD"), tmp_path / "made" / "dtd"
    LAYOUTS["DTD"].build(folder)
    gone = replace(server.archive("x.zip", b""), url=f"http://127.0.0.1:{server.server_port}/gone.zip")
    without = replace(server.archive("dtd.tar.gz", packed(folder, "dtd/images", "tar.gz", "images")), take={"dtd": "."})
    monkeypatch.setitem(SOURCES, "DTD", Origin("", ((without,),), split=(1, "0" * 64), split_in=gone))
    with pytest.warns(DearWarning, match="split by a fixed rule"):
        get_dataset(entry, tmp_path / "root")
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
    with pytest.raises(DearError, match="MB free, but this needs about"):
        get_dataset(find_known("SUN397"), tmp_path)


def test_the_table_names_every_dataset_and_invents_no_checksum():
    assert SOURCES.keys() == {entry.name for entry in KNOWN}
    for source in SOURCES.values():
        for archive in [archive for way in source.ways for archive in way]:
            assert archive.checksum is None or re.fullmatch(r"(sha256:[0-9a-f]{64}|md5:[0-9a-f]{32})", archive.checksum)
            assert archive.size is None or abs(archive.size / 10**6 - archive.megabytes) < 1
