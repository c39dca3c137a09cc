"""`dear doctor --gpu`, on a pretended card and on none."""

from pathlib import Path

import pytest
import torch

from dear.cli import main
from dear.core.errors import DearError
from dear.model import gpu_check
from dear.training.config import TrainConfig
from dear.training.run_folder import RunFolder
from dear.trials.train import _with_precision
from pretended_gpu import pretend_gpu


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "_TIMED_STEPS", 1)
    monkeypatch.setattr(gpu_check, "_CLASSES", 4)
    monkeypatch.setattr(gpu_check, "_IMAGES", 3)


def test_the_report_fits_a_screen_and_compares_with_the_cpu(quick, model_folder: Path) -> None:
    with pretend_gpu(capability=8):
        report = gpu_check.check_gpu(f"local-dir:{model_folder}")
    lines = report.splitlines()
    assert len(lines) < 24
    assert "pretended, capability 8.0, 24.0 of 24.0 GiB free" in lines[0]
    rows = [line.split() for line in lines[-9:]]
    assert [row[0] for row in rows] == ["fp32"] * 3 + ["fp16"] * 3 + ["bf16"] * 3
    assert [row[1] for row in rows] == list(gpu_check.CHECKED) * 3
    assert all(row[2] == row[3] for row in rows[:3]), "in fp32 both devices compute the same"


def test_a_wrong_result_is_reported(quick, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = gpu_check._train

    def wrong(name, backbone):
        run = train(name, backbone)
        return run if backbone.device.type == "cpu" else run._replace(losses=[2 * loss for loss in run.losses])

    monkeypatch.setattr(gpu_check, "_train", wrong)
    with (
        pretend_gpu(capability=7),
        pytest.raises(DearError, match=r"dear in fp32 differs.*maple in fp32 differs.*report this"),
    ):
        gpu_check.check_gpu(f"local-dir:{model_folder}")


def test_a_method_that_fails_does_not_hide_the_others_and_without_bf16_none_is_asked_for_it(
    quick, model_folder: Path, monkeypatch
) -> None:
    train = gpu_check._train

    def fails(name, backbone):
        if (name, backbone.precision) == ("maple", torch.float16):
            raise RuntimeError("Expected all tensors to be on the same device\nand more")
        return train(name, backbone)

    monkeypatch.setattr(gpu_check, "_train", fails)
    with pretend_gpu(capability=7), pytest.raises(DearError) as raised:
        gpu_check.check_gpu(f"local-dir:{model_folder}")
    sentence, _, report = str(raised.value).partition("Please report this:")
    assert sentence == "maple in fp16 ended with: Expected all tensors to be on the same device. "
    assert [line.split()[:2] for line in report.splitlines()[-2:]] == [["fp16", "dear"], ["fp16", "coop"]]
    assert "bf16" not in report


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys) -> None:
    assert main(["doctor", "--gpu"]) == 2
    assert "sees no GPU here" in capsys.readouterr().out


def test_a_run_goes_on_in_the_precision_it_began_with(tmp_path: Path) -> None:
    folder, cpu, cuda = RunFolder(tmp_path), torch.device("cpu"), torch.device("cuda")

    def taken(device: torch.device, resume: bool, precision: str = "auto") -> str:
        return _with_precision(TrainConfig(precision=precision), folder, resume, device).precision

    assert taken(cpu, False) == "fp32"
    with pretend_gpu(capability=7):
        assert taken(cuda, False) == "fp16"
    with pretend_gpu(capability=8):
        assert taken(cuda, False) == "bf16"
        folder.write_start({"precision": "fp32"}, {}, "")
        assert taken(cuda, True) == "fp32"
    folder.write_start({"precision": "bf16"}, {}, "")
    with pretend_gpu(capability=7):
        assert taken(cuda, True) == "bf16", "emulated, but the same"
    folder.write_start({"precision": "fp16"}, {}, "")
    with pytest.raises(DearError, match="fp16 needs CUDA"):
        taken(cpu, True)
