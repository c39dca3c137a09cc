"""Progress: nothing for short work, a line a minute in a log, a bar on a terminal."""

import io

import pytest

from dear.core.progress import Progress, log_line, progress


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("dear.core.progress._EVERY", 60.0)
    monkeypatch.setattr("dear.core.progress.time.monotonic", clock)
    return clock


def test_short_work_leaves_no_line_in_a_log(clock: Clock, capsys) -> None:
    for _ in progress(range(1000), "read"):
        clock.now += 0.05
    assert capsys.readouterr().err == ""


def test_long_work_writes_a_line_a_minute(clock: Clock, capsys) -> None:
    with Progress("epoch 1/2", 30, "step") as bar:
        bar.note("loss 0.5")
        for _ in range(30):
            clock.now += 10
            bar.update()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 5
    assert lines[0] == "epoch 1/2: 6 of 30 steps (01:00, about 04:00 left) loss 0.5"
    assert lines[-1] == "epoch 1/2: 30 of 30 steps (05:00, about 00:00 left) loss 0.5"


def test_what_was_done_before_does_not_make_the_rest_look_quick(clock: Clock, capsys) -> None:
    with Progress("heads", 1000, done=900) as bar:
        clock.now += 60
        bar.update(50)
    assert capsys.readouterr().err == "heads: 950 of 1000 images (01:00, about 01:00 left)\n"


def test_a_terminal_gets_a_bar_and_no_lines(clock: Clock, monkeypatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", terminal)
    with Progress("heads", 2, leave=True) as bar:
        clock.now += 100
        bar.update(2)
    log_line("epoch 1 done")
    shown = terminal.getvalue()
    assert "heads: 100%" in shown
    assert "left)" not in shown
    assert "epoch 1 done" not in shown


def test_a_log_gets_the_line_at_the_end_of_a_part(capsys) -> None:
    log_line("epoch 1 done")
    assert capsys.readouterr().err == "epoch 1 done\n"
