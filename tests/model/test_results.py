"""The end of a run: the paired test against its enumeration, the verdict, the files, and old files."""

import itertools
import json
import math
from pathlib import Path

import pytest
import torch
from PIL import Image

import dear
from dear.cli import main
from dear.core.metrics import is_above_chance, mcnemar
from dear.data.dataset import Example, ImageFile
from dear.model.compare import Entry, advice, advised, leaderboard_table
from dear.model.evaluation import measured
from dear.model.results import WITHIN_NOISE, WORSE, WORTH_IT, Row, Verdict, part_result
from dear.training.run_folder import RunFolder


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (1, 0), (6, 0), (5, 1), (3, 3), (2, 9), (10, 1)])
def test_mcnemar_counts_coin_tosses(gained: int, lost: int) -> None:
    """p: of all ways to toss a coin per differing image, the share that is at least as one-sided."""
    tosses = list(itertools.product((0, 1), repeat=gained + lost))
    extreme = [t for t in tosses if abs(2 * sum(t) - len(t)) >= abs(gained - lost)]
    assert mcnemar(gained, lost) == pytest.approx(len(extreme) / len(tosses))
    assert mcnemar(gained, lost) == mcnemar(lost, gained)


def test_chance_is_that_of_guessing() -> None:
    guess = [math.comb(30, k) * (1 / 6) ** k * (5 / 6) ** (30 - k) for k in range(31)]
    for right in range(31):
        assert is_above_chance(right, 30, 6) == (sum(guess[right:]) < 0.05)
    assert not is_above_chance(5, 5, 1)  # one class: nothing to know


def logits_with(right: list[bool]) -> torch.Tensor:
    """Two classes, the true one is 0."""
    return torch.tensor([[1.0, 0.0] if hit else [0.0, 1.0] for hit in right])


@pytest.mark.parametrize(
    ("this", "zero_shot", "simple", "verdicts", "words"),
    [
        ([1] * 20, [0] * 10 + [1] * 10, [1] * 19 + [0], (WORTH_IT, WITHIN_NOISE), ("Worth it: +50.0", "within noise")),
        ([1] * 20, [0] * 10 + [1] * 10, [0] * 20, (WORTH_IT, WORTH_IT), ("Worth it: +50.0", "Also better")),
        ([1] * 20, [1] * 18 + [0] * 2, [1] * 18 + [0] * 2, (WITHIN_NOISE, WITHIN_NOISE), ("Within noise: +10.0",)),
        ([0] * 20, [1] * 20, [1] * 20, (WORSE, WORSE), ("Worse: -100.0", "is better, without training")),
    ],
)
def test_the_verdict_is_that_of_the_paired_test(this, zero_shot, simple, verdicts, words) -> None:
    examples = [Example(ImageFile(Path(f"{i}.png")), 0) for i in range(20)]
    logits = {"zero-shot": logits_with(zero_shot), "tip-adapter": logits_with(simple), "dear": logits_with(this)}
    result = part_result("all", "dear", logits, examples, ["cat", "dog"])
    assert [row.method for row in result.rows] == ["zero-shot", "tip-adapter", "dear"]
    assert tuple(verdict.verdict for verdict in result.verdicts) == verdicts
    assert all(word in result.sentence for word in words)
    assert len([m for m in result.largest_losses if m.answer == "dog"]) == this.count(0)


def test_classes_of_different_sizes_also_get_their_mean() -> None:
    examples = [Example(ImageFile(Path(f"{i}.png")), int(i == 9)) for i in range(10)]
    logits = {"dear": logits_with([1] * 10)}  # nine of the first class are right, the only one of the second is not
    result = part_result("all", "dear", logits, examples, ["cat", "dog"])
    assert result.evaluation.accuracy == 90
    assert "per class, mean 50.0%, worst first: dog 0% of 1, cat 100% of 9" in str(result)


def photos(folder: Path, classes: int = 3, each: int = 6) -> Path:
    colors = ["red", "green", "blue"]
    for label in range(classes):
        for i in range(each):
            path = folder / colors[label] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (32, 32), tuple(60 * i % 256 if c != label else 255 for c in range(3))).save(path)
    return folder


@pytest.mark.parametrize("folds", [(), ("--folds", "3")])
def test_a_run_says_whether_it_was_worth_it(folds, model_folder, tmp_path: Path, capsys) -> None:
    data, out = photos(tmp_path / "photos"), tmp_path / "run"
    arguments = ["train", "--model", f"local-dir:{model_folder}", "--data", str(data), "--method", "clip-adapter"]
    assert main([*arguments, "--epochs", "2", "--workers", "0", "--out", str(out), *folds]) == 0
    (printed, warnings), run = capsys.readouterr(), RunFolder(out)
    assert "also in test" not in warnings  # a fold is not a leak
    assert printed.splitlines()[0] == f"backbone: local-dir:{model_folder}"
    assert ("cross-validation: each of 18 images is tested once" in printed) == bool(folds)
    part = run.results()["parts"]["all"]
    assert [row["images"] for row in part["rows"]] == [18 if folds else 6] * 3  # two of six per class
    assert part["rows"][-1]["method"] == "clip-adapter"
    assert part["sentence"] in printed
    assert sum(entry["images"] for entry in part["evaluation"]["per_class"].values()) == part["rows"][0]["images"]
    assert run.test() == {"all": pytest.approx(part["rows"][-1]["accuracy"])}
    assert len(run.few_shot()["train"]) == (18 if folds else 12)
    assert not list(out.glob("fold-*"))
    page = (out / "results.html").read_text()
    assert "Accuracy per class" in page
    assert page.count("data:image/jpeg") >= len(part["largest_losses"])
    assert (out / "mistakes.png").exists() == bool(part["largest_losses"])
    tested = dear.evaluate(out, data)
    if folds:
        assert "trained on all of the" in capsys.readouterr().err
    else:  # the images that were not trained on, and no others
        assert tested.accuracy == pytest.approx(part["rows"][-1]["accuracy"])
        assert tested.images == 6
    # Again, as an interrupted run continues: it finds all trainings done, or does the rest of them.
    assert main([*arguments, "--epochs", "2", "--workers", "0", "--out", str(out), *folds, "--resume"]) == 0
    assert run.results()["parts"]["all"] == part


def test_a_file_of_before_has_no_comparison(tmp_path: Path) -> None:
    (tmp_path / "test.json").write_text(json.dumps({"base": 90.0, "novel": 80.0, "hm": 84.7}))
    assert RunFolder(tmp_path).test() == {"base": 90.0, "novel": 80.0, "hm": 84.7}
    assert RunFolder(tmp_path).results() == {}


def test_a_run_of_before_keeps_its_split(model_folder, tmp_path: Path, capsys) -> None:
    """Runs on folders were divided 50/20/30, and did not say so in their settings."""
    data, out = photos(tmp_path / "photos", each=10), tmp_path / "run"
    arguments = ["train", "--model", f"local-dir:{model_folder}", "--data", str(data), "--method", "clip-adapter"]
    arguments += ["--epochs", "2", "--workers", "0", "--out", str(out)]
    assert main([*arguments, "--split", "50/20/30"]) == 0
    before = RunFolder(out).few_shot()
    config = json.loads((out / "config.json").read_text())
    for name in ("split", "folds"):
        del config[name]
    (out / "config.json").write_text(json.dumps(config))
    assert main([*arguments, "--resume"]) == 0
    assert RunFolder(out).few_shot() == before
    assert dear.evaluate(out, data).images == 9  # 30% of each class


def test_a_leaderboard_is_sorted_and_names_the_cheapest_within_noise(model_folder, tmp_path: Path, capsys) -> None:
    data = photos(tmp_path / "photos")
    arguments = ["compare", str(data), "--model", f"local-dir:{model_folder}", "--device", "cpu", "--json"]
    assert main([*arguments, "--methods", "clip-adapter", "tip-adapter", "zero-shot", "--time-limit", "20s"]) == 0
    rows = json.loads(capsys.readouterr().out)["leaderboard"]
    assert {row["method"] for row in rows} == {"clip-adapter", "tip-adapter", "zero-shot"}
    accuracies = [row["accuracy (%)"] for row in rows]
    assert accuracies == sorted(accuracies, reverse=True)
    assert rows[0]["p against the best"] is None
    assert main([*arguments, "--methods", "clip-adapter", "--time-limit", "1s"]) == 2
    assert "no time" in capsys.readouterr().err.lower()


def test_the_advice_is_the_best_without_training_if_it_is_within_noise() -> None:
    def entry(method: str, right: int, p: float | None, epochs: tuple[int, int] | None = None) -> Entry:
        row = Row(*measured(torch.arange(100) < right), method)
        verdict = WITHIN_NOISE if p is None or p >= 0.05 else WORTH_IT
        return Entry(row, 1.0, None if p is None else Verdict(method, 0, 0, p, verdict), epochs)

    entries = [entry("dear", 95, None, (3, 10)), entry("gda", 93, 0.4), entry("zero-shot", 90, 0.1)]
    assert advised(entries).row.method == "gda"
    assert "dear has the best accuracy, within noise of gda, zero-shot, and gda needs no training." in advice(entries)
    assert "dear had fewer epochs than usual" in advice(entries)
    assert leaderboard_table(entries).cells()[0][4] == "3 of 10"
    entries = [entry("dear", 95, None, (10, 10)), entry("gda", 80, 0.01)]
    assert advised(entries).row.method == "dear"
    assert "dear has the best accuracy, beyond noise." in advice(entries)
    assert "fewer epochs" not in advice(entries)


def test_an_unfinished_run_says_how_far_it_came(tmp_path: Path, model_folder, capsys, monkeypatch) -> None:
    data, out = photos(tmp_path / "photos"), tmp_path / "run"
    stop = KeyboardInterrupt()

    def interrupted(*_, **__):
        raise stop

    arguments = ["train", "--model", f"local-dir:{model_folder}", "--data", str(data), "--method", "clip-adapter"]
    arguments += ["--epochs", "3", "--workers", "0", "--out", str(out)]
    with monkeypatch.context() as patch:
        patch.setattr("dear.methods.clip_adapter.ClipAdapter.loss", interrupted)
        assert main(arguments) == 130
    assert capsys.readouterr().err.endswith("dear: interrupted; nothing was finished.\n")
    with monkeypatch.context() as patch:
        patch.setattr("dear.training.loop.RunEstimate.affordable_epochs", interrupted)
        assert main([*arguments, "--time-limit", "1h"]) == 130
    assert (
        "interrupted; stopped after epoch 1 of 3: the same command with --resume continues" in capsys.readouterr().err
    )
    assert main(["predict", str(out), str(data)]) == 2
    assert "stopped after epoch 1 of 3" in capsys.readouterr().err
    assert main([*arguments, "--resume"]) == 0
    assert "epoch 1 of 3 is done: training continues after it" in capsys.readouterr().err
    assert main(["predict", str(out), str(data / "red"), "--json"]) == 0
    printed, said = capsys.readouterr()
    assert said.splitlines()[0] == f"backbone: local-dir:{model_folder}, adapted by clip-adapter"
    assert all(json.loads(line)["path"] for line in printed.splitlines())
