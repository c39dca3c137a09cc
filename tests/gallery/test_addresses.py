"""Galleries at addresses, through LanceDB and fsspec."""

import json
import sys

import pytest

from dear.cli import main
from dear.core.errors import DearError
from dear.gallery import Gallery
from dear.gallery.storage import resolve


def test_an_address_of_a_file_is_a_folder(run, photos, tmp_path, capsys) -> None:
    out = (tmp_path / "a gallery").as_uri()
    assert "%20" in out
    assert main(["index", str(run), str(photos), "--out", out, "--device", "cpu"]) == 0
    assert (tmp_path / "a gallery" / "gallery.json").is_file()
    image = str(next(photos.rglob("*.png")))
    capsys.readouterr()
    assert main(["search", out, "--image", image, "--topk", "1", "--json", "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == image


def test_an_object_store_holds_what_a_folder_would(encoder, photos, tmp_path) -> None:
    local = Gallery.create(tmp_path / "gallery", encoder)
    stored = Gallery.create("memory://bucket/gallery", encoder)
    for gallery in (local, stored):
        assert gallery.add(encoder, [photos]).added == 12
        assert gallery.add(encoder, [photos]).already == 12
    assert stored.rows(["path", "sha256", "cls_vector"]) == local.rows(["path", "sha256", "cls_vector"])
    about = resolve("memory://bucket/gallery/gallery.json").read_text()
    assert json.loads(about) == json.loads((tmp_path / "gallery" / "gallery.json").read_text())
    query = local.query(encoder, local.image(local.paths()[3]))
    assert stored.search(query, {"color": 1.0}, 5) == local.search(query, {"color": 1.0}, 5)
    assert stored.remove([photos]) == 12
    assert len(stored) == 0


def test_what_is_in_the_way_is_not_overwritten(encoder) -> None:
    resolve("memory://bucket/thesis/thesis.txt").write_text("mine")
    with pytest.raises(DearError, match="is not a gallery"):
        Gallery.create("memory://bucket/thesis", encoder)
    resolve("memory://bucket/damaged/gallery.json").write_text("{")
    with pytest.raises(DearError, match="cannot be read as JSON"):
        Gallery.open("memory://bucket/damaged")


@pytest.mark.parametrize(
    ("address", "says"),
    [("nothing://bucket/gallery", "nothing"), ("memory://bucket/nowhere", "is not a gallery")],
)
def test_addresses_that_lead_nowhere_are_one_sentence(address: str, says: str, photos, capsys) -> None:
    assert main(["search", address, "--text", "a red sign"]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert len(error.strip().splitlines()) == 1


def test_a_store_without_its_package_says_which(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(DearError, match=r"s3://bucket/gallery needs another package: .*s3fs"):
        resolve("s3://bucket/gallery")


def test_images_at_an_address_are_refused(run, tmp_path, capsys) -> None:
    assert main(["index", str(run), "s3://bucket/photos", "--out", str(tmp_path / "gallery"), "--device", "cpu"]) == 2
    assert "s3://bucket/photos is an address" in capsys.readouterr().err
