"""Products of frozen layers on a CPU: the same numbers by either library, and bf16 that is never mixed with fp32."""

import json
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from open_clip.transformer import QuickGELU
from timm.layers import Mlp
from torch import nn
from torch.nn import functional as F

from dear import load
from dear.cli import main
from dear.clip import Backbone, exact_copy, load_backbone, products
from dear.core import processor, runtime
from dear.core.errors import DearError
from dear.core.processor import Processor

PYTHON = sys.executable


@pytest.fixture(autouse=True)
def fast(monkeypatch) -> None:
    """A processor on which everything is worth it, for weights of any size."""
    for module in (products, runtime):
        monkeypatch.setattr(module, "this_processor", lambda: Processor(2.0, 2.0))
    monkeypatch.setattr(products, "LARGE", 1)


def clip_mlp(activation: nn.Module) -> nn.Module:
    mlp = nn.Sequential()
    for name, part in {"c_fc": nn.Linear(16, 64), "gelu": activation, "c_proj": nn.Linear(64, 16)}.items():
        mlp.add_module(name, part)
    return mlp


MLPS: dict[str, Callable[[], nn.Module]] = {
    "quick": lambda: clip_mlp(QuickGELU()),
    "gelu": lambda: clip_mlp(nn.GELU()),
    "timm": lambda: Mlp(16, 64, act_layer=nn.GELU),
    "timm with a norm": lambda: Mlp(16, 64, norm_layer=nn.LayerNorm),
    "linear": lambda: nn.Linear(16, 16),
}


@pytest.mark.parametrize("name", MLPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("trained", [False, True])
def test_an_mlp_is_itself_forward_and_backward(name: str, dtype: torch.dtype, trained: bool) -> None:
    torch.manual_seed(0)
    mlp = MLPS[name]().eval().to(dtype).requires_grad_(trained)
    x, weights = torch.randn(2, 5, 16, dtype=dtype, requires_grad=True), torch.randn(2, 5, 16, dtype=dtype)
    wanted = [x, *(mlp.parameters() if trained else ())]
    by_hand = mlp(x)
    expected = [by_hand, *torch.autograd.grad((weights * by_hand).sum(), wanted)]
    ours = products.run_frozen(mlp, x)
    found = [ours, *torch.autograd.grad((weights * ours).sum(), wanted)]
    atol = 1e-5 if dtype is torch.float32 else 1e-12
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)
    with torch.no_grad():
        torch.testing.assert_close(products.run_frozen(mlp, x), by_hand, rtol=0, atol=atol)


def test_a_product_is_that_of_pytorch(monkeypatch) -> None:
    torch.manual_seed(0)
    for shape in ((3, 7, 48), (1, 48), (9, 48)):
        x, weight, bias = torch.randn(shape, requires_grad=True), torch.randn(96, 48), torch.randn(96)
        for part in (slice(None), slice(32, None)):
            ours, theirs = products.linear(x, weight[part], bias[part]), F.linear(x, weight[part], bias[part])
            assert "FrozenLinear" in type(ours.grad_fn).__name__, "else nothing is compared"
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
            gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (ours, theirs)]
            torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("quick_gelu", [False, True])
def test_bf16_is_close_and_copies_are_exact(quick_gelu: bool, tiny: Callable[..., Backbone]) -> None:
    exact, half = tiny(quick_gelu=quick_gelu), tiny(quick_gelu=quick_gelu)
    for tower in (half.image, half.text):
        tower.halve(torch.bfloat16)
    pixels, words = torch.randn(4, 3, 32, 32), ["a cat", "a photo of a dog"]
    for one, other in ((exact.image, half.image), (exact.text, half.text)):
        given = pixels if one is exact.image else words
        found, expected = other.encode(given), one.encode(given)
        assert found.dtype is torch.float32
        assert 0.999 < F.cosine_similarity(found, expected).min() < 1
    for mine, theirs in zip(exact_copy(half.image.blocks).parameters(), exact.image.blocks.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_bf16_and_fp32_are_not_mixed(finished_run: Path, model_folder: Path, tmp_path: Path, capsys) -> None:
    with pytest.raises(DearError, match="was made in fp32, which bf16 must not be mixed with: use --precision fp32"):
        load(finished_run, device="cpu", precision="bf16")
    name, made = f"local-dir:{model_folder}", str(tmp_path / "made")
    few = ("--data", "world:colors", "--shots", "1", "--device", "cpu", "--method", "prolip", "--epochs", "1")
    assert main(["train", "--model", name, *few, "--precision", "bf16", "--out", made]) == 0
    assert load(made, device="cpu").model.backbone.precision is torch.bfloat16
    with pytest.raises(DearError, match="was made in bf16, which fp32 must"):
        load(made, device="cpu", precision="fp32")
    assert main(["export", made, "--onnx", str(tmp_path / "onnx")]) == 2
    assert "an export is exact" in capsys.readouterr().err


def child(monkeypatch, folder: Path, *lines: str) -> None:
    """Puts a program in the place of the one that measures."""
    program = folder / "program"
    program.write_text("\n".join((f"#!{PYTHON}", "import os, signal", *lines)))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(processor.sys, "executable", str(program))
    processor.this_processor.cache_clear()


def test_a_measurement_that_dies_is_remembered(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    dies = ("print('onednn 1.5', flush=True)", "os.kill(os.getpid(), signal.SIGILL)", "print('bf16 9')")
    child(monkeypatch, tmp_path, *dies)
    assert processor.this_processor() == Processor(1.5, 0.0)
    child(monkeypatch, tmp_path, "print('onednn 7')")
    assert processor.this_processor() == Processor(1.5, 0.0), "measured once"
    (file,) = (tmp_path / "dear").glob("processor-*.json")
    for damaged in ("{", "[]", json.dumps({"onednn": "fast", "bf16": 1}), json.dumps({"onednn": 1})):
        file.write_text(damaged)
        child(monkeypatch, tmp_path, "print('onednn 7')")
        assert processor.this_processor() == Processor(7.0, 0.0), damaged
    processor.this_processor.cache_clear()


def test_without_an_answer_everything_is_as_usual(monkeypatch, tmp_path: Path, recwarn) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    child(monkeypatch, tmp_path, "print('onednn 1.5')")
    assert processor.this_processor() == Processor(1.5)
    assert "cannot be remembered" in str(recwarn.pop().message)
    monkeypatch.setattr(processor.sys, "executable", str(tmp_path / "nothing"))
    processor.this_processor.cache_clear()
    assert processor.this_processor() == Processor()
    assert not Processor().takes_onednn
    processor.this_processor.cache_clear()
    monkeypatch.setattr(runtime, "this_processor", Processor)
    with pytest.raises(DearError, match="bf16 does not work on this processor"):
        load_backbone(precision="bf16")
