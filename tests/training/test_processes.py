"""One run in two processes is the run of one: every method, in fp64, with batches and classes that do not divide.

This file is also what torchrun starts: both sides train the same cases, and the tests compare what they came to.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dear.cli import main
from dear.clip import load_backbone, text
from dear.core.errors import DearError
from dear.core.names import inferences
from dear.data import loading
from dear.data.augment import FreshViews
from dear.data.resolve import resolve_dataset
from dear.data.world import tasks
from dear.methods import deep_prompts, tac
from dear.methods.dear import Dear
from dear.methods.registry import METHODS, find_method, recipe_of
from dear.methods.zero_shot import SIXTY
from dear.parallel import processes
from dear.training import loop
from dear.training.adapt import adapt, predict_logits
from dear.training.config import TrainConfig
from dear.training.images import ImageSource

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
TRAINED = [name for name, listed in METHODS.items() if listed.trained]
SETTINGS = {
    "steps_per_shot": None, "warmup_epochs": 0, "drop_last": False, "workers": 0, "device": "cpu", "shots": 2,
    "average_peak": 1.0,
}  # fmt: skip

ISOLATED = {"role_strategy": "all_generalization", "augment": "fixed:2"}


class Cut(Exception):
    pass


class Cases:
    """Trainings on five classes: two in one process and three in the other; the last batch of an epoch is smaller."""

    def __init__(self, model: str, roles: str, out: str) -> None:
        self.backbone, self.out, self.roles = load_backbone(f"local-dir:{model}"), Path(out), roles
        self.backbone.model.double()
        whole = resolve_dataset("world:colors")
        train, val, test = (tuple(e for e in part if e.label < 5) for part in (whole.train, whole.val, whole.test))
        data = replace(whole, classes=whole.classes[:5], train=train, val=val, test=test[::3])
        self.data = data.few_shot(2, 1)

    def train(self, name: str, folder: str, **more: object) -> dict[str, Tensor]:
        """Weights, and logits on test images."""
        settings = {**recipe_of(name), **SETTINGS, "roles": self.roles, "first_layer": 2, **more}
        settings["epochs"] = 2 if settings.get("average") or name == "dear" else 1
        settings["batch"] = min(5, TrainConfig.pick(settings).batch)
        kind, train = find_method(name), TrainConfig.pick(settings)
        source = ImageSource(self.backbone, workers=0)
        with pytest.MonkeyPatch.context() as patch:
            for module in (deep_prompts, tac):
                patch.setattr(module, "SIXTY", SIXTY[:2])
            model = adapt(kind, kind.Config.pick(settings), self.data, train, source, self.out / folder)
        found = predict_logits(model, self.data.test, source, "test")
        return {**model.state_dict(), "answers": found[inferences(model.components)[0]]}


def together(cases: Cases) -> None:
    """The program of each of the two processes."""
    found = {name: cases.train(name, name) for name in TRAINED}
    found["fixed"] = cases.train("coop", "fixed", augment="fixed:2")
    found["isolated"] = cases.train("dear", "isolated", **ISOLATED)
    found["scaled"] = scaled(cases)
    found["computed again"] = computed_again(cases)
    cut(cases)
    if processes.is_rank_zero():
        copytree(cases.out / "cut", cases.out / "for-one")
    processes.barrier()
    found["resumed"] = cases.train("dear", "cut")
    if processes.is_rank_zero():
        torch.save(found, cases.out / "found.pt")


def scaled(cases: Cases) -> dict[str, Tensor]:
    """Training with gradients that are scaled, and divided before the step, as in mixed precision."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "gradient_scaler", lambda *_: torch.amp.GradScaler("cpu", init_scale=1024.0))
        return cases.train("dear", "scaled")


def computed_again(cases: Cases) -> dict[str, Tensor]:
    """Many classes: layers of the text tower, with their dropout, are recomputed for gradients."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "_MANY", 1)
        return cases.train("clip-lora", "again")


def cut(cases: Cases) -> None:
    """Ends before the second epoch."""

    def epoch(self: FreshViews, number: int) -> object:
        if number:
            raise Cut
        return of(self, number)

    of = FreshViews.epoch
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FreshViews, "epoch", epoch)
        with pytest.raises(Cut):
            cases.train("dear", "cut")


@pytest.fixture(scope="module")
def two(model_folder: Path, role_file: Path, tmp_path_factory) -> Path:
    """The results of two processes."""
    out = tmp_path_factory.mktemp("two")
    done = subprocess.run(
        [*TORCHRUN, __file__, model_folder, role_file, out], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return out


@pytest.fixture(scope="module")
def found(two: Path) -> dict[str, dict[str, Tensor]]:
    return torch.load(two / "found.pt")


@pytest.fixture(scope="module")
def one(model_folder: Path, role_file: Path, tmp_path_factory) -> Iterator[Cases]:
    torch.set_default_dtype(torch.float64)
    yield Cases(str(model_folder), str(role_file), str(tmp_path_factory.mktemp("one")))
    torch.set_default_dtype(torch.float32)


def same(mine: dict[str, Tensor], theirs: dict[str, Tensor], atol: float = 1e-9) -> None:
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=atol, msg=lambda said, n=name: f"{n}: {said}")


@pytest.mark.parametrize("name", TRAINED)
def test_two_processes_train_the_same_as_one(name: str, found, one: Cases) -> None:
    same(one.train(name, name), found[name])


def test_two_processes_cache_the_same_views(found, one: Cases) -> None:
    same(one.train("coop", "fixed", augment="fixed:2"), found["fixed"])


def test_two_processes_cache_the_same_keys_and_values(found, one: Cases) -> None:
    same(one.train("dear", "isolated", **ISOLATED), found["isolated"])


def test_gradient_scaling_and_checkpointing_change_nothing(found, one: Cases) -> None:
    same(found["dear"], found["scaled"])
    same(found["clip-lora"], found["computed again"])


def test_a_run_continues_in_any_number_of_processes(found, two: Path, one: Cases) -> None:
    assert all(torch.equal(found["dear"][name], value) for name, value in found["resumed"].items()), "the same bits"
    copytree(two / "for-one", one.out / "for-one")
    same(one.train("dear", "for-one"), found["dear"])


def test_a_process_that_dies_ends_the_run_with_one_sentence(train_arguments, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = subprocess.run(
        [*TORCHRUN, __file__, "die", *train_arguments(out)], capture_output=True, text=True, timeout=900
    )
    assert done.returncode != 0
    (sentence,) = (line for line in done.stderr.splitlines() if line.startswith("dear:"))
    assert "--resume" in sentence
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 1
    assert main(train_arguments(out, "--resume")) == 0


def die_in_the_second_epoch(arguments: list[str]) -> int:
    """The second process is killed from outside; torchrun then ends all."""

    def deadly(self: Dear, *given: object) -> object:
        steps.append(given)
        if len(steps) == 5 and processes.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return loss(self, *given)

    loss, steps = Dear.loss, []
    Dear.loss = deadly
    return main(arguments)


def test_other_commands_are_refused_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "2", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert main(["zero-shot"]) == 2
    assert "without torchrun" in capsys.readouterr().err


@given(st.integers(1, 40), st.integers(1, 9))
def test_every_row_has_one_process_and_none_is_idle(rows: int, count: int) -> None:
    shares = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "world_size", lambda: count)
        for rank in range(count):
            patch.setattr(processes, "rank", lambda rank=rank: rank)
            shares.append((range(rows)[processes._local_slice(rows)], processes.local_rows(range(rows))))
    assert [row for own, _ in shares for row in own] == list(range(rows))
    assert all(at_hand == (own or range(1)) for own, at_hand in shares)
    assert max(len(own) for own, _ in shares) - min(len(own) for own, _ in shares) <= 1


def test_each_process_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, second = torch.device("cuda"), torch.device("cuda", 1)
    assert processes.local_device(second) == second  # one process: as asked
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name, value in {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    assert processes.local_device(cuda) == second
    assert processes.local_device(torch.device("cpu")) == torch.device("cpu")
    with pytest.raises(DearError, match="one GPU for all"):
        processes.local_device(second)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(DearError, match="--nproc-per-node 2"):
        processes.local_device(cuda)


if __name__ == "__main__":
    loading.WORKERS, tasks.TEST = 0, 4
    if sys.argv[1] == "die":
        sys.exit(die_in_the_second_epoch(sys.argv[2:]))
    torch.set_default_dtype(torch.float64)
    with processes.process_group(torch.device("cpu")):
        together(Cases(*sys.argv[1:]))
