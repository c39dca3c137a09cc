"""Checkpoints without pickle: weights, optimizer state, averages and the epoch in one file with a checksum."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from dear.core.errors import DearError
from dear.core.files import parse_json
from dear.core.schema import damaged
from dear.core.tensors import load_state, read_tensors, require_finite, save_tensors

_ELSEWHERE = "train again into another folder"


def job_of(*parts: object) -> str:
    """A hash of a run's settings: a checkpoint is refused by any other run."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Checkpoint:
    """The state of a training in one file. `job`: see `job_of`; `sums`: those of averaged weights."""

    path: Path
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    sums: Mapping[str, Tensor]
    job: str

    def save(self, epoch: int) -> None:
        """Stores the state at the end of `epoch`; an optimizer's tensors are named `optimizer.INDEX.NAME`."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"average.{name}": value for name, value in self.sums.items()}
        for index, state in self.optimizer.state_dict()["state"].items():
            values = {name: value for name, value in state.items() if value is not None}
            tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in values.items()}
        notes = {"epoch": str(epoch), "scaler": json.dumps(self.scaler.state_dict()), "job": self.job}
        save_tensors(self.path, tensors, notes)

    def load(self, epochs: int) -> int:
        """Restores everything and returns the last finished epoch (0: there is no file); or raises an error and
        restores nothing."""
        if not self.path.exists():
            return 0
        where, optimizer = f"The checkpoint {self.path}", self.optimizer
        with damaged(where, _ELSEWHERE):
            tensors, notes = read_tensors(self.path, _ELSEWHERE)
            if notes["job"] != self.job:
                raise DearError(f"{where} is of a run with other settings: {_ELSEWHERE}.")
            epoch, scaler_state = int(notes["epoch"]), parse_json(notes["scaler"])
            if not 1 <= epoch <= epochs:
                raise ValueError(f"epoch {epoch} of {epochs}")
            require_finite(tensors, where, _ELSEWHERE)
            averages = _below("average.", tensors)
            if {n: v.shape for n, v in averages.items()} != {n: v.shape for n, v in self.sums.items()}:
                raise ValueError("its averages are of other weights")
            state = _optimizer_state(_below("optimizer.", tensors), optimizer)
            load_state(self.model, _below("model.", tensors), where, _ELSEWHERE)
            if scaler_state:  # empty, if it was not enabled
                self.scaler.load_state_dict(scaler_state)
        for name, value in self.sums.items():
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
