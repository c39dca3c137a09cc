"""The end of a run: the verdict, and the files."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from PIL import Image

import dear
from dear.cli import main
from dear.core.errors import DearWarning
from dear.data.dataset import Dataset, Example, ImageFile
from dear.training.run_folder import RunFolder
from dear.trials.leaderboard import leaderboard
from dear.trials.outcome import outcome_of
from dear.trials.paired import AHEAD, BEHIND, EVEN, UNDECIDED
from dear.trials.run_result import PartResult, run_result
from dear.trials.task import Round, Task
from dear.trials.trial import Trial


def logits_with(right: list[bool]) -> torch.Tensor:
    """Two classes, the true one is 0."""
    return torch.tensor([[1.0, 0.0] if hit else [0.0, 1.0] for hit in right])


def result_of(logits: dict[str, torch.Tensor], labels: list[int]) -> PartResult:
    """The result of the last method, from the logits of all on the same images."""
    examples = tuple(Example(ImageFile(Path(f"{i}.png")), label) for i, label in enumerate(labels))
    data = Dataset("data", ("cat", "dog"), "{}", (), (), examples)
    trials = [Trial(name, Task((Round(data, {"all": data}),))) for name in logits]
    for trial in trials:
        trial.answers["all", "plain"] = [logits[trial.method]]
    return run_result(trials[-1], trials[:-1]).parts["all"]


@pytest.mark.parametrize(
    ("this", "zero_shot", "simple", "verdicts", "words"),
    [
        ([1] * 20, [0] * 10 + [1] * 10, [1] * 19 + [0], (AHEAD, UNDECIDED), ("zero-shot by 50.0", "needs no training")),
        ([1] * 20, [0] * 10 + [1] * 10, [0] * 20, (AHEAD, AHEAD), ("of zero-shot by 50.0", "of tip-adapter by 100.0")),
        ([1] * 20, [1] * 18 + [0] * 2, [1] * 18 + [0] * 2, (UNDECIDED, UNDECIDED), ("undecided: +10.0",)),
        ([1] * 200, [1] * 200, [1] * 200, (EVEN, EVEN), ("dear is level with zero-shot: +0.0",)),
        ([0] * 20, [1] * 20, [1] * 20, (BEHIND, BEHIND), ("is behind zero-shot by 100.0",)),
    ],
)  # fmt: skip
def test_the_verdict_is_that_of_the_paired_comparison(this, zero_shot, simple, verdicts, words) -> None:
    logits = {"zero-shot": logits_with(zero_shot), "tip-adapter": logits_with(simple), "dear": logits_with(this)}
    result = result_of(logits, [0] * len(this))
    assert result.outcome.method == result.board.reference == "dear"
    opposite = {AHEAD: BEHIND, BEHIND: AHEAD}
    for name, verdict in zip(("zero-shot", "tip-adapter"), verdicts, strict=True):
        assert result.board.comparisons[name].verdict == opposite.get(verdict, verdict)
    assert all(word in result.verdict for word in words)
    assert len([m for m in result.mistakes if m.answer == "dog"]) == this.count(0)


def test_classes_of_different_sizes_also_get_their_mean() -> None:
    # Nine of the first class are right, the only one of the second is not.
    result = result_of({"dear": logits_with([1] * 10)}, [0] * 9 + [1])
    assert result.outcome.accuracy == 90
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
    rows = {row["method"]: row for row in part["board"]["outcomes"]}
    own = rows[part["board"]["reference"]]
    assert own["method"] == "clip-adapter"
    assert [row["images"] for row in rows.values()] == [18 if folds else 6] * 3  # two of six per class
    assert own.get("measured", "test") == ("folds" if folds else "test")
    assert part["verdict"] in printed
    assert sum(own["class_images"].values()) == own["images"]
    assert run.test() == {"all": pytest.approx(own["accuracy"])}
    assert len(run.few_shot()["train"]) == (18 if folds else 12)
    assert not list(out.glob("fold-*"))
    page = (out / "results.html").read_text()
    assert "Each class, worst first" in page
    assert page.count("data:image/jpeg") >= len(part["mistakes"])
    assert (out / "mistakes.png").exists() == bool(part["mistakes"])
    with pytest.warns(DearWarning, match="trained on all of the") if folds else nullcontext():
        tested = dear.evaluate(out, data)
    if folds:
        assert tested.images == 6
    else:  # the images that were not trained on, and no others
        assert tested.accuracy == pytest.approx(own["accuracy"])
        assert tested.images == 6
    # Again, as an interrupted run continues: it finds all trainings done, or does the rest of them.
    assert main([*arguments, "--epochs", "2", "--workers", "0", "--out", str(out), *folds, "--resume"]) == 0
    again = run.results()["parts"]["all"]
    assert [row["right"] for row in again["board"]["outcomes"]] == [row["right"] for row in rows.values()]
    assert (again["verdict"], again["mistakes"]) == (part["verdict"], part["mistakes"])


def test_a_leaderboard_is_sorted_and_names_the_cheapest_within_noise(
    model_folder, tmp_path: Path, capsys, ticking
) -> None:
    data = photos(tmp_path / "photos")
    arguments = ["compare", str(data), "--model", f"local-dir:{model_folder}", "--device", "cpu", "--json"]
    assert main([*arguments, "--methods", "clip-adapter", "tip-adapter", "zero-shot", "--time-limit", "20s"]) == 0
    rows = json.loads(capsys.readouterr().out)["leaderboard"]
    assert {row["method"] for row in rows} == {"clip-adapter", "tip-adapter", "zero-shot"}
    accuracies = [row["accuracy (%)"] for row in rows]
    assert accuracies == sorted(accuracies, reverse=True)
    assert rows[0]["verdict"] is None
    assert main([*arguments, "--methods", "clip-adapter", "--time-limit", "1s"]) == 2
    assert "no time" in capsys.readouterr().err.lower()


def test_the_advice_is_the_best_without_training_if_it_is_not_behind() -> None:
    def board(**right: int):
        labels = torch.zeros(100, dtype=torch.long)
        logits = {name.replace("_", "-"): logits_with([i < count for i in range(100)]) for name, count in right.items()}
        outcomes = [
            outcome_of(scores, labels, ["cat", "dog"], method=name, epochs=(3, 10) if name == "dear" else None)
            for name, scores in logits.items()
        ]
        return leaderboard(outcomes)

    close = board(zero_shot=90, gda=94, dear=95)
    assert close.advised().method == "gda"
    assert "gda needs no training." in close.advice()
    assert "dear had fewer epochs than usual" in close.advice()
    assert close.table().cells()[0][-1] == "3 of 10"
    far = board(gda=80, dear=95)
    assert far.advised().method == "dear"
    assert far.advice().startswith("dear has the best accuracy; behind: gda.\nPicked as the best of 2 on the same")


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
