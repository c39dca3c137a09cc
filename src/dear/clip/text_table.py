"""A text table: class names and their vectors, in place of a text tower (`--text-features FILE`)."""

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn
from zipfile import BadZipFile

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from torch import Tensor
from torch.nn import functional as F

from dear.core.errors import DearError, first_line
from dear.core.files import parse_json, read_bytes, read_json
from dear.core.schema import check_shape, damaged
from dear.core.tensors import read_tensors, require_finite, save_tensors

FORMS = (
    'a JSON {"class name": [numbers], ...}, an NPZ or safetensors file with one vector per class name, or NAME.npy '
    "[classes, dim] beside NAME.json with the names in order"
)
_ROWS, _NAMES = "features", "names"
_COPY_AGAIN = "copy or train the run again"


class TextTable:
    """Class features of a text tower that is not at hand. It knows names, no other words."""

    tier = "table"
    layers = 0

    def __init__(self, names: Sequence[str], features: Tensor, where: str) -> None:
        """features [names, dim], normalised; `where`: the file, for sentences."""
        self.names, self.features, self.where = tuple(names), features, where
        self.width = self.features.shape[1]
        self._rows = {_name_key(name): row for row, name in reversed(list(enumerate(self.names)))}

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the names and the normalised vectors, whatever file they come from."""
        digest = hashlib.sha256(json.dumps(self.names).encode())
        digest.update(self.features.cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def encode(self, names: Sequence[str]) -> Tensor:
        """Class names -> their vectors, normalised, [names, dim]. Capitals and underscores do not matter."""
        if tuple(names) == self.names:  # some datasets have a name twice
            return self.features
        missing = [name for name in names if _name_key(name) not in self._rows]
        if missing:
            raise DearError(
                f"The text table {self.where} has no vector for {missing[0]!r}"
                + (f" and {len(missing) - 1} other classes" if len(missing) > 1 else "")
                + ": add it, or rename the classes with --class-names."
            )
        return self.features[[self._rows[_name_key(name)] for name in names]]

    def to(self, device: Any) -> "TextTable":
        return TextTable(self.names, self.features.to(device), self.where)

    def save(self, path: Path) -> None:
        save_tensors(path, {_ROWS: self.features}, {_NAMES: json.dumps(self.names)})

    @classmethod
    def of_adapter(cls, path: Path) -> "TextTable":
        """A table that `save` wrote; an adapter made by others may hold anything."""
        tensors, notes = read_tensors(path, _COPY_AGAIN)
        require_finite(tensors, str(path), _COPY_AGAIN)
        with damaged(str(path), _COPY_AGAIN):
            names = check_shape(parse_json(notes[_NAMES]), list[str], str(path), _COPY_AGAIN)
            rows = tensors[_ROWS]
            if rows.ndim != 2 or len(rows) != len(names) or not rows.is_floating_point():
                raise ValueError(f"it has {len(names)} names, and rows of the shape {list(rows.shape)}")
            return cls(names, rows, str(path))

    @classmethod
    def read(cls, file: str | Path) -> "TextTable":
        """A file in one of the FORMS."""
        path = Path(file)
        try:
            names, rows = _READERS[path.suffix.lower()](path)
            features = np.asarray(rows, dtype=np.float32)
        except KeyError:
            _refuse(path, f"it ends in {path.suffix or 'nothing'}")
        except (ValueError, TypeError, BadZipFile, EOFError, SafetensorError) as error:
            _refuse(path, first_line(error))
        if features.ndim != 2 or not features.size:
            _refuse(path, "the vectors do not all have one size")
        if len(names) != len(features):
            _refuse(path, f"there are {len(names)} names and {len(features)} vectors")
        if not np.isfinite(features).all() or not features.any(1).all():
            _refuse(path, "some vector is zero or not finite")
        return cls(names, F.normalize(torch.from_numpy(features), dim=-1), str(file))


def _name_key(name: str) -> str:
    return " ".join(name.replace("_", " ").casefold().split())


def _refuse(path: Path, reason: str) -> NoReturn:
    raise DearError(f"{path} is no text table ({reason}): give {FORMS}.")


def _columns(table: Mapping[str, Any]) -> tuple[list[str], list[Any]]:
    return list(table), [np.asarray(row, dtype=np.float32) for row in table.values()]


def _read_json(path: Path) -> tuple[list[str], list[Any]]:
    value = read_json(path)
    if not isinstance(value, dict):
        raise TypeError("it is no table of names")
    return _columns(value)


def _read_npz(path: Path) -> tuple[list[str], list[Any]]:
    with np.load(io.BytesIO(read_bytes(path)), allow_pickle=False) as file:
        return _columns(dict(file))


def _read_npy(path: Path) -> tuple[list[str], Any]:
    names = read_json(path.with_suffix(".json"))
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{path.with_suffix('.json').name} is no list of names")
    return names, np.load(io.BytesIO(read_bytes(path)), allow_pickle=False)


_READERS: dict[str, Callable[[Path], tuple[list[str], Any]]] = {
    ".json": _read_json, ".npz": _read_npz, ".npy": _read_npy,
    ".safetensors": lambda path: _columns(load_safetensors(read_bytes(path))),
}  # fmt: skip
