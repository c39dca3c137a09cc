"""One of two writers is told to wait; whatever ends the other, the folder is free again."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dear.core.errors import DearError
from dear.core.lock import LOCK, only_writer

HOLD = """
import signal, sys, time
from dear.core.lock import only_writer
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored
with only_writer(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


def hold(folder: Path) -> "subprocess.Popen[str]":
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_another_process_is_refused_until_the_first_is_gone(tmp_path: Path, how: signal.Signals) -> None:
    holder = hold(tmp_path / "out")
    with pytest.raises(DearError, match="Somebody else is writing"), only_writer(tmp_path / "out"):
        pass
    holder.send_signal(how)
    holder.communicate(timeout=600)
    with only_writer(tmp_path / "out"):
        assert os.listdir(tmp_path / "out") == [LOCK]


def test_another_thread_is_refused_and_another_folder_is_not(tmp_path: Path) -> None:
    said: list[str] = []

    def second() -> None:
        try:
            with only_writer(tmp_path / "a" / ".." / "a"):
                pass
        except DearError as error:
            said.append(str(error))

    (tmp_path / "a").mkdir()
    with only_writer(tmp_path / "a"), only_writer(tmp_path / "b"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert len(said) == 1
    with only_writer(tmp_path / "a"):
        pass


def test_nothing_is_left_of_a_folder_in_which_nothing_was_put(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for name in ("new", "mine"):
        with pytest.raises(ValueError, match="no"), only_writer(tmp_path / name):
            raise ValueError("no")
    with only_writer(tmp_path / "used"):
        (tmp_path / "used" / "x").touch()
    assert sorted(os.listdir(tmp_path)) == ["mine", "used"]
    assert os.listdir(tmp_path / "used") == ["x"]


def test_what_cannot_be_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for bad in (tmp_path / "file", tmp_path / "file" / "x", tmp_path / ("x" * 300), Path("/proc/x")):
        with pytest.raises(DearError), only_writer(bad):
            pass


def test_many_who_want_it_at_once_get_it_one_after_the_other(tmp_path: Path) -> None:
    """The lock file comes and goes; nobody may hold one that is no longer there."""
    program = """
import sys
from pathlib import Path
from dear.core.errors import DearError
from dear.core.lock import only_writer
folder, done = Path(sys.argv[1]), 0
while done < 40:
    try:
        with only_writer(folder):
            number = int((folder / "count").read_text())
            (folder / "count").write_text(str(number + 1))
            done += 1
    except DearError:
        pass
"""
    (tmp_path / "count").write_text("0")
    several = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path)]) for _ in range(3)]
    assert [one.wait(timeout=600) for one in several] == [0, 0, 0]
    assert (tmp_path / "count").read_text() == "120"
