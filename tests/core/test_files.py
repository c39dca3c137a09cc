"""A file is whole or it is the old one, whatever happens while it is written."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dear.core.errors import DearError
from dear.core.files import (
    atomic_folder,
    atomic_path,
    is_temporary,
    read_bytes,
    read_json,
    read_text,
    write_json,
    write_text,
)


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


def kill_while_writing(path: Path) -> None:
    """A process that dies in the middle of a file and of a folder."""
    program = (
        "import os, signal, sys\n"
        "from dear.core.files import atomic_folder, atomic_path\n"
        "with atomic_path(sys.argv[1]) as temporary, atomic_folder(sys.argv[1] + '.folder') as folder:\n"
        "    temporary.write_text('half')\n"
        "    (folder / 'x').write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    died = subprocess.run([sys.executable, "-c", program, str(path)], timeout=600)
    assert died.returncode == -signal.SIGKILL


def test_kill_9_leaves_the_old_file_and_the_next_writer_tidies_up(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("old")
    kill_while_writing(path)
    left = [p for p in tmp_path.iterdir() if is_temporary(p)]
    assert len(left) == 2
    assert path.read_text() == "old"
    (tmp_path / ".dear-00000000-1-1.part").touch()  # of another machine: who knows whether it still writes?
    (tmp_path / ".dear-00000000-1-2.part").touch()
    os.utime(tmp_path / ".dear-00000000-1-2.part", (1, 1))
    (tmp_path / ".mine.part").touch()
    write_text(tmp_path / "another.txt", "new")
    assert sorted(os.listdir(tmp_path)) == [".dear-00000000-1-1.part", ".mine.part", "another.txt", "x.txt"]


def test_what_is_being_written_is_left_alone(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "a") as first, atomic_path(tmp_path / "a") as second:
        assert first != second
        program = "import sys; from dear.core.files import write_text; write_text(sys.argv[1], 'b')"
        subprocess.run([sys.executable, "-c", program, str(tmp_path / "b")], check=True, timeout=600)
        assert first.exists()
        first.write_text("first")
        second.write_text("second")
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
    assert (tmp_path / "a").read_text() == "first"


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_all_files_get_the_rights_that_new_files_have(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        with atomic_path(tmp_path / "x") as temporary:
            temporary.chmod(0o600)
        with atomic_folder(tmp_path / "f") as folder:
            (folder / "x").touch(0o600)
    finally:
        os.umask(before)
    for path in (tmp_path / "x", tmp_path / "f" / "x"):
        assert path.stat().st_mode & 0o777 == 0o666 & ~mask


def test_the_longest_names_can_be_written_and_links_stay_links(tmp_path: Path) -> None:
    for name in ("x" * 255, "x." + "y" * 253, "x" * 251 + ".txt"):
        write_text(tmp_path / name, "whole")
        assert (tmp_path / name).read_text() == "whole"
    (tmp_path / "link").symlink_to(tmp_path / "real.txt")
    write_text(tmp_path / "link", "through")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "through"


def test_places_that_cannot_be_written_are_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "folder").mkdir()
    before = sorted(os.listdir(tmp_path))
    for bad in (tmp_path / "file" / "x.txt", tmp_path / "folder", tmp_path / ("x" * 300), Path("/")):
        with pytest.raises(DearError, match="Cannot write"):
            write_text(bad, "new")
    for bad in ("/dev/null", "/dev/full", "/".join(["x" * 200] * 30), tmp_path / "a\0b"):
        with pytest.raises(DearError, match="Cannot write"):
            write_text(bad, "new")
    assert sorted(os.listdir(tmp_path)) == before
    assert (tmp_path / "file").read_text() == "old"
    assert os.listdir(tmp_path / "folder") == []


@pytest.mark.parametrize(
    "content",
    [b"{", b"", b"\xff\xfe", b"[" + b"1" * 5000 + b"]", b"[" * 10**5, b'{"a":' * 10**5, b"NaN", b"[-Infinity]"],
)
def test_what_is_not_json_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(DearError, match=r"x\.json cannot be read"):
        read_json(tmp_path / "x.json")


def test_a_missing_json_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DearError, match=r"x\.json does not exist"):
        read_json(tmp_path / "x.json")
    for bad in (tmp_path, tmp_path / ("x" * 300), "/".join(["x" * 200] * 30), tmp_path / "a\0b"):
        with pytest.raises(DearError, match="cannot be read"):
            read_json(bad)


def test_what_has_no_end_is_not_read_to_it(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 101)
    with pytest.raises(DearError, match="has more than"):
        read_bytes(tmp_path / "large", largest=100)
    with pytest.raises(DearError, match="not a regular file"):
        read_bytes("/dev/zero", largest=100)
    assert read_bytes(tmp_path / "large", largest=101) == b"x" * 101


def test_a_byte_order_mark_is_not_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"\xef\xbb\xbfcat\n")
    assert read_text(tmp_path / "x.txt") == "cat\n"


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(st.characters()), st.lists, max_leaves=5))
def test_json_comes_back_as_it_was_whatever_letters_it_has(tmp_path_factory, value: object) -> None:
    path = tmp_path_factory.mktemp("json") / "x.json"
    write_json(path, [value, "\udcff \ud800"])
    assert read_json(path) == [value, "\udcff \ud800"]


def test_names_that_are_not_utf_8_can_stand_in_a_text(tmp_path: Path) -> None:
    write_text(tmp_path / "x", "caf\udce9 ☕")
    assert (tmp_path / "x").read_text(encoding="utf-8") == "caf\\udce9 ☕"
