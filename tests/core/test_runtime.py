"""Device, precision and seeds."""

import random
from contextlib import suppress

import numpy as np
import pytest
import torch

from dear.core.errors import DearError
from dear.core.runtime import (
    autocast,
    caller_random_state,
    gradient_scaler,
    pick_device,
    pick_precision,
    rounding,
    seed_everything,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def with_cuda(monkeypatch: pytest.MonkeyPatch):
    def pretend(devices: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: devices > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)

    return pretend


def test_auto_takes_a_gpu_where_there_is_one(with_cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    with_cuda(0)
    assert pick_device() == CPU
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert pick_device() == pick_device("mps") == torch.device("mps")
    with_cuda(1)
    assert pick_device() == CUDA


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:1"])
def test_devices_that_are_there_are_taken(with_cuda, name: str) -> None:
    with_cuda(2)
    assert pick_device(name) == torch.device(name)


@pytest.mark.parametrize("name", ["gpu", "", "cuda:x", "meta", "xpu"])
def test_unknown_devices_are_refused(name: str) -> None:
    with pytest.raises(DearError, match="use cpu, cuda, cuda:N or mps"):
        pick_device(name)


def test_a_gpu_that_is_not_there_is_refused(with_cuda) -> None:
    with_cuda(0)
    with pytest.raises(DearError, match="use --device cpu"):
        pick_device("mps")
    with pytest.raises(DearError, match="use --device cpu"):
        pick_device("cuda")
    with_cuda(2)
    with pytest.raises(DearError, match="the last one is cuda:1"):
        pick_device("cuda:2")


@pytest.mark.parametrize(("supported", "expected"), [(True, torch.bfloat16), (False, torch.float16)])
def test_auto_precision(monkeypatch: pytest.MonkeyPatch, supported: bool, expected: torch.dtype) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0) if supported else (7, 5))
    assert pick_precision("auto", CUDA) is expected
    assert pick_precision("auto", CPU) is torch.float32


def test_half_precision_is_refused_on_the_cpu() -> None:
    assert pick_precision("fp32", CPU) is torch.float32
    assert pick_precision("fp16", CUDA) is torch.float16
    for name, device in (("bf16", torch.device("mps")), ("fp16", CPU)):
        with pytest.raises(DearError, match=f"--precision {name} needs CUDA"):
            pick_precision(name, device)
    with pytest.raises(DearError, match="no precision 'fp8'"):
        pick_precision("fp8", CUDA)


def test_autocast_changes_the_precision_of_a_product_only_if_asked() -> None:
    x = torch.ones(2, 2)
    with autocast(CPU, torch.float32):
        assert (x @ x).dtype is torch.float32
    with autocast(CPU, torch.bfloat16):
        assert (x @ x).dtype is torch.bfloat16


def flags() -> list[str | bool]:
    """The rounding of fp32 products on CUDA in this process: of matrices, and of convolutions."""
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        return [torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision]
    return [torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32]


@pytest.mark.parametrize("by_caller", [False, True])
def test_rounding_is_as_asked_inside_and_as_before_outside(by_caller: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = by_caller
    try:
        before = flags()
        with suppress(ValueError), rounding(torch.bfloat16):
            assert flags() in (["tf32"] * 2, [True] * 2)
            with rounding(torch.float32):  # as of a teacher; exact wins, whoever asks first
                assert flags() in (["ieee"] * 2, [False] * 2)
                with rounding(torch.float16):
                    assert flags() in (["ieee"] * 2, [False] * 2)
            assert flags() in (["tf32"] * 2, [True] * 2)
            raise ValueError
        assert flags() == before
        assert torch.backends.cuda.matmul.allow_tf32 == by_caller  # the caller's own way to read it still works
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def test_only_fp16_scales_gradients() -> None:
    enabled = [gradient_scaler(CPU, d).is_enabled() for d in (torch.float16, torch.bfloat16, torch.float32)]
    assert enabled == [True, False, False]


def _draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.random()), torch.rand(()).item()


@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_a_seed_fixes_all_three_generators(seed: int) -> None:
    def draw(seed: int) -> tuple[float, float, float]:
        seed_everything(seed)
        return _draw()

    first = draw(seed)
    assert draw(seed) == first
    assert all(a != b for a, b in zip(draw(seed + 1), first, strict=True))


def test_the_callers_random_numbers_go_on_as_if_nothing_had_been_drawn() -> None:
    seed_everything(7)
    expected = [_draw(), _draw()]
    seed_everything(7)
    assert _draw() == expected[0]
    with suppress(ValueError), caller_random_state():  # after an error too
        seed_everything(8)
        _draw()
        raise ValueError
    assert _draw() == expected[1]


@pytest.mark.parametrize("started", [True, False])
def test_the_callers_random_numbers_on_cuda_are_restored(monkeypatch: pytest.MonkeyPatch, started: bool) -> None:
    """CUDA that the caller has not started holds no state yet, only the seed of torch.manual_seed."""
    torch.manual_seed(7)
    states, restored = ["state of cuda:0"], []
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: states)
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", restored.append)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", restored.append)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: started)
    with caller_random_state():
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        torch.default_generator.manual_seed(8)
    assert restored == [states if started else 7]
