"""Device, precision and seeds of computations."""

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import torch

from dear.core.errors import DearError

CacheKey = TypeVar("CacheKey")
CacheValue = TypeVar("CacheValue")
_WITHOUT_FP64 = ("mps",)
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def pick_device(name: str | torch.device = "auto") -> torch.device:
    """The device by name; "auto" is CUDA if available, else Apple's MPS, else the CPU."""
    if isinstance(name, torch.device):
        return name
    if name == "auto":
        available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
        return torch.device(next(kind for kind, here in available.items() if here))
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise DearError(f"There is no device {name!r}: use cpu, cuda, cuda:N or mps.")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise DearError("MPS, the GPU of a Mac, is not available here: use --device cpu.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise DearError("CUDA is not available here: use --device cpu.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DearError(f"There is no device {name!r}: the last one is cuda:{torch.cuda.device_count() - 1}.")
    return device


def pick_precision(name: str, device: torch.device) -> torch.dtype:
    """The dtype by name; "auto" is half on CUDA, and fp32 elsewhere, where half gains nothing.

    Half is bf16 where the card computes it, and fp16 where it would be emulated (T4, V100, RTX 20xx).
    """
    if name == "auto":
        if device.type != "cuda":
            return torch.float32
        has_bf16 = torch.version.hip or torch.cuda.get_device_capability(device)[0] >= 8
        return torch.bfloat16 if has_bf16 else torch.float16
    if name not in _DTYPES:
        raise DearError(f"There is no precision {name!r}: use auto, {', '.join(_DTYPES)}.")
    dtype = _DTYPES[name]
    if dtype is not torch.float32 and device.type != "cuda":
        raise DearError(f"--precision {name} needs CUDA: use fp32, or auto, here.")
    return dtype


def precision_name(dtype: torch.dtype) -> str:
    """The name of a dtype among the settings: fp32, bf16 or fp16."""
    return next((name for name, known in _DTYPES.items() if known is dtype), str(dtype))


_MATMUL, _CUDNN = torch.backends.cuda.matmul, torch.backends.cudnn
_ROUNDERS: tuple[Any, ...] = _MATMUL, getattr(_CUDNN, "conv", _CUDNN)
_FLAG, _TF32, _EXACT = "allow_tf32", True, False
if hasattr(_MATMUL, "fp32_precision"):  # since PyTorch 2.9, which refuses to read the older flags once these were set
    _FLAG, _TF32, _EXACT = "fp32_precision", "tf32", "ieee"  # type: ignore[assignment]
_rounding_guard = Lock()
_inside: list[bool] = []  # for each thread inside `rounding`: whether its products are exact
_outside: list[Any] = []  # the flags of the process, while any is inside


@contextmanager
def rounding(dtype: torch.dtype) -> Iterator[None]:
    """Inside, CUDA computes products of fp32 exactly if `dtype` is fp32, else with factors of 10 bits (TF32).

    Cached states are shared with runs on the CPU, so fp32 must be exact. PyTorch's own default is TF32 for convolutions
    alone. The flags are those of the whole process: exact wins among threads, and afterwards they are as before.
    """
    is_exact = dtype is torch.float32
    with _rounding_guard:
        if not _inside:
            _outside[:] = [getattr(part, _FLAG) for part in _ROUNDERS]
        _inside.append(is_exact)
        _set_rounding()
    try:
        yield
    finally:
        with _rounding_guard:
            _inside.remove(is_exact)
            _set_rounding()


def _set_rounding() -> None:
    flags = [_EXACT if any(_inside) else _TF32] * len(_ROUNDERS) if _inside else _outside
    for part, flag in zip(_ROUNDERS, flags, strict=True):
        setattr(part, _FLAG, flag)


def free_memory(device: torch.device | None = None) -> int:
    """Free bytes of a CUDA device, or of this machine and its container as far as Linux tells; elsewhere no limit."""
    if device is not None:
        return torch.cuda.mem_get_info(device)[0]
    free = [sys.maxsize]
    with suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]))
    with suppress(OSError, ValueError, KeyError):  # no container, or one without a limit; cached files give way
        group = Path("/sys/fs/cgroup")
        used = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())["anon"]
        free.append(int((group / "memory.max").read_text()) - int(used))
    return max(0, min(free))


def use_deterministic_algorithms() -> None:
    """Asks for the same bits in every run on one kind of GPU; an operation that cannot give them raises an error."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before the first product
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def to_device(x: Any, device: torch.device) -> Any:
    """A tensor, or a named tuple of tensors, on the device; the host does not wait until it is there."""
    if isinstance(x, tuple):
        return type(x)(*(to_device(part, device) for part in x))
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" and x.is_cpu else x.to(device)


def with_fp64(x: torch.Tensor) -> torch.Tensor:
    """The tensor on a device that has fp64: on the host, if its own has not."""
    return x.cpu() if x.device.type in _WITHOUT_FP64 else x


class HostRows:
    """Rows that a device computes batch by batch, collected on the host, which waits for them once in many batches."""

    _BATCHES = 64  # that stay on the device: few enough to take no room there

    def __init__(self) -> None:
        self._here: list[torch.Tensor] = []
        self._there: list[torch.Tensor] = []

    def add(self, rows: torch.Tensor) -> None:
        """rows [batch, ...]"""
        self._there.append(rows)
        if len(self._there) == self._BATCHES:
            self._fetch()

    def all(self) -> torch.Tensor:
        """All rows, in order, [rows, ...]; at least one batch must have been added."""
        self._fetch()
        return torch.cat(self._here)

    def _fetch(self) -> None:
        if self._there:
            self._here.append(torch.cat(self._there).cpu())
            self._there.clear()


def once(store: dict[CacheKey, CacheValue], key: CacheKey, compute: Callable[[], CacheValue]) -> CacheValue:
    """store[key], computed at the first call; not stored while a graph is traced, whose tensors have no values."""
    if key in store:
        return store[key]
    value = compute()
    if not torch.compiler.is_compiling():
        store[key] = value
    return value


def autocast(device: torch.device, dtype: torch.dtype) -> AbstractContextManager:
    return nullcontext() if dtype is torch.float32 else torch.autocast(device.type, dtype)


def gradient_scaler(device: torch.device, dtype: torch.dtype) -> torch.amp.GradScaler:
    """Scales gradients for fp16, whose range is small; does nothing for other dtypes."""
    return torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@contextmanager
def caller_random_state() -> Iterator[None]:
    """Restores the random numbers of Python, NumPy and PyTorch at the end: a library must not reseed its caller's."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
        elif torch.cuda.is_initialized():  # started inside: as the caller's torch.manual_seed would have left it
            torch.cuda.manual_seed_all(torch.initial_seed())
        if mps is not None:
            torch.mps.set_rng_state(mps)
