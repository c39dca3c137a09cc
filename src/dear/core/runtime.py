"""Device, precision and seeds of computations."""

import random
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from dear.core.errors import DearError


def pick_device(name: str = "auto") -> torch.device:
    """The device by name; "auto" is CUDA if available, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise DearError(f"There is no device {name!r}: use cpu, cuda or cuda:N.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise DearError("CUDA is not available here: use --device cpu.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DearError(f"There is no device {name!r}: the last one is cuda:{torch.cuda.device_count() - 1}.")
    return device


def pick_precision(name: str, device: torch.device) -> torch.dtype:
    """The dtype by name; "auto" is bf16 (or fp16) on CUDA, and fp32 on the CPU, where AMP gains nothing."""
    if name == "auto":
        if device.type != "cuda":
            return torch.float32
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    if name not in dtypes:
        raise DearError(f"There is no precision {name!r}: use auto, {', '.join(dtypes)}.")
    dtype = dtypes[name]
    if dtype is not torch.float32 and device.type != "cuda":
        raise DearError(f"--precision {name} needs CUDA: use fp32 on the CPU.")
    return dtype


def autocast(device: torch.device, dtype: torch.dtype) -> AbstractContextManager:
    return nullcontext() if dtype is torch.float32 else torch.autocast(device.type, dtype)


def gradient_scaler(device: torch.device, dtype: torch.dtype) -> torch.amp.GradScaler:
    """Scales gradients for fp16, whose range is small; does nothing for other dtypes."""
    return torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
