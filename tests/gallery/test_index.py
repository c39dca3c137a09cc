"""What goes into a gallery, what is skipped, what survives a kill, and what comes out again."""

import os
import shutil
import subprocess
import sys

import pytest

from dear.errors import DearError
from dear.gallery import Gallery
from dear.gallery.columns import as_matrix, vector_column
from dear.lock import only_writer

KILLED = """
import os, signal, sys
import dear, dear.gallery.index as index
from dear.gallery import Gallery

made, index._BATCH, index._WRITE = index._table, 8, 16
calls = []

def table(*arguments):
    calls.append(1)
    if len(calls) == 3:  # two writes are done, and the third is about to begin
        os.kill(os.getpid(), signal.SIGKILL)
    return made(*arguments)

index._table = table
run, folder, images = sys.argv[1:]
model = dear.load(run, device="cpu")
Gallery.create(folder, run, model).add(model, [images])
"""


@pytest.fixture
def gallery(run, model, tmp_path) -> Gallery:
    return Gallery.create(tmp_path / "gallery", run, model)


def test_stored_are_the_features_of_each_image(gallery, model, photos) -> None:
    added = gallery.add(model, [photos])
    assert (added.added, added.duplicates, added.already, added.unreadable) == (12, 0, 0, ())
    rows = gallery.table.to_arrow()
    paths = rows["path"].to_pylist()
    assert sorted(paths) == sorted(map(str, photos.rglob("*.png")))
    assert rows["size"].to_pylist() == [os.path.getsize(path) for path in paths]
    assert rows["label"].to_pylist() == [None] * 12
    for component, values in model.encode_image(paths).items():
        stored = as_matrix(rows[vector_column(component)], gallery.dim)
        assert abs(stored - values.numpy()).max() < 1e-5


def test_what_is_there_is_not_read_again(gallery, model, photos, monkeypatch) -> None:
    gallery.add(model, [photos / "a"], label_from_folder=True)
    monkeypatch.chdir(photos)
    with monkeypatch.context() as patch:
        patch.setattr("dear.gallery.sources.Source.open", None)
        assert gallery.add(model, ["a", "a/0.png"], label_from_folder=True).already == 4
    os.utime(photos / "a" / "0.png", (1, 1))  # touched, but the same
    added = gallery.add(model, ["."], label_from_folder=True)
    assert (added.added, added.already, len(gallery)) == (8, 4, 12)
    labels = gallery.table.to_arrow()["label"].to_pylist()
    assert sorted(set(labels)) == ["a", "b c", "d"]


def test_labels_can_be_added_later(gallery, model, photos) -> None:
    gallery.add(model, [photos])
    assert gallery.add(model, [photos], label_from_folder=True).added == 12
    assert len(gallery) == 12
    assert set(gallery.table.to_arrow()["label"].to_pylist()) == {"a", "b c", "d"}


def test_labels_are_kept_when_the_images_are_given_without(gallery, model, photos) -> None:
    gallery.add(model, [photos], label_from_folder=True)
    assert gallery.add(model, [photos]).already == 12
    assert None not in gallery.table.to_arrow()["label"].to_pylist()


def test_duplicates_by_content_are_skipped(gallery, model, photos, noise) -> None:
    shutil.copy(photos / "a" / "0.png", photos / "b_c" / "copy.png")
    assert gallery.add(model, [photos]).duplicates == 1
    noise(photos / "new.png", 1)
    shutil.copy(photos / "new.png", photos / "same.png")
    added = gallery.add(model, [photos])
    assert (added.added, added.duplicates, added.already, len(gallery)) == (1, 2, 12, 13)


def test_a_changed_file_takes_its_own_place(gallery, model, photos, noise) -> None:
    gallery.add(model, [photos])
    old = (photos / "a" / "0.png").read_bytes()
    noise(photos / "a" / "0.png", 1)
    (photos / "back.png").write_bytes(old)  # what it showed before is no longer there, so this is no duplicate
    assert gallery.add(model, [photos]).added == 2
    assert len(gallery) == len(set(gallery.paths())) == 13
    shutil.copy(photos / "a" / "1.png", photos / "a" / "0.png")  # now it is one of two that are the same
    assert gallery.add(model, [photos]).duplicates == 1
    assert str(photos / "a" / "0.png") not in gallery.paths()


def test_unreadable_files_are_reported_and_the_rest_is_added(gallery, model, photos) -> None:
    (photos / "broken.png").write_bytes((photos / "a" / "0.png").read_bytes()[:200])
    (photos / "text.jpg").write_text("not an image")
    (photos / "a" / "0.png").chmod(0o644)
    odd = os.fsencode(photos) + b"/\xff.png"
    shutil.copy(photos / "a" / "1.png", odd)
    added = gallery.add(model, [photos])
    assert (added.added, len(gallery)) == (12, 12)
    assert len(added.unreadable) == 3
    assert all(text.endswith(("repair or remove it.", "rename it.")) for text in added.unreadable)


def test_removed_by_path_folder_and_glob_even_if_gone_from_disk(gallery, model, photos, monkeypatch) -> None:
    gallery.add(model, [photos, "world:colors"])
    shutil.rmtree(photos / "a")
    assert gallery.remove([photos / "a" / "0.png"]) == 1
    monkeypatch.chdir(photos)
    assert gallery.remove(["a"]) == 3
    assert gallery.remove(["*c/[01].png", "nothing"]) == 2
    assert gallery.remove(["world:colors/test/0000*"]) == 10
    assert gallery.remove(["world:colors"]) == 470
    assert len(gallery) == 6
    assert gallery.add(model, [photos]).added == 2


def test_paths_with_quotes(gallery, model, photos, noise) -> None:
    path = noise(photos / "it's 'one'.png", 5)
    gallery.add(model, [path])
    assert gallery.image(str(path)).size == (24, 24)
    assert gallery.remove([path]) == 1


def test_attribute_world_is_drawn_again(gallery, model) -> None:
    from dear.data.world.tasks import world_task

    assert gallery.add(model, ["world:colors:night", "world:colors:night"]).added == 480
    rows = gallery.table.to_arrow().to_pylist()
    assert rows[41]["path"] == "world:colors:night/test/00041"
    assert rows[41]["label"] == "orange"
    assert gallery.image(rows[41]["path"]) == world_task("colors", "night").test[41].picture.open()
    assert gallery.add(model, ["world:colors:night"]).already == 480


def test_killed_and_taken_up_again(run, model, noise, tmp_path) -> None:
    folder, images = tmp_path / "gallery", tmp_path / "images"
    images.mkdir()
    files = [str(noise(images / f"{number}.png", number)) for number in range(60)]
    with (tmp_path / "error").open("w") as error:  # no pipe: the orphaned workers would keep it open for a while
        ended = subprocess.run([sys.executable, "-c", KILLED, str(run), str(folder), str(images)], stderr=error)
    assert ended.returncode == -9, (tmp_path / "error").read_text()
    gallery = Gallery.open(folder)
    assert len(gallery) == 32
    added = gallery.add(model, [images])
    assert (added.added, added.already, added.duplicates) == (28, 32, 0)
    assert sorted(gallery.paths()) == sorted(files)


HOLDS = """
import sys, time
from pathlib import Path
from dear.lock import only_writer
with only_writer(Path(sys.argv[1])):
    print("holding", flush=True)
    time.sleep(60)
"""


def test_one_writer_at_a_time(gallery, model, photos) -> None:
    with only_writer(gallery.folder), pytest.raises(DearError, match="Somebody else is writing"):
        gallery.add(model, [photos])
    holds = "import sys; from pathlib import Path; from dear.lock import only_writer\n"
    holds += "with only_writer(Path(sys.argv[1])): print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", holds, str(gallery.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(DearError, match="Somebody else is writing"):
            gallery.remove([photos])
    assert gallery.add(model, [photos]).added == 12


def test_nothing_to_find_is_said(gallery, model, tmp_path) -> None:
    with pytest.raises(DearError, match="has no images"):
        gallery.add(model, [tmp_path / "nowhere"])
    with pytest.raises(DearError, match="no task 'cats'"):
        gallery.add(model, ["world:cats"])
