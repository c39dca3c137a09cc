"""`dear evaluate` and `Predictor.evaluate`: which images, which numbers, which page."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

import dear
from dear.cli import main
from dear.trials.outcome import outcome_of

COLORS = {"red": (200, 40, 40), "green": (40, 180, 60), "blue": (50, 60, 210)}


def write_pictures(folder: Path, each: int, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    for name, color in COLORS.items():
        (folder / name).mkdir(parents=True)
        for number in range(each):
            noisy = (np.array(color) + rng.normal(0, 60, (32, 32, 3))).clip(0, 255).astype(np.uint8)
            Image.fromarray(noisy).save(folder / name / f"{number}.png")
    return folder


def test_numbers_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    labels, classes = rng.integers(0, 4, 90), ["a", "b", "c", "d", "never"]
    logits = torch.from_numpy(rng.normal(size=(90, 5)) + 2 * np.eye(5)[labels])
    logits[:, 4] -= 100
    outcome, answers = outcome_of(logits, torch.from_numpy(labels), classes), logits.argmax(1).numpy()
    precision, recall, f1, _ = precision_recall_fscore_support(labels, answers)
    for number, (name, shares) in enumerate(outcome.precisions().items()):
        expected = [100 * recall[number], 100 * precision[number], 100 * f1[number]]
        assert np.allclose([outcome.per_class[name], *(share.value for share in shares)], expected)
        assert all(share.interval[0] < share.value < share.interval[1] for share in shares)
    assert (np.array(list(outcome.matrix().values())) == confusion_matrix(labels, answers)).all()
    sure = [mean for mean, _, _ in outcome.reliability]
    assert sure == sorted(sure)
    assert math.isclose(sum(images for *_, images in outcome.reliability), 90, rel_tol=1e-6)


def test_a_command_measures_a_folder_that_was_never_seen_whole(model_folder, tmp_path, capsys) -> None:
    photos, new = write_pictures(tmp_path / "photos", 8, 0), write_pictures(tmp_path / "new", 4, 1)
    dear.train(photos, method="gda", model=f"local-dir:{model_folder}", device="cpu", out=tmp_path / "run")
    run, page = str(tmp_path / "run"), tmp_path / "page.html"
    assert main(["evaluate", run, str(new), "--device", "cpu", "--out", str(page), "--json"]) == 0
    captured = capsys.readouterr()
    tables = json.loads(captured.out[captured.out.index("\n{") + 1 if captured.out[0] != "{" else 0 :])
    assert tables["classes"][-1]["images"] == 12
    assert "all images, 12 of 12: it has no split of its own" in captured.err
    assert {row["method"] for row in tables["methods"]} == {"gda", "zero-shot"}
    text = page.read_text()
    assert "Confusion matrix" in text
    assert "<svg" in text
    model = dear.load(run, device="cpu")
    assert "all images, 12 of 12" in str(model.evaluate(new))
    assert model.evaluate(photos).images == 6, "of its own images those that were kept for tests"
    assert model.evaluate(photos, split="train").images == 18


@pytest.mark.parametrize("wrong", [["nowhere"], ["world:colors", "--split", "half"]])
def test_bad_input_is_one_sentence(wrong, finished_run, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        code = main(["evaluate", str(finished_run), *wrong])
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
