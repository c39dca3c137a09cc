"""An adapter on disk: a folder with adapter_model.safetensors and adapter_config.json. It loads, or says why not."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TypedDict

import torch
from msgspec import Meta
from safetensors.torch import load, save
from torch import Tensor

from dear.clip import Backbone, load_backbone
from dear.core.errors import DearError
from dear.core.files import read_bytes, read_json, write_bytes, write_json
from dear.core.schema import Count, Name, check_shape, damaged
from dear.core.tensors import load_state, require_finite
from dear.core.version import __version__
from dear.data.prompts import check_class_names, check_name, check_template
from dear.methods.base import Method
from dear.methods.registry import METHODS, find_method

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
_FORMAT = 2
_HASH = "config_sha256"
_LARGEST = 2**34  # bytes of weights
_AGAIN = "copy or train it again"


@dataclass(frozen=True)
class Adapter:
    """A model ready to answer, and the classes it answers with."""

    model: Method
    classes: tuple[str, ...]
    template: str


def save_adapter(folder: Path, method: str, model: Method, template: str) -> None:
    """Of the classes it was last given. Weights first, config last: a folder with a config is complete."""
    require_finite(model.state_dict(), "The adapted model")
    weights = save({name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()})
    write_bytes(folder / WEIGHTS, weights)
    backbone = model.backbone
    config = {
        "format": _FORMAT,
        "method": method,
        "backbone": backbone.identity.to_json(),
        "classes": list(model.classes.names),
        "template": template,
        "normalisation": {"mean": backbone.mean, "std": backbone.std, "size": backbone.image.image_size},
        "settings": model.config.to_json(),
        "facts": model.extra_state(),
        "weights_sha256": _sha256(weights),
        "versions": {"dear": __version__, "torch": torch.__version__, "open_clip": version("open_clip_torch")},
    }
    write_config(folder, config)


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """With its hash, so that a change is noticed."""
    rest = {key: value for key, value in config.items() if key != _HASH}
    write_json(folder / CONFIG, {**rest, _HASH: _config_hash(rest)})


def read_config(folder: Path) -> dict[str, Any]:
    """The config of an adapter that is whole and as it was written; refuses others."""
    return _read(folder)[0]


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
    config, weights = _read(folder)
    identity = config["backbone"]
    backbone = backbone or load_backbone(identity["model"], identity["pretrained"], device=device)
    backbone.identity.require_same(identity, f"The adapter in {folder}")
    kind = find_method(config["method"])
    with damaged(str(folder / CONFIG), _AGAIN):
        model = kind.restore(backbone, kind.Config(**config["settings"]), config["facts"])
    load_state(model, weights, str(folder / WEIGHTS))
    # The run's own names may be double: ImageNet has two such pairs.
    classes = tuple(map(check_name, config["classes"])) if classes is None else check_class_names(classes)
    template = check_template(config["template"] if template is None else template)
    model.set_classes(classes, template)
    return Adapter(model.eval().requires_grad_(False), classes, template)


class _Backbone(TypedDict):
    model: Name
    pretrained: str | None
    activation: str
    weights: str


class _Facts(TypedDict, total=False):
    classes: list[str]
    shots: Count


class _AdapterFile(TypedDict):
    method: str
    backbone: _Backbone
    classes: Annotated[list[str], Meta(min_length=1)]
    template: str
    settings: dict[str, Any]
    facts: _Facts
    weights_sha256: str
    config_sha256: str


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config and weights; refuses what is not as it was written."""
    if not (folder / CONFIG).is_file():
        raise DearError(f"{folder} is not an adapter: it has no {CONFIG}. `dear train` makes one.")
    config = read_json(folder / CONFIG)
    if not isinstance(config, dict) or config.get("format") != _FORMAT or config.get("method") not in list(METHODS):
        raise DearError(f"{folder / CONFIG} is not an adapter config that dear {__version__} can read: {_AGAIN}.")
    rest = {key: value for key, value in config.items() if key != _HASH}
    if config.get(_HASH) != _config_hash(rest):
        raise DearError(f"{folder / CONFIG} was changed after training: give new classes at load time instead.")
    check_shape(config, _AdapterFile, str(folder / CONFIG), _AGAIN)
    return config, _read_weights(folder, config)


def _read_weights(folder: Path, config: dict[str, Any]) -> dict[str, Tensor]:
    path = folder / WEIGHTS
    if not path.is_file():
        raise DearError(f"{folder} has no {WEIGHTS}: the adapter is incomplete; {_AGAIN}.")
    data = read_bytes(path, _LARGEST)
    if _sha256(data) != config["weights_sha256"]:
        raise DearError(f"{path} is damaged or was changed: its checksum differs; {_AGAIN}.")
    try:
        weights = load(data)
    except Exception as error:  # whatever a damaged file makes of its reader
        raise DearError(f"{path} cannot be read ({error}): {_AGAIN}.") from error
    require_finite(weights, str(path))
    if config["facts"].get("shots", 0) > sum(value.numel() for value in weights.values()):
        raise DearError(f"{folder / CONFIG} claims more than {path} holds: {_AGAIN}.")
    return weights


def _config_hash(config: dict[str, Any]) -> str:
    return _sha256(json.dumps(config, sort_keys=True).encode())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
