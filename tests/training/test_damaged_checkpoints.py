"""Checkpoints that are damaged or impossible are refused, and change nothing."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dear.core.errors import DearError
from dear.core.tensors import read_tensors, save_tensors
from dear.training.checkpoint import Checkpoint
from dear.training.run_folder import CHECKPOINT


class State:
    """A small model with an optimizer that has made a step, and its checkpoint."""

    def __init__(self, path: Path) -> None:
        torch.manual_seed(0)
        self.path, self.model = path, nn.Linear(3, 2)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.scaler = torch.amp.GradScaler("cpu", enabled=False)
        self.model(torch.ones(1, 3)).sum().backward()
        self.optimizer.step()
        self.sums = {name: value.detach().clone() for name, value in self.model.named_parameters()}

        self.checkpoint = Checkpoint(path, self.model, self.optimizer, self.scaler, self.sums, "job")

    def save(self) -> None:
        self.checkpoint.save(2)

    def load(self) -> int:
        return self.checkpoint.load(5)


def test_every_flipped_byte_of_a_checkpoint_is_noticed(tmp_path) -> None:
    state = State(tmp_path / CHECKPOINT)
    state.save()
    assert state.load() == 2
    whole = state.path.read_bytes()
    rng = random.Random(0)
    for place in [*range(16), *(rng.randrange(len(whole)) for _ in range(200))]:
        state.path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << rng.randrange(8))]) + whole[place + 1 :])
        with pytest.raises(DearError):
            state.load()
    for length in range(0, len(whole), 37):
        state.path.write_bytes(whole[:length])
        with pytest.raises(DearError):
            state.load()


def test_impossible_checkpoints_with_a_valid_checksum_are_refused(tmp_path) -> None:
    state = State(tmp_path / CHECKPOINT)
    state.save()
    tensors, notes = read_tensors(state.path, "")
    before = {name: value.clone() for name, value in state.model.state_dict().items()}
    weight = "model.weight"
    changes: list[tuple[dict[str, Any], dict[str, Any]]] = [
        *(({}, {"epoch": epoch}) for epoch in ("-5", "0", "6", "999", "x", "1e0", "")),
        *(({}, {"scaler": scaler}) for scaler in ("x", "[" * 10**5)),
        ({}, {"job": "another"}),
        *(({}, {key: None}) for key in notes),
        *(({name: None}, {}) for name in tensors),
        *(({name: torch.full_like(tensors[name], float("nan"))}, {}) for name in tensors),
        *(({name: torch.ones(7, 7)}, {}) for name in tensors),
        ({weight: torch.ones(1, 3, 2)}, {}),
        *(({name: torch.ones(2)}, {}) for name in ("model.more", "average.more", "optimizer.9.step", "optimizer.x")),
    ]
    for other, said in changes:
        kept = {name: value for name, value in {**tensors, **other}.items() if value is not None}
        save_tensors(state.path, kept, {key: value for key, value in {**notes, **said}.items() if value is not None})
        with pytest.raises(DearError, match=r"checkpoint"):
            state.load()
        assert all(torch.equal(value, before[name]) for name, value in state.model.state_dict().items())
