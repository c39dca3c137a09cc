"""Safetensors files with a checksum over names, values and notes; a file whose checksum differs is refused."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dear.core.errors import DearError, reason_of
from dear.core.files import open_regular, write_bytes

_CHECKSUM = "sha256"
LOWER_RATE = "train again into another folder, with a lower --lr"


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor], notes: Mapping[str, str] | None = None) -> None:
    from safetensors.torch import save

    # Copies: safetensors refuses tensors that share memory.
    copies = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()
    }
    notes = dict(notes or {})
    write_bytes(path, save(copies, {**notes, _CHECKSUM: _checksum(copies, notes)}))


@contextmanager
def open_tensors(path: str | Path, advice: str) -> Iterator[Any]:
    """An open safetensors file, of which only the header was read. `advice` says what to do about a damaged one.

    Safetensors compares the declared sizes with the length of the file: a longer or shorter one is refused here.
    """
    from safetensors import safe_open

    try:
        open_regular(path).close()
        with safe_open(path, framework="pt") as file:
            yield file
    except (DearError, MemoryError):
        raise
    except FileNotFoundError:
        raise DearError(f"There is no file {path}: {advice}.") from None
    except Exception as error:  # a damaged file may raise anything
        raise DearError(f"{path} is damaged ({reason_of(error)}): {advice}.") from error


def declared_shapes(file: Any) -> dict[str, torch.Size]:
    """Names and shapes in the header of an open safetensors file."""
    return {name: torch.Size(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - not a dict


def all_tensors(file: Any) -> dict[str, Tensor]:
    return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict


def read_tensors(path: str | Path, advice: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and notes of a file that `save_tensors` wrote; any other is refused."""
    with open_tensors(path, advice) as file:
        notes = dict(file.metadata() or {})
        if _CHECKSUM not in notes:
            raise DearError(f"{path} has no checksum, so dear did not write it: {advice}.")
        tensors = all_tensors(file)
    if notes.pop(_CHECKSUM) != _checksum(tensors, notes):
        raise DearError(f"{path} is damaged or was changed, for its checksum differs: {advice}.")
    return tensors, notes


def load_state(module: nn.Module, tensors: Mapping[str, Tensor], where: str, advice: str) -> None:
    """Loads tensors into a module; refuses other names or shapes, and numbers that are not finite."""
    require_fit(module, {name: value.shape for name, value in tensors.items()}, where, advice)
    require_finite(tensors, where, advice)
    module.load_state_dict(dict(tensors))


def require_fit(module: nn.Module, shapes: Mapping[str, torch.Size], where: str, advice: str) -> None:
    """Refuses other names or shapes than those of the module's state."""
    expected = {name: value.shape for name, value in module.state_dict().items()}
    for name in sorted(expected.keys() | shapes.keys()):
        if name not in shapes or name not in expected:
            which = "is missing" if name in expected else "does not belong to it"
            raise DearError(f"{where} does not fit the model ({name} {which}): {advice}.")
        if shapes[name] != expected[name]:
            both = f"{tuple(shapes[name])}, not {tuple(expected[name])}"
            raise DearError(f"{where} does not fit the model ({name} has the shape {both}): {advice}.")


def require_finite(tensors: Mapping[str, Tensor], where: str, advice: str) -> None:
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise DearError(f"{where} holds numbers that are not finite (in {name}): {advice}.")


def _checksum(tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(sorted(notes.items())).encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
