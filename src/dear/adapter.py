"""An adapter on disk: a folder with adapter_model.safetensors and adapter_config.json. It loads, or says why not."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from dear.backbone import Backbone, load_backbone
from dear.errors import DearError
from dear.files import atomic_path, read_json, write_json
from dear.methods.base import Method
from dear.methods.registry import METHODS, find_method
from dear.version import __version__

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
_FORMAT = 2
_HASH = "config_sha256"


@dataclass(frozen=True)
class Adapter:
    """A model ready to answer, and the classes it answers with."""

    model: Method
    classes: tuple[str, ...]
    template: str


def save_adapter(folder: Path, method: str, model: Method, template: str) -> None:
    """Of the classes it was last given. Weights first, config last: a folder with a config is complete."""
    with atomic_path(folder / WEIGHTS) as temporary:
        save_file({name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}, temporary)
    backbone = model.backbone
    config = {
        "format": _FORMAT,
        "method": method,
        "backbone": backbone.identity.to_json(),
        "classes": list(model.texts.names),
        "template": template,
        "normalisation": {"mean": backbone.mean, "std": backbone.std, "size": backbone.image.image_size},
        "settings": model.config.to_json(),
        "facts": model.facts(),
        "weights_sha256": _sha256((folder / WEIGHTS).read_bytes()),
        "versions": {"dear": __version__, "torch": torch.__version__, "open_clip": version("open_clip_torch")},
    }
    write_config(folder, config)


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """With its hash, so that a change is noticed."""
    rest = {key: value for key, value in config.items() if key != _HASH}
    write_json(folder / CONFIG, {**rest, _HASH: _config_hash(rest)})


def read_config(folder: Path) -> dict[str, Any]:
    """The config of an adapter that is whole and as it was written; refuses others."""
    if not (folder / CONFIG).is_file():
        raise DearError(f"{folder} is not an adapter: it has no {CONFIG}. `dear train` makes one.")
    config = read_json(folder / CONFIG)
    _check(folder, config)
    return config


def load_adapter(
    folder: str | Path,
    classes: Sequence[str] | None = None,
    template: str | None = None,
    backbone: Backbone | None = None,
    device: str | torch.device = "cpu",
) -> Adapter:
    """Loads an adapter, by default on the backbone and with the classes it was trained on.

    Other class names are what novel classes are; another backbone is refused.
    """
    folder = Path(folder)
    config = read_config(folder)
    identity = config["backbone"]
    backbone = backbone or load_backbone(identity["model"], identity["pretrained"], device=device)
    backbone.identity.require_same(identity, f"The adapter in {folder}")
    kind = find_method(config["method"])
    model = kind(backbone, kind.Settings(**config["settings"]), config["facts"])
    model.load_state_dict(load_file(folder / WEIGHTS))
    if classes is not None and len(set(classes)) != len(classes):  # ImageNet's own names have two such pairs
        raise DearError("A class name is given twice: make the names differ.")
    classes = tuple(config["classes"] if classes is None else classes)
    template = template or config["template"]
    model.set_classes(classes, template)
    return Adapter(model.eval().requires_grad_(False), classes, template)


def _check(folder: Path, config: Any) -> None:
    """Refuses what is not whole or not as it was written."""
    if not isinstance(config, dict) or config.get("format") != _FORMAT or config.get("method") not in METHODS:
        raise DearError(f"{folder / CONFIG} is not an adapter config that dear {__version__} can read: train it again.")
    rest = {key: value for key, value in config.items() if key != _HASH}
    if config.get(_HASH) != _config_hash(rest):
        raise DearError(f"{folder / CONFIG} was changed after training: give new classes at load time instead.")
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise DearError(f"{folder} has no {WEIGHTS}: the adapter is incomplete; copy or train it again.")
    if _sha256(weights.read_bytes()) != config["weights_sha256"]:
        raise DearError(f"{weights} is damaged or was changed: its checksum differs; copy or train it again.")
    try:
        load_file(weights)
    except SafetensorError as error:
        raise DearError(f"{weights} cannot be read: {error}.") from error


def _config_hash(config: dict[str, Any]) -> str:
    return _sha256(json.dumps(config, sort_keys=True).encode())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
