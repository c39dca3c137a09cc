"""Time left and time limits, by a clock that the test turns."""

import json

import pytest

from dear.cli import main
from dear.core.errors import DearError
from dear.training.estimate import RunEstimate, parse_duration


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("5m", 300), ("1h30m", 5400), ("0.5h", 1800)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "m", "5 m", "-5m", "5d", "1e9h", "0s"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(DearError, match="--time-limit must be"):
        parse_duration(text)


def test_the_estimate_is_of_the_whole_run(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr("dear.training.estimate.time.monotonic", lambda: now[0])
    estimate = RunEstimate(lambda training: 100 + 2 * training, deadline=200)
    estimate.start()
    for seconds in (30, 2, 2, 2):  # the first step fills caches
        now[0] += seconds
        estimate.step()
    assert estimate.step_seconds == 2
    assert estimate.left(6, 10) == 6 * 2 + 100 + 2 * (10 * 2)
    # 164 s are left until the deadline, 100 of them for what comes after: eight epochs of four steps.
    assert estimate.affordable_epochs(1, 50, 4) == 1 + int(64 / 8)
    assert estimate.affordable_epochs(1, 3, 4) == 3
    now[0] = 1000.0
    assert estimate.affordable_epochs(1, 50, 4) == 1  # what is done stays
    assert RunEstimate().affordable_epochs(1, 50, 4) == 50


def test_a_time_limit_gives_fewer_epochs_and_a_whole_run(train_arguments, tmp_path, capsys, ticking) -> None:
    out = tmp_path / "run"
    assert main(train_arguments(out, "--epochs", "2000", "--time-limit", "3s")) == 0
    epochs = len((out / "metrics.jsonl").read_text().splitlines())
    assert 1 <= epochs < 2000
    assert f"--time-limit: {epochs} of 2000 epochs" in capsys.readouterr().out
    assert "results" in json.loads((out / "test.json").read_text())
