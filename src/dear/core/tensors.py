"""Safetensors files with a checksum over names, values and notes; a file whose checksum differs is refused."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from dear.core.errors import DearError
from dear.core.files import write_bytes

_CHECKSUM = "sha256"


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor], notes: Mapping[str, str] | None = None) -> None:
    from safetensors.torch import save

    # Copies: safetensors refuses tensors that share memory.
    copies = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()
    }
    notes = dict(notes or {})
    write_bytes(path, save(copies, {**notes, _CHECKSUM: _checksum(copies, notes)}))


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and notes of a file that `save_tensors` wrote; any other is refused.

    Safetensors compares the declared sizes with the length of the file before it allocates.
    """
    from safetensors import safe_open

    path = Path(path)
    if not path.is_file():
        raise DearError(f"There is no file {path}.")
    try:
        with safe_open(path, framework="pt") as file:
            notes = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except Exception as error:  # a damaged file may raise anything
        raise DearError(f"{path} is damaged ({error}).") from error
    if notes.pop(_CHECKSUM, None) != _checksum(tensors, notes):
        raise DearError(f"{path} is damaged or was changed: its checksum differs.")
    return tensors, notes


def load_state(module: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Loads tensors into a module; refuses other names or shapes, and numbers that are not finite."""
    expected = module.state_dict()
    if different := sorted(expected.keys() ^ tensors.keys()):
        raise DearError(f"{where} does not fit the model: {different[0]} is missing or unexpected.")
    for name, value in tensors.items():
        if value.shape != expected[name].shape:
            shapes = f"{tuple(value.shape)}, not {tuple(expected[name].shape)}"
            raise DearError(f"{where} does not fit the model: {name} has the shape {shapes}.")
    require_finite(tensors, where)
    module.load_state_dict(dict(tensors))


def require_finite(tensors: Mapping[str, Tensor], where: str) -> None:
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise DearError(f"{where} holds numbers that are not finite (in {name}).")


def _checksum(tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(sorted(notes.items())).encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
