"""CLIP checkpoints in the format of transformers (config.json, weights), loaded into OpenCLIP's modules.

The transformers package is not needed.
"""

from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor

from dear.clip.shapes import read_tensors_of
from dear.core.errors import DearError, first_line
from dear.core.files import read_json
from dear.core.schema import Finite, Positive, check_shape

PREFIX = "transformers:"
_CONFIG, _PREPROCESSOR = "config.json", "preprocessor_config.json"
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # in this order; each also in parts, with an index
_VOCABULARY = 49408  # tokens of CLIP's own tokenizer, the only one supported here

# A config omits fields that have their default value.
_COMMON = {"num_hidden_layers": 12, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
_TEXT = {
    **_COMMON, "hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8,
    "max_position_embeddings": 77, "vocab_size": _VOCABULARY,
}  # fmt: skip
_VISION = {
    **_COMMON, "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12,
    "image_size": 224, "patch_size": 32, "num_channels": 3,
}  # fmt: skip
_PROJECTION = 512


class _Tower(TypedDict, total=False):
    num_hidden_layers: Positive
    hidden_size: Positive
    intermediate_size: Positive
    num_attention_heads: Positive
    hidden_act: str
    layer_norm_eps: Finite
    max_position_embeddings: Positive
    vocab_size: Positive
    image_size: Positive
    patch_size: Positive
    num_channels: Positive


class _Config(TypedDict, total=False):
    projection_dim: Positive
    text_config: _Tower | None
    text_config_dict: _Tower | None
    vision_config: _Tower | None
    vision_config_dict: _Tower | None


class _Preprocessor(TypedDict, total=False):
    image_mean: tuple[Finite, Finite, Finite] | None
    image_std: tuple[Finite, Finite, Finite] | None


_BLOCK = {
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "self_attn.out_proj": "attn.out_proj",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}
_OUTSIDE_BLOCKS = {
    "logit_scale": "logit_scale",
    "vision_model.embeddings.class_embedding": "visual.class_embedding",
    "vision_model.embeddings.position_embedding.weight": "visual.positional_embedding",
    "vision_model.embeddings.patch_embedding.weight": "visual.conv1.weight",
    "vision_model.pre_layrnorm.weight": "visual.ln_pre.weight",
    "vision_model.pre_layrnorm.bias": "visual.ln_pre.bias",
    "vision_model.post_layernorm.weight": "visual.ln_post.weight",
    "vision_model.post_layernorm.bias": "visual.ln_post.bias",
    "text_model.embeddings.token_embedding.weight": "token_embedding.weight",
    "text_model.embeddings.position_embedding.weight": "positional_embedding",
    "text_model.final_layer_norm.weight": "ln_final.weight",
    "text_model.final_layer_norm.bias": "ln_final.bias",
}
_TRANSPOSED = {"visual_projection.weight": "visual.proj", "text_projection.weight": "text_projection"}
_TOWERS = {"vision_model": "visual.transformer.resblocks", "text_model": "transformer.resblocks"}


class _Index(TypedDict):
    weight_map: dict[str, str]


def load_transformers(source: str) -> tuple[Any, Any]:
    """An OpenCLIP model with weights from a folder or the hub, and CLIP's tokenizer for it."""
    import open_clip

    folder = _find_folder(source)
    config = openclip_config(read_json(folder / _CONFIG), source)
    try:
        weights = openclip_weights(read_weights(folder))
        if max(config["vision_cfg"]["layers"], config["text_cfg"]["layers"]) > len(weights):
            raise KeyError("more layers than tensors")
        with torch.device("meta"):  # shapes first: a config can ask for more memory than there is
            open_clip.CLIP(**config).load_state_dict(weights, assign=True)
        model = open_clip.CLIP(**config)
        model.load_state_dict(weights)
    except (AssertionError, IndexError, KeyError, RuntimeError, ValueError, ZeroDivisionError) as error:
        raise DearError(
            f"The weights of {source} do not fit its {_CONFIG}: both must come from one CLIPModel."
        ) from error
    preprocessor = read_json(folder / _PREPROCESSOR) if (folder / _PREPROCESSOR).is_file() else {}
    check_shape(preprocessor, _Preprocessor, f"{_PREPROCESSOR} of {source}", "save it again with transformers")
    preprocess = {
        "size": config["vision_cfg"]["image_size"],
        "mean": tuple(preprocessor.get("image_mean") or open_clip.OPENAI_DATASET_MEAN),
        "std": tuple(preprocessor.get("image_std") or open_clip.OPENAI_DATASET_STD),
    }
    open_clip.set_model_preprocess_cfg(model, preprocess)
    return model, open_clip.SimpleTokenizer(context_length=config["text_cfg"]["context_length"])


def _find_folder(source: str) -> Path:
    """A folder on disk, or a download from the hub of config, weights and preprocessor alone: no code."""
    name = source.removeprefix(PREFIX)
    folder = Path(name)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(name, allow_patterns=_patterns(name)))
        except Exception as error:  # the hub client raises many kinds
            raise DearError(
                f"{name} is not a folder and could not be fetched: check the name and the network "
                f"({first_line(error)})."
            ) from error
    return folder


def _patterns(name: str) -> list[str]:
    """The files to download: config and preprocessor, and weights in the first form that there is; no code."""
    from huggingface_hub import HfApi

    names = [file.rfilename for file in HfApi().model_info(name, timeout=10).siblings or ()]
    for weights in _WEIGHTS:
        stem, _, ending = weights.rpartition(".")
        if weights in names:
            return [_CONFIG, _PREPROCESSOR, weights]
        if f"{weights}.index.json" in names:
            return [_CONFIG, _PREPROCESSOR, f"{weights}.index.json", f"{stem}-*.{ending}"]
    return [_CONFIG, _PREPROCESSOR, *_WEIGHTS]


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors of a folder, from safetensors if there are any, else from a pickle that may hold tensors only."""
    for name in _WEIGHTS:
        if (folder / name).is_file():
            return read_tensors_of(folder / name)
        index = folder / f"{name}.index.json"
        if index.is_file():
            parts = check_shape(read_json(index), _Index, str(index), "download it again")["weight_map"].values()
            if strange := [part for part in parts if Path(part).name != part]:
                raise DearError(f"{index} names {strange[0]}, which is not beside it: download it again.")
            tables = [read_tensors_of(folder / part) for part in dict.fromkeys(parts)]
            return {key: tensor for table in tables for key, tensor in table.items()}
    raise DearError(f"{folder} has no weights: it needs {' or '.join(_WEIGHTS)}, as transformers saves them.")


def openclip_config(config: Any, source: str) -> dict[str, Any]:
    """Arguments of OpenCLIP's `CLIP` from a transformers config; refuses models other than CLIP."""
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind != "clip":
        raise DearError(f"{source} can't be used, because it is {kind or 'no model'} in transformers, not clip.")
    check_shape(config, _Config, f"{_CONFIG} of {source}", "save it again with transformers")
    # Older files have other names for these parts, which win if both are there.
    text = _TEXT | (config.get("text_config") or {}) | (config.get("text_config_dict") or {})
    vision = _VISION | (config.get("vision_config") or {}) | (config.get("vision_config_dict") or {})
    if text["vocab_size"] != _VOCABULARY:
        raise DearError(f"{source} can't be used, because its vocabulary is not that of CLIP's tokenizer.")
    if vision["num_channels"] != 3:
        raise DearError(f"{source} can't be used, because its images have {vision['num_channels']} channels, not 3.")
    activations = {text["hidden_act"], vision["hidden_act"]}
    if activations not in ({"quick_gelu"}, {"gelu"}):
        raise DearError(
            f"{source} can't be used, because its activation is {' and '.join(sorted(activations))}: both towers "
            "must have quick_gelu, or both gelu."
        )
    return {
        "embed_dim": config.get("projection_dim", _PROJECTION),
        "quick_gelu": activations == {"quick_gelu"},
        "vision_cfg": {
            **_tower(vision),
            "head_width": vision["hidden_size"] // vision["num_attention_heads"],
            "image_size": vision["image_size"],
            "patch_size": vision["patch_size"],
        },
        "text_cfg": {
            **_tower(text),
            "heads": text["num_attention_heads"],
            "context_length": text["max_position_embeddings"],
            "vocab_size": text["vocab_size"],
        },
    }


def _tower(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "layers": config["num_hidden_layers"],
        "width": config["hidden_size"],
        "mlp_ratio": (config["intermediate_size"] + 0.5) / config["hidden_size"],  # OpenCLIP rounds the product down
        "norm_kwargs": {"eps": config["layer_norm_eps"]},
    }


def openclip_weights(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same weights under OpenCLIP's names; a name that is not CLIP's is a KeyError."""
    renamed = {}
    for name, tensor in weights.items():
        if name.endswith("position_ids"):  # 0, 1, 2, ...: older versions stored them
            continue
        if name in _TRANSPOSED:
            renamed[_TRANSPOSED[name]] = tensor.T
        elif ".encoder.layers." in name:
            tower, rest = name.split(".encoder.layers.")
            layer, inside = rest.split(".", 1)
            block = f"{_TOWERS[tower]}.{layer}"
            part, kind = inside.rsplit(".", 1)
            if part == "self_attn.q_proj":
                parts = [weights[name.replace("q_proj", projection)] for projection in ("q_proj", "k_proj", "v_proj")]
                renamed[f"{block}.attn.in_proj_{kind}"] = torch.cat(parts)
            elif part not in ("self_attn.k_proj", "self_attn.v_proj"):
                renamed[f"{block}.{_BLOCK[part]}.{kind}"] = tensor
        else:
            renamed[_OUTSIDE_BLOCKS[name]] = tensor
    return renamed
