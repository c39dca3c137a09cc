"""A file is whole or it is the old one, whatever happens while it is written."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dear.errors import DearError
from dear.files import atomic_path, read_json, write_json, write_text


def write_half(path: Path, error: BaseException) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text("half")
        raise error


def test_a_new_file_takes_its_place_in_a_new_folder(tmp_path: Path) -> None:
    write_json(tmp_path / "a" / "b" / "c.json", {"é": [1, None, "ß"]})
    assert read_json(tmp_path / "a" / "b" / "c.json") == {"é": [1, None, "ß"]}
    assert os.listdir(tmp_path / "a" / "b") == ["c.json"]


def test_writers_that_look_at_the_suffix_see_it(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "x.png") as temporary:
        assert temporary.suffix == ".png"
        assert temporary.parent == tmp_path  # a rename within one file system is atomic
        temporary.touch()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_leaves_the_old_file_and_no_other(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "x.txt"
    write_text(path, "old")
    with pytest.raises(error):
        write_half(path, error())
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["x.txt"]


def test_kill_9_leaves_the_old_file_and_the_next_write_succeeds(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    write_text(path, "old")
    program = (
        "import os, signal, sys\n"
        "from dear.files import atomic_path\n"
        "with atomic_path(sys.argv[1]) as temporary:\n"
        "    temporary.write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    died = subprocess.run([sys.executable, "-c", program, str(path)], timeout=60)
    assert died.returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    write_text(path, "new")
    assert path.read_text() == "new"


def test_places_that_cannot_be_written_are_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "folder").mkdir()
    before = sorted(os.listdir(tmp_path))
    for bad in (tmp_path / "file" / "x.txt", tmp_path / "folder", tmp_path / ("x" * 300), Path("/")):
        with pytest.raises(DearError, match="Cannot write"):
            write_text(bad, "new")
    assert sorted(os.listdir(tmp_path)) == before
    assert (tmp_path / "file").read_text() == "old"
    assert os.listdir(tmp_path / "folder") == []


def test_a_full_disk_is_said_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    write_text(path, "old")
    with pytest.raises(DearError, match=r"x\.txt: No space left on device\."):
        write_half(path, OSError(28, "No space left on device"))
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["x.txt"]


@pytest.mark.parametrize("content", [b"{", b"", b"\xff\xfe", b"[" + b"1" * 5000 + b"]"])
def test_what_is_not_json_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(DearError, match=r"x\.json cannot be read as JSON"):
        read_json(tmp_path / "x.json")


def test_a_missing_json_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DearError, match=r"x\.json does not exist"):
        read_json(tmp_path / "x.json")
    with pytest.raises(DearError, match="cannot be read as JSON"):
        read_json(tmp_path)
