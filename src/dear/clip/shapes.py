"""Checks by shapes whether a checkpoint file fits a model, before anything is built or loaded."""

import warnings
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from dear.clip.support import usable_models
from dear.core.errors import DearError, first_line, library_errors
from dear.core.files import open_regular

Shapes = dict[str, tuple[int, ...]]
_POSITIONS = {"visual.positional_embedding": 0, "visual.trunk.pos_embed": 1}  # the axis of places
_FAMILIES = {
    "base_model.model.": "a LoRA of the peft package: merge it into its model first",
    "visual.trunk.": "a model with an image tower of timm (SigLIP, PE-Core, EVA, MobileCLIP, ConvNeXt, ViTamin)",
    "text_decoder.": "a CoCa",
    "visual.layer1.": "a ResNet",
    "text.transformer.": "a model with a text tower of its own (custom_text)",
}


def require_shapes(name: str, file: str) -> None:
    """Refuses weights of another architecture, and names the model they belong to."""
    actual = read_shapes(file)
    if any(key.startswith("vision_model.") for key in actual):
        raise DearError(
            f"{file} is in the format of transformers: put it with its config.json into a folder, as "
            "model.safetensors, and use --model transformers:FOLDER."
        )
    config = usable_models()[name]
    if config["text_cfg"].get("hf_model_name"):
        return  # its shapes are known only with the text tower's own config, from the hub: OpenCLIP compares them
    expected = model_shapes(config)
    if actual == expected:
        return
    if names := matching_models(actual):
        twins = " (shapes alone cannot tell which: look where the file comes from)" if len(names) > 1 else ""
        raise DearError(f"{file} does not fit {name}: its shapes are those of {' or '.join(names)}{twins}.")
    if _without_positions(actual) == _without_positions(expected):
        return  # trained at another image size: OpenCLIP interpolates the position embeddings
    family = next((what for key, what in _FAMILIES.items() if any(k.startswith(key) for k in actual)), None)
    hint = (
        f"; by its names it is {family}" if family and not any(k.startswith(tuple(_FAMILIES)) for k in expected) else ""
    )
    raise DearError(
        f"{file} does not fit {name}, nor any other OpenCLIP name that dear knows: "
        f"{_first_difference(actual, expected)}{hint}."
    )


def matching_models(actual: Shapes) -> list[str]:
    """The names of the plain models with exactly these shapes."""
    try:
        dim, widths = actual["text_projection"][1], (actual["visual.conv1.weight"][0], actual["text_projection"][0])
    except (KeyError, IndexError):
        return []
    return [
        name
        for name, config in usable_models().items()
        # Building is slow: only models of the same widths are built.
        if not _is_composed(config)
        and (config["embed_dim"], _widths(config)) == (dim, widths)
        and model_shapes(config) == actual
    ]


def _widths(config: dict[str, Any]) -> tuple[int, int]:
    return config["vision_cfg"].get("width", 768), config["text_cfg"].get("width", 512)


def model_shapes(config: dict[str, Any]) -> Shapes:
    """The shapes of an OpenCLIP model, built on the meta device, without memory."""
    import open_clip

    kind: Any = open_clip.CLIP
    if _is_composed(config):
        kind = open_clip.CoCa if "multimodal_cfg" in config else open_clip.CustomTextCLIP
    arguments = {key: value for key, value in deepcopy(config).items() if key != "custom_text"}
    with torch.device("meta"):
        return _shapes(kind(**arguments).state_dict())


def _is_composed(config: dict[str, Any]) -> bool:
    """Whether OpenCLIP builds the model of two towers with names of their own."""
    return bool(config.get("custom_text") or config["text_cfg"].get("hf_model_name"))


def read_shapes(file: str) -> Shapes:
    """The shapes in a checkpoint file; no code in it is run."""
    if file.endswith(".safetensors"):
        with library_errors(f"{file} could not be loaded", SafetensorError, OSError):
            open_regular(file).close()
            with safe_open(file, "pt") as tensors:
                return {key: tuple(tensors.get_slice(key).get_shape()) for key in tensors.keys()}  # noqa: SIM118
    return _shapes(_read_pickle(file, "meta"))


def read_tensors_of(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint file; no code in it is run."""
    if path.suffix != ".safetensors":
        return _read_pickle(str(path), "cpu")
    with library_errors(f"{path} cannot be read", SafetensorError, OSError):
        return load_file(path)


def _read_pickle(file: str, device: str) -> dict[str, Tensor]:
    """The state_dict of a file of torch, which may hold tensors only."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of files that are then refused
            open_regular(file).close()
            checkpoint = torch.load(file, map_location=device, weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # of the unpickler, which meets any bytes
        if "TorchScript" in str(error):
            raise DearError(
                f"{file} is a TorchScript program, the format in which OpenAI publishes its models, and is not run: "
                "use --pretrained openai."
            ) from error
        raise DearError(
            f"{file} could not be loaded as a checkpoint ({first_line(error)}): give a file of PyTorch or safetensors."
        ) from error
    weights = checkpoint.get("state_dict", checkpoint) if isinstance(checkpoint, dict) else None
    if not weights or not all(isinstance(value, torch.Tensor) for value in weights.values()):
        raise DearError(f"{file} could not be loaded: it contains no state_dict of tensors.")
    return {key.removeprefix("module."): value for key, value in weights.items()}


def _shapes(weights: dict[str, Any]) -> Shapes:
    # Scale and bias of the logits are one number each, which some files store as a vector.
    return {key: () if key in ("logit_scale", "logit_bias") else tuple(value.shape) for key, value in weights.items()}


def _without_positions(shapes: Shapes) -> Shapes:
    return {
        key: tuple(size for axis, size in enumerate(shape) if axis != _POSITIONS.get(key))
        for key, shape in shapes.items()
    }


def _first_difference(actual: Shapes, expected: Shapes) -> str:
    for key, shape in expected.items():
        if key not in actual:
            return f"it has no {key}"
        if actual[key] != shape:
            return f"its {key} has the shape {list(actual[key])} and not {list(shape)}"
    return f"it also has {sorted(set(actual) - set(expected))[0]}"
