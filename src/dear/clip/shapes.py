"""Checks by shapes whether a checkpoint file fits a model, before anything is built or loaded."""

import warnings
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from dear.clip.support import supported_models
from dear.core.errors import DearError, first_line

Shapes = dict[str, tuple[int, ...]]
_POSITIONS = "visual.positional_embedding"


def require_fit(name: str, file: str) -> None:
    """Refuses weights of another architecture, and names the model they belong to."""
    actual = read_shapes(file)
    if any(key.startswith("vision_model.") for key in actual):
        raise DearError(
            f"{file} is in the format of transformers: put it with its config.json into a folder, as "
            "model.safetensors, and use --model transformers:FOLDER."
        )
    expected = model_shapes(supported_models()[name]) if name in supported_models() else {}
    if actual == expected:
        return
    if names := matching_models(actual):
        twins = " (shapes alone cannot tell which: look where the file comes from)" if len(names) > 1 else ""
        raise DearError(f"{file} does not fit {name}: its shapes are those of {' or '.join(names)}{twins}.")
    if _without_positions(actual) == _without_positions(expected):
        return  # trained at another image size: OpenCLIP interpolates the position embeddings
    raise DearError(
        f"{file} does not fit {name}, nor any other OpenCLIP name that dear supports: "
        f"{_first_difference(actual, expected)}."
    )


def matching_models(actual: Shapes) -> list[str]:
    """The names of the supported models with exactly these shapes."""
    try:
        dim, widths = actual["text_projection"][1], (actual["visual.conv1.weight"][0], actual["text_projection"][0])
    except (KeyError, IndexError):
        return []
    return [
        name
        for name, config in supported_models().items()
        # Building is slow: only models of the same widths are built.
        if (config["embed_dim"], _widths(config)) == (dim, widths) and model_shapes(config) == actual
    ]


def _widths(config: dict[str, Any]) -> tuple[int, int]:
    return config["vision_cfg"].get("width", 768), config["text_cfg"].get("width", 512)


def model_shapes(config: dict[str, Any]) -> Shapes:
    """The shapes of an OpenCLIP model, built on the meta device, without memory."""
    import open_clip

    with torch.device("meta"):
        return _shapes(open_clip.CLIP(**config).state_dict())


def read_shapes(file: str) -> Shapes:
    """The shapes in a checkpoint file; no code in it is run."""
    try:
        if file.endswith(".safetensors"):
            with safe_open(file, "pt") as tensors:
                return {key: tuple(tensors.get_slice(key).get_shape()) for key in tensors.keys()}  # noqa: SIM118
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of files that are then refused
            checkpoint = torch.load(file, map_location="meta", weights_only=True)
    except (SafetensorError, UnpicklingError, RuntimeError, EOFError, OSError) as error:
        if "TorchScript" in str(error):
            raise DearError(
                f"{file} is a TorchScript program, the format in which OpenAI publishes its models, and is not run: "
                "use --pretrained openai."
            ) from error
        raise DearError(f"{file} could not be loaded: {first_line(error)}.") from error
    weights = checkpoint.get("state_dict", checkpoint) if isinstance(checkpoint, dict) else None
    if not weights or not all(isinstance(value, torch.Tensor) for value in weights.values()):
        raise DearError(f"{file} could not be loaded: it contains no state_dict of tensors.")
    return _shapes({key.removeprefix("module."): value for key, value in weights.items()})


def _shapes(weights: dict[str, Any]) -> Shapes:
    # The logit scale is one number, which some files store as a vector.
    return {key: () if key == "logit_scale" else tuple(value.shape) for key, value in weights.items()}


def _without_positions(shapes: Shapes) -> Shapes:
    return {key: shape[1:] if key == _POSITIONS else shape for key, shape in shapes.items()}


def _first_difference(actual: Shapes, expected: Shapes) -> str:
    for key, shape in expected.items():
        if key not in actual:
            return f"it has no {key}"
        if actual[key] != shape:
            return f"its {key} has the shape {list(actual[key])} and not {list(shape)}"
    return f"it also has {sorted(set(actual) - set(expected))[0]}"
