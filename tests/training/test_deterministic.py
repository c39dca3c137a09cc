"""--deterministic: what it switches on, that two runs are equal to the last bit, and its sentence."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dear.cli import main
from dear.core.runtime import use_deterministic_algorithms
from dear.methods.coop import CoOp
from dear.training.run_folder import ADAPTER_WEIGHTS, RunFolder
from dear.trials import train


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Afterwards all is as it was: it is switched on for a whole process."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    yield
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    torch.use_deterministic_algorithms(False)


def run(out: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch, *flags: str) -> int:
    monkeypatch.setattr(train, "simple_methods", list)
    fixed = "train --method coop --data world:colors --shots 1 --epochs 1 --device cpu --out"
    return main([*fixed.split(), str(out), "--model", f"local-dir:{model_folder}", *flags])


def test_it_switches_on_what_it_promises(monkeypatch) -> None:
    use_deterministic_algorithms()
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled(), "an operation without such a form is an error"
    assert not torch.backends.cudnn.benchmark, "cuDNN may not choose its algorithms by their time"
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8", "cuBLAS needs it for equal bits"
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    use_deterministic_algorithms()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8", "the other value that cuBLAS takes is left"


def test_two_runs_end_in_the_same_bits(tmp_path: Path, model_folder: Path, monkeypatch) -> None:
    for name in ("one", "two"):
        assert run(tmp_path / name, model_folder, monkeypatch, "--deterministic") == 0
        assert torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(False)
    assert RunFolder(tmp_path / "one").settings()["deterministic"] is True
    one, two = ((tmp_path / name / ADAPTER_WEIGHTS).read_bytes() for name in ("one", "two"))
    assert one == two


def test_an_operation_without_such_a_form_is_one_sentence(tmp_path: Path, model_folder: Path, monkeypatch, capsys):
    loss = CoOp.loss

    def with_put(self, x, labels):
        computed = loss(self, x, labels)
        torch.zeros(3).put_(torch.tensor([1]), torch.ones(1))  # refused on the CPU, too
        return computed

    monkeypatch.setattr(CoOp, "loss", with_put)
    assert run(tmp_path / "run", model_folder, monkeypatch, "--deterministic") == 2
    said = capsys.readouterr().err
    assert "dear: An operation has no deterministic form (put_ does not have" in said
    assert said.rstrip().endswith("leave out --deterministic.")
    assert "Traceback" not in said
    assert not (tmp_path / "run" / ADAPTER_WEIGHTS).exists()
