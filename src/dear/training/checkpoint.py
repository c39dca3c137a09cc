"""Checkpoints without pickle: weights, optimizer state, averages and the epoch in one safetensors file."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from dear.errors import DearError
from dear.files import atomic_path


def save_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    sums: Mapping[str, Tensor],
    epoch: int,
) -> None:
    """State at the end of `epoch`. An optimizer's tensors are stored as `optimizer.INDEX.NAME`."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"average.{name}": value for name, value in sums.items()}
    for index, state in optimizer.state_dict()["state"].items():
        kept = {name: value for name, value in state.items() if value is not None}
        tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in kept.items()}
    metadata = {"epoch": str(epoch), "scaler": json.dumps(scaler.state_dict())}
    with atomic_path(path) as temporary:
        save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, temporary, metadata)


def load_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    sums: Mapping[str, Tensor],
) -> int:
    """Restores everything and returns the last finished epoch."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError) as error:
        raise DearError(f"The checkpoint {path} cannot be read ({error}): train anew into another folder.") from error
    model.load_state_dict({n.removeprefix("model."): v for n, v in tensors.items() if n.startswith("model.")})
    for name, value in sums.items():
        value.copy_(tensors[f"average.{name}"])
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".")
            state.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    scaler.load_state_dict(json.loads(metadata["scaler"]))
    return int(metadata["epoch"])
