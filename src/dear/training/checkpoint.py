"""Checkpoints without pickle: weights, optimizer state, averages and the epoch in one file with a checksum."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from dear.core.errors import DearError
from dear.core.files import parse_json
from dear.core.schema import damaged
from dear.core.tensors import load_state, read_tensors, require_finite, save_tensors

_ADVICE = "train again into another folder"


def job_of(*parts: object) -> str:
    """A hash of a run's settings: a checkpoint is refused by any other run."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def save_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    sums: Mapping[str, Tensor],
    epoch: int,
    job: str,
) -> None:
    """State at the end of `epoch`. An optimizer's tensors are stored as `optimizer.INDEX.NAME`."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"average.{name}": value for name, value in sums.items()}
    for index, state in optimizer.state_dict()["state"].items():
        values = {name: value for name, value in state.items() if value is not None}
        tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in values.items()}
    save_tensors(path, tensors, {"epoch": str(epoch), "scaler": json.dumps(scaler.state_dict()), "job": job})


def load_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    sums: Mapping[str, Tensor],
    epochs: int,
    job: str,
) -> int:
    """Restores everything and returns the last finished epoch; or raises an error and restores nothing."""
    where = f"The checkpoint {path}"
    with damaged(where, _ADVICE):
        tensors, notes = read_tensors(path, _ADVICE)
        if notes["job"] != job:
            raise DearError(f"{where} is of a run with other settings: {_ADVICE}.")
        epoch, scaler_state = int(notes["epoch"]), parse_json(notes["scaler"])
        if not 1 <= epoch <= epochs:
            raise ValueError(f"epoch {epoch} of {epochs}")
        require_finite(tensors, where, _ADVICE)
        averages = _below("average.", tensors)
        if {n: v.shape for n, v in averages.items()} != {n: v.shape for n, v in sums.items()}:
            raise ValueError("its averages are of other weights")
        state = _optimizer_state(_below("optimizer.", tensors), optimizer)
        load_state(model, _below("model.", tensors), where, _ADVICE)
        if scaler_state:  # empty, if it was not enabled
            scaler.load_state_dict(scaler_state)
    for name, value in sums.items():
        value.copy_(averages[name])
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return epoch


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _optimizer_state(tensors: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> dict[int, dict[str, Tensor]]:
    """The state by parameter; every tensor must be a scalar or have the shape of its parameter."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        index, key = name.split(".")
        if value.shape not in (torch.Size([]), parameters[int(index)].shape):
            raise ValueError(f"the optimizer's {name} is of another size")
        state.setdefault(int(index), {})[key] = value
    if len({frozenset(entry) for entry in state.values()}) > 1:
        raise ValueError("a part of the optimizer's state is missing")
    return state
