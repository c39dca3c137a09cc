"""One judge: the same two methods on the same images get the same difference, interval and verdict everywhere."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dear.cli import main
from dear.training.run_folder import RunFolder
from dear.trials.leaderboard import leaderboard, verdict
from dear.trials.outcome import outcome_of
from dear.trials.paired import Comparison, compare
from dear.trials.selection import select

CLASSES = ("cat", "dog")


def logits_of(right: list[bool], labels: torch.Tensor) -> torch.Tensor:
    """Logits [images, classes] whose answers are right where asked."""
    answers = torch.where(torch.tensor(right), labels, 1 - labels)
    return torch.nn.functional.one_hot(answers, 2).double()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=60))
def test_train_compare_fit_and_bench_agree_about_the_same_answers(pairs: list[tuple[bool, bool]]) -> None:
    pairs = pairs * 2  # as many images of one class as of the other
    labels = torch.arange(len(pairs)) % 2
    logits = {name: logits_of([pair[i] for pair in pairs], labels) for i, name in enumerate(("gda", "zero-shot"))}
    gda, zero_shot = (outcome_of(scores, labels, CLASSES, method=name) for name, scores in logits.items())
    of_train = leaderboard([zero_shot, gda], "gda")  # differences are those of the others to gda
    (of_bench,) = [compare([{1: [zero_shot.answers]}], [{1: [gda.answers]}])]
    assert of_train.comparisons["zero-shot"] == of_bench
    turned = compare([{1: [gda.answers]}], [{1: [zero_shot.answers]}])
    assert turned.sentence("gda", "zero-shot") in verdict(of_train)
    of_compare = leaderboard([gda, zero_shot])
    of_fit = select({name: (scores, "no fit") for name, scores in logits.items()}, labels, CLASSES).board
    for board in (of_compare, of_fit):
        (comparison,) = board.comparisons.values()
        expected = of_bench if board.reference == "gda" else turned
        for name in ("difference", "low", "high", "p"):
            assert getattr(comparison, name) == pytest.approx(getattr(expected, name)), name
        assert comparison.verdict == expected.verdict


def test_two_commands_print_the_same_about_the_same_pair(model_folder: Path, tmp_path: Path, capsys) -> None:
    """`dear train` and `dear compare` on the same photos."""
    rng = np.random.default_rng(0)
    for number, name in enumerate(CLASSES):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(16):
            color = (120 + 30 * number, 120, 120)
            picture = (np.array(color) + rng.normal(0, 40, (32, 32, 3))).clip(0, 255).astype(np.uint8)
            Image.fromarray(picture).save(tmp_path / "photos" / name / f"{i}.png")
    model = ["--model", f"local-dir:{model_folder}", "--device", "cpu"]
    photos, out = str(tmp_path / "photos"), tmp_path / "run"
    assert main(["train", "--data", photos, *model, "--method", "head-gains", "--out", str(out)]) == 0
    board = RunFolder(out).results()["parts"]["all"]["board"]
    trained = Comparison(**board["comparisons"]["zero-shot"])  # zero-shot minus head-gains
    capsys.readouterr()
    assert main(["compare", photos, *model, "--methods", "zero-shot", "head-gains", "--json"]) == 0
    best, other = json.loads(capsys.readouterr().out)["leaderboard"]
    assert (best["method"], board["reference"]) == ("head-gains", "head-gains")
    assert Comparison(**other["against head-gains"]) == trained
    assert other["verdict"] == trained.verdict
