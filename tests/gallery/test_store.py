"""A gallery belongs to one adapter, opens again, and shows nothing that is not in it."""

import shutil
import sys

import pytest

import dear
from dear.errors import DearError
from dear.files import read_json, write_json
from dear.gallery import Gallery
from dear.gallery.quality import attribute_precision


@pytest.fixture
def gallery(run, model, photos, tmp_path) -> Gallery:
    gallery = Gallery.create(tmp_path / "gallery", run, model)
    gallery.add(model, [photos])
    return gallery


def test_opened_again_it_is_the_same(gallery) -> None:
    again = Gallery.open(str(gallery.folder))
    assert again.components == ("cls", "color", "shape", "texture", "object", "location")
    assert (len(again), again.dim, sorted(again.paths())) == (12, 32, sorted(gallery.paths()))


def test_what_another_process_adds_is_seen(gallery, model, noise, tmp_path) -> None:
    other = Gallery.open(gallery.folder)
    other.add(model, [noise(tmp_path / "new.png", 1)])
    assert len(gallery) == 13


def test_another_adapter_is_refused(gallery, make_run, photos) -> None:
    second = make_run(1)
    with pytest.raises(DearError, match="another one: their features do not compare"):
        Gallery.create(gallery.folder, second, dear.load(second, device="cpu"))
    with pytest.raises(DearError, match="was made with another adapter"):
        gallery.add(dear.load(second, device="cpu"), [photos])


def test_a_moved_adapter_is_asked_for_and_found_again(gallery, run, model, tmp_path) -> None:
    moved = shutil.copytree(run, tmp_path / "moved")
    Gallery.create(gallery.folder, moved, model)
    assert Gallery.open(gallery.folder).predictor("cpu").classes == ("red", "blue")
    shutil.rmtree(moved)
    with pytest.raises(DearError, match=r"no longer in .*moved: tell where it is"):
        Gallery.open(gallery.folder).predictor()
    Gallery.open(gallery.folder).require_run(run)
    assert Gallery.open(gallery.folder).predictor("cpu").classes == ("red", "blue")


def test_only_images_of_the_gallery_are_opened(gallery, photos, noise) -> None:
    assert gallery.image(str(photos / "a" / "0.png")).size == (64, 64)
    outside = noise(photos / "outside.png", 1)
    for path in (str(outside), "/etc/passwd", f"{photos}/a/../a/0.png", "world:colors/test/00000", "x' OR '1'='1"):
        with pytest.raises(DearError, match="The gallery has no image"):
            gallery.image(path)


def test_what_is_no_gallery(run, model, photos, tmp_path, gallery, monkeypatch) -> None:
    with pytest.raises(DearError, match=r"is not a gallery: it has no gallery\.json"):
        Gallery.open(photos)
    with pytest.raises(DearError, match="is there but is not a gallery"):
        Gallery.create(photos, run, model)
    write_json(gallery.folder / "gallery.json", {**read_json(gallery.folder / "gallery.json"), "format": 99})
    with pytest.raises(DearError, match=r"is not one that dear .* can read"):
        Gallery.open(gallery.folder)
    monkeypatch.setitem(sys.modules, "lancedb", None)
    with pytest.raises(DearError, match=r"pip install 'dear-vlm\[gallery\]'"):
        Gallery.create(tmp_path / "new", run, model)


def test_where_nothing_can_be_written(gallery, model, photos) -> None:
    (gallery.folder / ".writing").mkdir()
    with pytest.raises(DearError, match="Cannot write to"):
        gallery.add(model, [photos])
    (gallery.folder / ".writing").rmdir()
    assert gallery.add(model, [photos]).already == 12


def test_a_damaged_gallery_says_so(gallery) -> None:
    for file in (gallery.folder / "images.lance" / "data").iterdir():
        file.write_bytes(b"no")
    with pytest.raises(DearError, match="cannot be searched"):
        Gallery.open(gallery.folder).search({"cls": [1.0] * 32}, {"cls": 1.0})
    write_json(gallery.folder / "gallery.json", {"format": 1})
    with pytest.raises(DearError, match="index the images again"):
        Gallery.open(gallery.folder)


def test_precision_counts_what_the_nearest_have_in_common(run, model, tmp_path) -> None:
    gallery = Gallery.create(tmp_path / "world", run, model)
    gallery.add(model, ["world:colors"])
    matrix = attribute_precision(gallery, k=479)  # all others: what is found is what there is
    assert list(matrix) == [*gallery.components, "chance"]
    assert matrix["cls"] == pytest.approx(matrix["chance"])
    assert matrix["chance"]["color"] == pytest.approx(100 * 39 / 479)
    nearest = attribute_precision(gallery, k=10)
    assert nearest["chance"] == matrix["chance"]
    assert all(0 <= value <= 100 for row in nearest.values() for value in row.values())


def test_precision_needs_the_truth(gallery) -> None:
    with pytest.raises(DearError, match="Attribute World"):
        attribute_precision(gallery)
