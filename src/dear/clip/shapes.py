"""Does a checkpoint file fit the model it is given for? Judged by shapes, before anything is built or loaded."""

import warnings
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from dear.clip.support import supported_models
from dear.core.errors import DearError

Shapes = dict[str, tuple[int, ...]]
_PICTURE_PLACES = "visual.positional_embedding"


def require_fit(name: str, file: str) -> None:
    """Refuses weights of another architecture, and says which name they belong to."""
    found = shapes_in(file)
    if any(key.startswith("vision_model.") for key in found):
        raise DearError(
            f"{file} is stored as transformers does: put it with its config.json into a folder, as model.safetensors, "
            "and use --model transformers:FOLDER."
        )
    wanted = shapes_of(supported_models()[name]) if name in supported_models() else {}
    if found == wanted:
        return
    if names := fitting_names(found):
        twins = " (which of them, only where it comes from can tell)" if len(names) > 1 else ""
        raise DearError(f"{file} does not fit {name}: its shapes are those of {' or '.join(names)}{twins}.")
    if _without_places(found) == _without_places(wanted):
        return  # trained at a picture size of its own: OpenCLIP interpolates the places
    raise DearError(
        f"{file} does not fit {name}, nor any other OpenCLIP name that dear supports: {_gap(found, wanted)}."
    )


def fitting_names(found: Shapes) -> list[str]:
    """The names of supported models with just these shapes."""
    try:
        dim, widths = found["text_projection"][1], (found["visual.conv1.weight"][0], found["text_projection"][0])
    except (KeyError, IndexError):
        return []
    return [
        name
        for name, config in supported_models().items()
        # Building takes a while: only what may fit is built.
        if (config["embed_dim"], _widths(config)) == (dim, widths) and shapes_of(config) == found
    ]


def _widths(config: dict[str, Any]) -> tuple[int, int]:
    return config["vision_cfg"].get("width", 768), config["text_cfg"].get("width", 512)


def shapes_of(config: dict[str, Any]) -> Shapes:
    """The shapes of an OpenCLIP model, built without memory."""
    import open_clip

    with torch.device("meta"):
        return _shapes(open_clip.CLIP(**config).state_dict())


def shapes_in(file: str) -> Shapes:
    """The shapes in a file; nothing in it is run."""
    try:
        if file.endswith(".safetensors"):
            with safe_open(file, "pt") as tensors:
                return {key: tuple(tensors.get_slice(key).get_shape()) for key in tensors.keys()}  # noqa: SIM118
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of what it then refuses
            checkpoint = torch.load(file, map_location="meta", weights_only=True)
    except (SafetensorError, UnpicklingError, RuntimeError, EOFError, OSError) as error:
        if "TorchScript" in str(error):
            raise DearError(
                f"{file} is a program for TorchScript, as OpenAI publishes its models, and is not run: "
                "use --pretrained openai."
            ) from error
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DearError(f"{file} could not be loaded: {first}") from error
    weights = checkpoint.get("state_dict", checkpoint) if isinstance(checkpoint, dict) else None
    if not weights or not all(isinstance(value, torch.Tensor) for value in weights.values()):
        raise DearError(f"{file} could not be loaded: it holds no table of weights.")
    return _shapes({key.removeprefix("module."): value for key, value in weights.items()})


def _shapes(weights: dict[str, Any]) -> Shapes:
    # The scale is one number, which some store as a vector.
    return {key: () if key == "logit_scale" else tuple(value.shape) for key, value in weights.items()}


def _without_places(shapes: Shapes) -> Shapes:
    return {key: shape[1:] if key == _PICTURE_PLACES else shape for key, shape in shapes.items()}


def _gap(found: Shapes, wanted: Shapes) -> str:
    """The first difference, for somebody who looks for the reason."""
    for key, shape in wanted.items():
        if key not in found:
            return f"it has no {key}"
        if found[key] != shape:
            return f"its {key} has the shape {list(found[key])} and not {list(shape)}"
    return f"it has {sorted(set(found) - set(wanted))[0]} besides"
