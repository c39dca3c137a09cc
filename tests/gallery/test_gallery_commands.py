"""dear index and dear search, as they are typed."""

import json
import os
import shutil

import numpy as np
import pytest
from PIL import Image

from dear.cli import main
from dear.core.errors import DearError
from dear.gallery import Gallery
from dear.gallery.sheet import attribute_sheet


@pytest.fixture(scope="module")
def world(run, tmp_path_factory) -> str:
    folder = str(tmp_path_factory.mktemp("galleries") / "colors")
    assert main(["index", str(run), "world:colors", "--out", folder, "--device", "cpu"]) == 0
    return folder


def test_index_says_what_became_of_the_images(run, photos, tmp_path, capsys) -> None:
    out = str(tmp_path / "gallery")
    shutil.copy(photos / "a" / "0.png", photos / "copy.png")
    (photos / "broken.png").write_bytes(b"no")
    assert main(["index", str(run), str(photos), "--out", out]) == 0
    captured = capsys.readouterr()
    assert "added 12, already there 0, duplicates 1, unreadable 1" in captured.out
    assert "dear: skipped: The image" in captured.err
    assert main(["index", str(run), str(photos / "a"), "--out", out, "--remove", f"{photos}/b_c/*.png"]) == 0
    assert "removed 4\nadded 0, already there 4, duplicates 0" in capsys.readouterr().out
    assert main(["index", str(run), "--out", out, "--remove", str(photos / "a")]) == 0
    assert "removed 4\n" in capsys.readouterr().out


def test_search_as_text_json_and_sheet(world, tmp_path, capsys) -> None:
    query = ["search", world, "--image", "world:colors/test/00041", "--by", "color=0.7,shape=0.3"]
    assert main([*query, "--topk", "7", "--out", str(tmp_path / "sheet.png")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["rank", "score", "color", "shape", "label", "path"]
    assert lines[2].split() == ["1", "1.000", "1.000", "1.000", "orange", "world:colors/test/00041"]
    assert len(lines) == 2 + 7
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.format == "PNG"
        assert sheet.width > 1000
    assert main([*query, "--json", "--where", "label = 'teal'"]) == 0
    hits = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [hit["rank"] for hit in hits] == list(range(1, 11))
    assert {hit["label"] for hit in hits} == {"teal"}
    assert hits[0]["score"] == pytest.approx(0.7 * hits[0]["scores"]["color"] + 0.3 * hits[0]["scores"]["shape"])


def test_search_by_text_and_by_a_file(world, photos, tmp_path, capsys) -> None:
    out = str(tmp_path / "sheets" / "sheet.png")
    long = "a teal sign " * 12 + "supercalifragilisticexpialidocious" * 2
    assert main(["search", world, "--text", long, "--out", out, "--where", "label = 'mauve'"]) == 0
    assert "no hits" in capsys.readouterr().out
    assert main(["search", world, "--image", str(photos / "a" / "0.png"), "--by", "texture"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 12


def test_a_sheet_shows_what_is_gone_as_gone(run, photos, tmp_path) -> None:
    out, sheet = str(tmp_path / "gallery"), tmp_path / "sheet.png"
    assert main(["index", str(run), str(photos), "--out", out, "--label-from-folder"]) == 0
    shutil.rmtree(photos / "b_c")
    assert main(["search", out, "--image", str(photos / "a" / "0.png"), "--topk", "12", "--out", str(sheet)]) == 0
    assert sheet.is_file()


def test_a_sheet_of_one_query_by_several_attributes(world) -> None:
    gallery = Gallery.open(world)
    picture = gallery.image("world:colors/test/00041")
    query = gallery.query(gallery.encoder("cpu"), picture)
    results = {name: gallery.search(query, {name: 1.0}, k=4) for name in ("color", "shape", "texture")}
    sheet = attribute_sheet(picture, results, gallery)
    wide, high = sheet.size
    fewer = attribute_sheet(picture, {"color": results["color"][:3]}, gallery)
    assert wide - fewer.width == fewer.height // 2 - 6 == high // 3 - 4  # a column less, and two rows at least
    # The query is in the middle of the left side, and leads the first row.
    own = sheet.crop((wide - 4 * 172, 12, wide - 4 * 172 + 160, 172))
    assert np.abs(np.asarray(own.resize((64, 64)), int) - np.asarray(picture, int)).mean() < 12


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Give either --image or --text"),
        (["--image", "world:colors/test/00000", "--text", "red"], "Give either --image or --text"),
        (["--text", "red", "--by", "colour"], "choose from cls, color, shape, texture, object, location"),
        (["--text", "red", "--by", "color=x"], "must be a number"),
        (["--text", "red", "--by", "color=0"], "All weights are zero"),
        (["--text", "red", "--where", "colour = 3"], "does not work"),
        (["--text", "red", "--topk", "0"], "--topk must be from 1"),
        (["--image", "nowhere.jpg"], "The image nowhere.jpg cannot be read"),
        (["--image", "world:colors/test/99999"], "has no image world:colors/test/99999"),
        (["--text", "red " * 100], "shorten it"),
    ],
)
def test_bad_searches_end_in_a_sentence(world, arguments, sentence, capsys) -> None:
    assert main(["search", world, *arguments]) == 2
    error = capsys.readouterr().err
    *before, last = error.strip().splitlines()
    assert sentence in last
    assert all(line.startswith("backbone: ") for line in before)  # read before the words were refused


def test_bad_indexing_ends_in_a_sentence(run, photos, tmp_path, capsys) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "bad.png").write_bytes(b"no")
    for arguments, sentence in [
        ([str(run), "--out", str(tmp_path / "new")], "no gallery in"),
        ([str(run), "world:colors", "--out", str(tmp_path / "new"), "--remove", "a"], "no gallery in"),
        ([str(photos), str(photos), "--out", str(tmp_path / "new")], "is not an adapter"),
        ([str(run), str(tmp_path / "bad"), "--out", str(tmp_path / "new")], "No image could be read"),
    ]:
        assert main(["index", *arguments]) == 2, sentence
        assert sentence in capsys.readouterr().err
    assert main(["search", str(photos), "--text", "red"]) == 2
    assert "is not a gallery" in capsys.readouterr().err


def test_what_could_not_be_indexed_leaves_no_gallery(run, photos, tmp_path, capsys) -> None:
    out = tmp_path / "new"
    (photos / "bad.jpg").write_bytes(b"no")
    for images in (photos / "bad.jpg", tmp_path / "nowhere"):
        assert main(["index", str(run), str(images), "--out", str(out)]) == 2
        assert not out.exists()
    assert main(["index", str(run), str(photos), "--out", str(out)]) == 0


def test_a_damaged_table_is_one_sentence_whatever_is_done(run, encoder, photos, tmp_path, capfd) -> None:
    """Every file of a table missing, cut, empty, of other bytes, or a pipe that nobody writes into."""
    whole = tmp_path / "whole"
    gallery = Gallery.create(whole, encoder)
    gallery.add(encoder, [photos])
    query = gallery.query(encoder, "red")
    files = [path.relative_to(whole) for path in (whole / "images.lance").rglob("*") if path.is_file()]
    assert len(files) >= 3
    uses = (
        lambda place: Gallery.open(place).search(query, {"cls": 1.0}),
        lambda place: Gallery.open(place).vectors("cls"),
        lambda place: Gallery.create(place, encoder).add(encoder, [photos / "a"]),
        lambda place: Gallery.open(place).remove([photos / "b_c"]),
    )
    refused = 0
    for number, (file, damage) in enumerate((f, d) for f in files for d in ("gone", "cut", "empty", "other", "pipe")):
        place = shutil.copytree(whole, tmp_path / str(number))
        content = (place / file).read_bytes()
        (place / file).unlink()
        if damage == "pipe":
            os.mkfifo(place / file)
        elif damage != "gone":
            kinds = {"cut": content[: len(content) // 2], "empty": b"", "other": bytes(len(content))}
            (place / file).write_bytes(kinds[damage])
        for use in uses:
            try:
                use(place)
            except DearError as error:
                refused += ": " in str(error)
    assert refused >= 40
    assert "panicked" not in capfd.readouterr().err
    data = next(path for path in (whole / "images.lance" / "data").iterdir())
    data.unlink()
    assert main(["index", str(run), str(photos), "--out", str(whole), "--device", "cpu"]) == 2
    assert "index its images again, into a new folder" in capfd.readouterr().err
