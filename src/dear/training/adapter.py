"""An adapter on disk: a folder with adapter_model.safetensors and adapter_config.json."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TypedDict

import torch
from msgspec import Meta
from safetensors.torch import save

from dear.clip import Backbone, load_backbone
from dear.clip.text_table import TextTable
from dear.core.errors import DearError
from dear.core.files import checksum_of, read_json, write_bytes, write_json
from dear.core.identity import BackboneIdentity
from dear.core.progress import report
from dear.core.schema import Count, Name, check_shape, damaged
from dear.core.tensors import (
    LOWER_RATE,
    all_tensors,
    declared_shapes,
    load_state,
    open_tensors,
    require_finite,
    require_fit,
)
from dear.core.version import __version__
from dear.core.words import backbone_line
from dear.data.prompts import check_class_names, check_name, check_template
from dear.methods.base import Method
from dear.methods.registry import METHODS, find_method
from dear.training.run_folder import ADAPTER_CONFIG as CONFIG
from dear.training.run_folder import ADAPTER_TEXT_TABLE as TEXT_TABLE
from dear.training.run_folder import ADAPTER_WEIGHTS as WEIGHTS
from dear.training.run_folder import CONFIG as RUN_CONFIG
from dear.training.run_folder import RunFolder

_FORMAT = 2
_HASH = "config_sha256"
_ADVICE = "copy or train it again"


@dataclass(frozen=True)
class Adapter:
    """A model ready to answer, the name of its method, and the classes it answers with."""

    model: Method
    method: str
    classes: tuple[str, ...]
    template: str


def save_adapter(folder: Path, method: str, model: Method, template: str) -> None:
    """Saves a model with the classes of its last `set_classes`.

    The config is written last: a folder that has one is complete.
    """
    require_finite(model.state_dict(), "The adapted model", LOWER_RATE)
    weights = save({name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()})
    write_bytes(folder / WEIGHTS, weights)
    backbone = model.backbone
    if isinstance(backbone.text, TextTable):
        backbone.text.save(folder / TEXT_TABLE)
    config = {
        "format": _FORMAT,
        "method": method,
        "backbone": backbone.identity.to_json(),
        "classes": list(model.classes.names),
        "components": list(model.components),
        "template": template,
        "normalisation": {"mean": backbone.mean, "std": backbone.std, "size": backbone.image.image_size},
        "settings": model.config.to_json(),
        "extra_state": model.extra_state(),
        "weights_sha256": _sha256(weights),
        "versions": {"dear": __version__, "torch": torch.__version__, "open_clip": version("open_clip_torch")},
    }
    write_config(folder, config)


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """Writes a config with its hash, so that a change is noticed."""
    rest = {key: value for key, value in config.items() if key != _HASH}
    write_json(folder / CONFIG, {**rest, _HASH: _config_hash(rest)})


def read_config(folder: Path) -> dict[str, Any]:
    """The config of an adapter that is complete and unchanged; refuses others."""
    config = read_config_alone(folder)
    with open_tensors(folder / WEIGHTS, _ADVICE) as file:  # its header, before anything else is read
        elements = sum(shape.numel() for shape in declared_shapes(file).values())
    if config["extra_state"].get("shots", 0) > elements:
        raise DearError(f"{folder / CONFIG} declares more than {folder / WEIGHTS} holds: {_ADVICE}.")
    if checksum_of(folder / WEIGHTS) != config["weights_sha256"]:
        raise DearError(f"{folder / WEIGHTS} is damaged or was changed: its checksum differs; {_ADVICE}.")
    return config


def load_adapter(
    folder: str | Path,
    classes: Sequence[str] | None = None,
    template: str | None = None,
    backbone: Backbone | None = None,
    device: str | torch.device = "cpu",
    precision: str = "auto",
) -> Adapter:
    """Loads an adapter, by default with the backbone and the classes it was trained on.

    `classes` are novel classes; a backbone with other weights is refused.
    """
    folder = Path(folder)
    config = read_config(folder)
    identity = config["backbone"]
    report(backbone_line(identity["model"], identity["pretrained"], f", adapted by {config['method']}"))
    backbone = backbone or load_backbone(identity["model"], identity["pretrained"], device=device, precision=precision)
    if identity.get("text_table"):
        backbone = backbone.with_text_table(TextTable.of_adapter(folder / TEXT_TABLE))
    backbone.identity.require_same(identity, f"The adapter in {folder}")
    kind = find_method(config["method"])
    with damaged(str(folder / CONFIG), _ADVICE):
        model = kind.restore(backbone, kind.Config(**config["settings"]), config["extra_state"])
        if tuple(config["components"]) != model.components:
            raise ValueError(f"its components are {', '.join(config['components'])}, not those of {config['method']}")
    with open_tensors(folder / WEIGHTS, _ADVICE) as file:
        require_fit(model, declared_shapes(file), str(folder / WEIGHTS), _ADVICE)
        load_state(model, all_tensors(file), str(folder / WEIGHTS), _ADVICE)
    # The run's own names may be double: ImageNet has two such pairs.
    classes = tuple(map(check_name, config["classes"])) if classes is None else check_class_names(classes)
    template = check_template(config["template"] if template is None else template)
    model.set_classes(classes, template)
    return Adapter(model.eval().requires_grad_(False), config["method"], classes, template)


class _ExtraState(TypedDict, total=False):
    """Fields whose sizes decide how much memory is taken; a method may store others."""

    classes: list[str]
    shots: Count


class _AdapterFile(TypedDict):
    method: str
    backbone: BackboneIdentity
    classes: Annotated[list[str], Meta(min_length=1)]
    components: Annotated[list[Name], Meta(min_length=1)]
    template: str
    settings: dict[str, Any]
    extra_state: _ExtraState
    weights_sha256: str
    config_sha256: str


def read_config_alone(folder: Path) -> dict[str, Any]:
    """The config without a look at the weights; refuses one that was changed after it was written."""
    if not (folder / CONFIG).is_file():
        if state := RunFolder(folder).state():
            raise DearError(f"{folder} is not finished: it {state}. The same `dear train` with --resume continues.")
        if (folder / RUN_CONFIG).is_file():
            raise DearError(f"{folder} is not finished: no epoch is done. The same `dear train` starts it again.")
        raise DearError(f"{folder} is not an adapter: it has no {CONFIG}. `dear fit` and `dear train` make one.")
    config = read_json(folder / CONFIG)
    if not isinstance(config, dict) or config.get("format") != _FORMAT:
        raise DearError(f"{folder / CONFIG} is not an adapter config that dear {__version__} can read: {_ADVICE}.")
    if config.get("method") not in list(METHODS):
        raise DearError(
            f"{folder / CONFIG} is by the method {config.get('method')!r}, which dear {__version__} does not know: "
            "install the package that brings it."
        )
    rest = {key: value for key, value in config.items() if key != _HASH}
    if config.get(_HASH) != _config_hash(rest):
        raise DearError(f"{folder / CONFIG} was changed after training: give new classes at load time instead.")
    check_shape(config, _AdapterFile, str(folder / CONFIG), _ADVICE)
    return config


def _config_hash(config: dict[str, Any]) -> str:
    return _sha256(json.dumps(config, sort_keys=True).encode())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
