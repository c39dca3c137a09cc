"""Training from the command line: runs, kills, resumes, and the files they leave."""

import json
from shutil import copytree

import pytest
import torch
from safetensors.torch import load_file

import dear
from dear.cli import main
from dear.core.errors import DearError
from dear.training import loop
from dear.training.config import TrainConfig, learning_rate
from dying import dies_at_a_step

ADAPTER = "adapter_model.safetensors"


def test_a_run_writes_all_its_files_and_is_reproducible(train_arguments, tmp_path, capsys) -> None:
    assert main(train_arguments(tmp_path / "one", "--classes", "base", "--validate")) == 0
    out = capsys.readouterr().out
    assert "base" in out
    assert "novel" in out
    assert "hm" in out
    one = tmp_path / "one"
    lines = [json.loads(line) for line in (one / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert all(0 <= line["validation"] <= 100 for line in lines)
    assert len(lines[0]["fusion"]) == 6
    drawn = json.loads((one / "few_shot.json").read_text())["train"]
    assert sorted(label for _, label in drawn) == [label for label in range(6) for _ in range(2)]
    config = json.loads((one / "config.json").read_text())
    assert (config["shots"], config["classes"], config["beta"]) == (2, "base", 0.9)
    # The stored config is itself a valid --config, and gives the same bytes.
    again = ["train", "--config", str(one / "config.json"), "--out", str(tmp_path / "two")]
    assert main(again) == 0
    assert (one / ADAPTER).read_bytes() == (tmp_path / "two" / ADAPTER).read_bytes()


def test_training_learns(train_arguments, tmp_path) -> None:
    # The backbone is random: its class feature does not deserve the weight that it gets by default.
    main(train_arguments(tmp_path / "run", "--epochs", "12", "--shots", "8", "--fusion-init", "0.6"))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["cross_entropy"] < 0.9 * lines[0]["cross_entropy"]  # random features: a little is much


def test_killed_with_its_workers_and_resumed_it_ends_in_the_same_bits(train_arguments, finished_run, tmp_path) -> None:
    killed = tmp_path / "killed"
    dies_at_a_step(5, *train_arguments(killed, "--workers", "2"))  # three steps an epoch: in the second
    assert len((killed / "metrics.jsonl").read_text().splitlines()) == 1
    assert not (killed / ADAPTER).exists()
    assert main(train_arguments(killed, "--resume")) == 0
    assert (killed / ADAPTER).read_bytes() == (finished_run / ADAPTER).read_bytes()
    names = [path.name for path in killed.iterdir()]
    assert len((killed / "metrics.jsonl").read_text().splitlines()) == 3
    assert not [name for name in names if name.endswith(".part") and not name.startswith(".")]


def test_nothing_is_overwritten_and_other_settings_are_refused(train_arguments, finished_run, tmp_path, capsys) -> None:
    out = copytree(finished_run, tmp_path / "run")
    assert main(train_arguments(out)) == 2
    assert "--resume" in capsys.readouterr().err
    assert main(train_arguments(out, "--resume", "--beta", "0.5")) == 2
    assert "other settings (beta)" in capsys.readouterr().err
    assert main(train_arguments(out, "--resume")) == 0  # a finished run is simply finished
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    assert main(train_arguments(tmp_path / "full")) == 2
    assert "not empty" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.txt"]


def test_nan_stops_with_the_last_good_state(train_arguments, tmp_path, capsys, monkeypatch) -> None:
    from dear.methods.dear import Dear

    whole, calls = Dear.loss, []

    def broken(self, states, labels):
        calls.append(1)
        loss = whole(self, states, labels)
        return loss._replace(total=loss.total * float("nan")) if len(calls) > 4 else loss  # 3 steps an epoch

    monkeypatch.setattr(Dear, "loss", broken)
    assert main(train_arguments(tmp_path / "run")) == 2
    error = capsys.readouterr().err
    assert "nan in epoch 2" in error
    assert "state after epoch 1 is in" in error
    assert "Traceback" not in error
    kept = load_file(tmp_path / "run" / "checkpoint.safetensors")
    assert all(torch.isfinite(value).all() for value in kept.values())


def test_bad_input_is_one_sentence(train_arguments, tmp_path, capsys) -> None:
    cases = {
        "no folder": ["--data", str(tmp_path / "nowhere")],
        "no role map named": ["--roles", "pape"],
        "must be one of": ["--config", str(tmp_path / "bad.json")],
    }
    (tmp_path / "bad.json").write_text('{"isolation": "sideways"}')
    for sentence, more in cases.items():
        assert main(train_arguments(tmp_path / "run", *more)) == 2
        error = capsys.readouterr().err
        assert sentence in error
        assert error.count("\n") == 1
        assert not (tmp_path / "run").exists(), "what could not start must not be in the way of the next try"
    broken = tmp_path / "data" / "cats"
    broken.mkdir(parents=True)
    (broken / "a.jpg").write_bytes(b"not an image")
    (tmp_path / "data" / "dogs").mkdir()
    assert main(train_arguments(tmp_path / "run2", "--data", str(tmp_path / "data"))) == 2
    assert "dogs has no images" in capsys.readouterr().err
    (tmp_path / "data" / "dogs" / "b.jpg").write_bytes(b"not an image either")
    for workers in ("0", "2"):
        out = tmp_path / f"run{workers}"
        assert main(train_arguments(out, "--data", str(tmp_path / "data"), "--workers", workers)) == 2
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert error.startswith("dear: The image")
        assert "cannot be read" in error


def test_learning_rate_is_constant_then_cosine_once_an_epoch() -> None:
    rates = [learning_rate(TrainConfig(), 1e-3, 10, epoch) for epoch in range(10)]
    assert rates[:2] == pytest.approx([1e-5, 1e-3])
    assert rates[2] == pytest.approx(0.5e-3 * (1 + torch.cos(torch.tensor(torch.pi / 10)).item()))
    assert rates[1:] == sorted(rates[1:], reverse=True)


def test_novel_classes_at_load_time(finished_run) -> None:
    model = dear.load(finished_run, classes=["mauve", "beige"], device="cpu")
    assert model.classes == ("mauve", "beige")
    with pytest.raises(DearError, match="given twice"):
        dear.load(finished_run, classes=["mauve", "mauve"])


def test_a_recipe_in_steps_ends_in_the_middle_of_an_epoch(train_arguments, tmp_path, monkeypatch) -> None:
    seen = []
    monkeypatch.setattr(loop, "learning_rate", lambda *a: seen.append(a[-1]) or learning_rate(*a))
    assert main(train_arguments(tmp_path / "run", "--steps-per-shot", "7", "--schedule", "step", "--batch", "10")) == 0
    steps = 7 * json.loads((tmp_path / "run" / "config.json").read_text())["shots"]
    assert seen[:: len(seen) // steps] == [step / steps for step in range(steps)]  # of each group, and once to show
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) > 1
