"""Indexing: images that are added, skipped, changed and removed, and a kill at any moment."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from dear.core.errors import DearError
from dear.core.lock import only_writer
from dear.gallery import Gallery
from dear.gallery.storage import to_matrix, vector_column

KILLED = """
import os, signal, sys
import dear.gallery.index as index
from dear.gallery import AdapterEncoder, Gallery

original, index.ENCODE_BATCH, index._WRITE = index._table, 8, 16
calls = []

def table(*arguments):
    calls.append(1)
    if len(calls) == 3:  # two writes are done, and the third is about to begin
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments)

index._table = table
run, folder, images = sys.argv[1:]
encoder = AdapterEncoder.load(run, "cpu")
Gallery.create(folder, encoder).add(encoder, [images])
"""


@pytest.fixture
def gallery(encoder, tmp_path) -> Gallery:
    return Gallery.create(tmp_path / "gallery", encoder)


def test_stored_are_the_features_of_each_image(gallery, encoder, model, photos) -> None:
    summary = gallery.add(encoder, [photos])
    assert (summary.added, summary.duplicates, summary.already, summary.unreadable) == (12, 0, 0, ())
    rows = gallery.table.to_arrow()
    paths = rows["path"].to_pylist()
    assert sorted(paths) == sorted(map(str, photos.rglob("*.png")))
    assert rows["size"].to_pylist() == [os.path.getsize(path) for path in paths]
    assert rows["label"].to_pylist() == [None] * 12
    for component, values in model.features(paths).items():
        stored = to_matrix(rows[vector_column(component)], gallery.dim)
        assert abs(stored - values.numpy()).max() < 2**-11  # half a step of float16 below 1
        assert abs(gallery.vectors(component) - values.numpy()).max() < 2**-10


def test_what_is_there_is_not_read_again(gallery, encoder, photos, monkeypatch) -> None:
    gallery.add(encoder, [photos / "a"], label_from_folder=True)
    monkeypatch.chdir(photos)
    with monkeypatch.context() as patch:
        patch.setattr("dear.gallery.index.IndexedImage.read", None)
        assert gallery.add(encoder, ["a", "a/0.png"], label_from_folder=True).already == 4
    os.utime(photos / "a" / "0.png", (1, 1))  # touched, but the same
    summary = gallery.add(encoder, ["."], label_from_folder=True)
    assert (summary.added, summary.already, len(gallery)) == (8, 4, 12)
    labels = gallery.table.to_arrow()["label"].to_pylist()
    assert sorted(set(labels)) == ["a", "b c", "d"]


def test_labels_can_be_added_later_and_are_kept_when_the_images_are_given_without(gallery, encoder, photos) -> None:
    gallery.add(encoder, [photos])
    assert gallery.add(encoder, [photos], label_from_folder=True).added == 12
    assert gallery.add(encoder, [photos]).already == 12
    assert len(gallery) == 12
    assert set(gallery.table.to_arrow()["label"].to_pylist()) == {"a", "b c", "d"}


def test_duplicates_by_content_are_skipped(gallery, encoder, photos, noise) -> None:
    shutil.copy(photos / "a" / "0.png", photos / "b_c" / "copy.png")
    assert gallery.add(encoder, [photos]).duplicates == 1
    noise(photos / "new.png", 1)
    shutil.copy(photos / "new.png", photos / "same.png")
    summary = gallery.add(encoder, [photos])
    assert (summary.added, summary.duplicates, summary.already, len(gallery)) == (1, 2, 12, 13)


def test_a_changed_file_takes_its_own_place(gallery, encoder, photos, noise) -> None:
    gallery.add(encoder, [photos])
    old = (photos / "a" / "0.png").read_bytes()
    noise(photos / "a" / "0.png", 1)
    (photos / "back.png").write_bytes(old)  # what it showed before is no longer there, so this is no duplicate
    assert gallery.add(encoder, [photos]).added == 2
    assert len(gallery) == len(set(gallery.paths())) == 13
    shutil.copy(photos / "a" / "1.png", photos / "a" / "0.png")  # now it is one of two that are the same
    assert gallery.add(encoder, [photos]).duplicates == 1
    assert str(photos / "a" / "0.png") not in gallery.paths()


def test_unreadable_files_are_reported_and_the_rest_is_added(gallery, encoder, photos) -> None:
    (photos / "broken.png").write_bytes((photos / "a" / "0.png").read_bytes()[:200])
    (photos / "text.jpg").write_text("not an image")
    (photos / "a" / "0.png").chmod(0o644)
    odd = os.fsencode(photos) + b"/\xff.png"
    shutil.copy(photos / "a" / "1.png", odd)
    summary = gallery.add(encoder, [photos])
    assert (summary.added, len(gallery)) == (12, 12)
    assert len(summary.unreadable) == 3
    assert all(text.endswith(("repair or remove it.", "rename it.")) for text in summary.unreadable)


def test_removed_by_path_folder_and_glob_even_if_gone_from_disk(gallery, encoder, photos, monkeypatch) -> None:
    gallery.add(encoder, [photos, "world:colors"])
    shutil.rmtree(photos / "a")
    assert gallery.remove([photos / "a" / "0.png"]) == 1
    monkeypatch.chdir(photos)
    assert gallery.remove(["a"]) == 3
    assert gallery.remove(["*c/[01].png", "nothing"]) == 2
    assert gallery.remove(["world:colors/test/0000*"]) == 10
    assert gallery.remove(["world:colors"]) == 470
    assert len(gallery) == 6
    assert gallery.add(encoder, [photos]).added == 2


def test_paths_with_quotes(gallery, encoder, photos, noise) -> None:
    path = noise(photos / "it's 'one'.png", 5)
    gallery.add(encoder, [path])
    assert gallery.image(str(path)).size == (24, 24)
    assert gallery.remove([path]) == 1


def test_attribute_world_is_drawn_again(gallery, encoder) -> None:
    from dear.data.world.tasks import world_task

    assert gallery.add(encoder, ["world:colors:night", "world:colors:night"]).added == 480
    rows = gallery.table.to_arrow().to_pylist()
    assert rows[41]["path"] == "world:colors:night/test/00041"
    assert rows[41]["label"] == "orange"
    assert gallery.image(rows[41]["path"]) == world_task("colors", "night").test[41].picture.open()
    assert gallery.add(encoder, ["world:colors:night"]).already == 480


def test_killed_and_taken_up_again(run, encoder, noise, tmp_path) -> None:
    folder, images = tmp_path / "gallery", tmp_path / "images"
    images.mkdir()
    files = [str(noise(images / f"{number}.png", number)) for number in range(60)]
    with (tmp_path / "error").open("w") as error:  # no pipe: the orphaned workers would keep it open for a while
        ended = subprocess.run([sys.executable, "-c", KILLED, str(run), str(folder), str(images)], stderr=error)
    assert ended.returncode == -9, (tmp_path / "error").read_text()
    gallery = Gallery.open(folder)
    assert len(gallery) == 32
    summary = gallery.add(encoder, [images])
    assert (summary.added, summary.already, summary.duplicates) == (28, 32, 0)
    assert sorted(gallery.paths()) == sorted(files)


# Forks before LanceDB starts its threads: each child writes a gallery of its own and is killed at another moment.
WRITERS = """
import os, signal, sys, threading, time
from pathlib import Path
import lancedb, numpy as np, pyarrow as pa
from dear.gallery import Gallery
from dear.gallery.storage import GalleryInfo, table_schema, to_column

def write(folder, delay):
    folder.mkdir()
    done = os.open(f"{folder}.done", os.O_WRONLY | os.O_CREAT)
    source = {"kind": "adapter", "folder": "none", "sha256": ""}
    gallery = Gallery(folder, GalleryInfo(source, ("cls", "color"), (), 16), None)
    for number in range(40):
        if number == 5:
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
        names = [f"{number}-{i}" for i in range(20)]
        vectors = to_column(np.full((20, 16), number, np.float32))
        gallery.add_rows(pa.table([names, [1] * 20, [1] * 20, names, names, vectors, vectors], schema=gallery_schema))
        gallery.compact()
        os.write(done, b".")
    time.sleep(60)

gallery_schema = table_schema(("cls", "color"), 16)
for trial in range(8):
    if (child := os.fork()) == 0:
        write(Path(sys.argv[1]) / str(trial), trial * 0.006)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
"""


def test_killed_in_the_middle_of_a_write(tmp_path) -> None:
    """All writes that were done are whole, and at most the one that was going on is there, too."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", WRITERS, str(tmp_path)], check=True, timeout=600)
    for trial in range(8):
        done = len((tmp_path / f"{trial}.done").read_bytes())
        gallery = Gallery.open(tmp_path / str(trial))
        writes = [int(path.partition("-")[0]) for path in gallery.paths()]
        assert sorted(set(writes)) in (list(range(done)), list(range(done + 1)))
        assert len(writes) == 20 * len(set(writes))
        for component in ("cls", "color"):
            stored = to_matrix(gallery.rows([vector_column(component)])[vector_column(component)], 16)
            assert (stored == np.array(writes)[:, None]).all()
        gallery.add_rows(gallery.rows(gallery.table.schema.names).slice(0, 3))
        gallery.compact()
        assert len(gallery.search({"cls": np.ones(16)}, {"cls": 1.0}, k=10_000)) == len(writes) + 3


def test_one_writer_at_a_time(gallery, encoder, photos) -> None:
    with only_writer(gallery.folder), pytest.raises(DearError, match="Somebody else is writing"):
        gallery.add(encoder, [photos])
    holds = "import sys; from pathlib import Path; from dear.core.lock import only_writer\n"
    holds += "with only_writer(Path(sys.argv[1])): print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", holds, str(gallery.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(DearError, match="Somebody else is writing"):
            gallery.remove([photos])
    assert gallery.add(encoder, [photos]).added == 12


def test_nothing_to_find_is_said(gallery, encoder, tmp_path) -> None:
    with pytest.raises(DearError, match="has no images"):
        gallery.add(encoder, [tmp_path / "nowhere"])
    with pytest.raises(DearError, match="no task 'cats'"):
        gallery.add(encoder, ["world:cats"])
