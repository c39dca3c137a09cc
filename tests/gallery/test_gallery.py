"""A gallery belongs to one adapter, opens again at a path or an address, and shows nothing that is not in it."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dear.cli import main
from dear.core.errors import DearError
from dear.core.files import read_json, write_json
from dear.gallery import AdapterEncoder, Gallery
from dear.gallery.storage import resolve


@pytest.fixture(scope="module")
def example_gallery(encoder, noise, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("galleries") / "noise"
    images = [noise(folder.parent / f"{number}.png", number) for number in range(3)]
    Gallery.create(folder, encoder).add(encoder, images)
    return folder


@pytest.fixture
def gallery(encoder, photos, tmp_path) -> Gallery:
    gallery = Gallery.create(tmp_path / "gallery", encoder)
    gallery.add(encoder, [photos])
    return gallery


def test_opened_again_it_is_the_same(gallery) -> None:
    again = Gallery.open(str(gallery.folder))
    assert again.components == ("cls", "color", "shape", "texture", "object", "location")
    assert (len(again), again.dim, sorted(again.paths())) == (12, 32, sorted(gallery.paths()))


def test_what_another_process_adds_is_seen(gallery, encoder, noise, tmp_path) -> None:
    other = Gallery.open(gallery.folder)
    other.add(encoder, [noise(tmp_path / "new.png", 1)])
    assert len(gallery) == 13


def test_another_adapter_is_refused(gallery, make_run, photos) -> None:
    second = AdapterEncoder.load(make_run(1), "cpu")
    with pytest.raises(DearError, match="their vectors are not comparable"):
        Gallery.create(gallery.folder, second)
    with pytest.raises(DearError, match="was made with the adapter in"):
        gallery.add(second, [photos])


def test_a_moved_adapter_is_asked_for_and_found_again(gallery, run, encoder, tmp_path) -> None:
    moved = shutil.copytree(run, tmp_path / "moved")
    Gallery.create(gallery.folder, AdapterEncoder.load(moved, "cpu"))
    assert Gallery.open(gallery.folder).encoder("cpu").spec["folder"] == str(moved)
    shutil.rmtree(moved)
    with pytest.raises(DearError, match=r"no longer in .*moved: run `dear index RUN"):
        Gallery.open(gallery.folder).encoder("cpu")
    Gallery.create(gallery.folder, encoder)
    assert Gallery.open(gallery.folder).encoder("cpu").spec == encoder.spec


def test_what_is_no_gallery(encoder, photos, tmp_path, gallery, monkeypatch) -> None:
    with pytest.raises(DearError, match=r"is not a gallery: it has no gallery\.json"):
        Gallery.open(photos)
    with pytest.raises(DearError, match="exists but is not a gallery"):
        Gallery.create(photos, encoder)
    write_json(gallery.folder / "gallery.json", {**read_json(gallery.folder / "gallery.json"), "format": 99})
    with pytest.raises(DearError, match=r"dear .* cannot read the format of .*gallery\.json"):
        Gallery.open(gallery.folder)
    monkeypatch.setitem(sys.modules, "lancedb", None)
    with pytest.raises(DearError, match=r"pip install 'dear-vlm\[gallery\]'"):
        Gallery.create(tmp_path / "new", encoder)


def test_where_nothing_can_be_written(gallery, encoder, photos) -> None:
    (gallery.folder / ".writing").mkdir()
    with pytest.raises(DearError, match="Cannot write to"):
        gallery.add(encoder, [photos])
    (gallery.folder / ".writing").rmdir()
    assert gallery.add(encoder, [photos]).already == 12


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(f): (f.stat().st_size, f.stat().st_mtime_ns) for f in folder.rglob("*")}


def test_reading_never_writes(gallery, encoder) -> None:
    before = files_of(gallery.folder)
    again = Gallery.open(gallery.folder)
    assert len(again.search(again.query(encoder, "a red sign"), {"cls": 1.0, "shape": 1.0}, where="size > 0")) == 10
    assert len(again.vectors("color")) == 12
    again.require(encoder)
    assert files_of(gallery.folder) == before


@pytest.mark.parametrize("gone", ["images.lance", "images.lance/_versions", "images.lance/data"])
def test_a_gallery_that_lost_its_table_is_refused(gallery, gone) -> None:
    shutil.rmtree(gallery.folder / gone)
    before = files_of(gallery.folder)
    with pytest.raises(DearError, match=r"lost its table|cannot be read|cannot be searched"):
        Gallery.open(gallery.folder).search({"cls": [1.0] * 32}, {"cls": 1.0})
    assert files_of(gallery.folder) == before


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(data=st.data())
@settings(max_examples=60)
def test_whatever_gallery_json_holds_is_read_or_refused(example_gallery, data) -> None:
    """Fields that are missing, extra, or of another kind: a sentence, or the gallery as it was."""
    about = read_json(example_gallery / "gallery.json")
    field = data.draw(st.sampled_from([*about, "extra"]))
    changed = {key: value for key, value in about.items() if key != field}
    if field == "extra" or not data.draw(st.booleans(), label="missing"):
        changed[field] = data.draw(json_values)
    write_json(example_gallery / "gallery.json", changed)
    try:
        gallery = Gallery.open(example_gallery)
        assert gallery.search({"cls": np.ones(32)}, {"cls": 1.0})
        assert field in ("dear", "extra", "centred") or changed == about
    except DearError:
        pass
    finally:
        write_json(example_gallery / "gallery.json", about)


MISSING = [{field: None} for field in ("encoder", "components", "centred", "dim", "format")]
ODD = [{"dim": 31}, {"components": ["cls"] * 6}, {"components": ["cls", "mood"]}, {"dim": 10**12}]


@pytest.mark.parametrize("changed", [*MISSING, *ODD], ids=str)
def test_gallery_json_must_be_whole_and_fit_its_table(gallery, changed) -> None:
    about = {**read_json(gallery.folder / "gallery.json"), **changed}
    write_json(gallery.folder / "gallery.json", {key: value for key, value in about.items() if value is not None})
    with pytest.raises(DearError, match="index the images again"):
        Gallery.open(gallery.folder)


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
