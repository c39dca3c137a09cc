"""CLIP checkpoints in the format of transformers (config.json, weights), loaded into OpenCLIP's modules.

The transformers package is not needed.
"""

from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor

from dear.clip.transformers_files import CONFIG, FolderTokenizer, read_pictures, read_weights
from dear.core.errors import DearError
from dear.core.schema import Finite, Positive, check_shape

_VOCABULARY = 49408  # tokens of CLIP's own tokenizer

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
PROJECTION = 512


class _Tower(TypedDict, total=False):
    num_hidden_layers: Positive
    hidden_size: Positive
    intermediate_size: Positive
    num_attention_heads: Positive
    hidden_act: str
    layer_norm_eps: Finite
    max_position_embeddings: Positive
    vocab_size: Positive
    type_vocab_size: Positive
    eos_token_id: int | None
    pad_token_id: int | None
    image_size: Positive
    patch_size: Positive
    num_channels: Positive


class _Config(TypedDict, total=False):
    projection_dim: Positive
    text_config: _Tower | None
    text_config_dict: _Tower | None
    vision_config: _Tower | None
    vision_config_dict: _Tower | None


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


def load_clip(folder: Path, config: dict[str, Any], source: str) -> tuple[Any, Any]:
    """The model with its weights, and its tokenizer."""
    import open_clip

    own_words = config["model_type"] == "metaclip_2"
    arguments = openclip_config(config, source, own_words)
    try:
        weights = openclip_weights(read_weights(folder))
        if max(arguments["vision_cfg"]["layers"], arguments["text_cfg"]["layers"]) > len(weights):
            raise KeyError("more layers than tensors")
        with torch.device("meta"):  # shapes first: a config can ask for more memory than there is
            open_clip.CLIP(**arguments).load_state_dict(weights, assign=True)
        model = open_clip.CLIP(**arguments)
        model.load_state_dict(weights)
    except (AssertionError, IndexError, KeyError, RuntimeError, ValueError, ZeroDivisionError) as error:
        raise DearError(
            f"The weights of {source} do not fit its {CONFIG}: both must come from one CLIPModel."
        ) from error
    default = {"mean": open_clip.OPENAI_DATASET_MEAN, "std": open_clip.OPENAI_DATASET_STD}
    open_clip.set_model_preprocess_cfg(
        model, read_pictures(folder, source, arguments["vision_cfg"]["image_size"], default)
    )
    context = arguments["text_cfg"]["context_length"]
    if own_words:
        return model, FolderTokenizer(folder, context, (config.get("text_config") or {}).get("pad_token_id", 1))
    return model, open_clip.SimpleTokenizer(context_length=context)


def openclip_config(config: dict[str, Any], source: str, own_words: bool = False) -> dict[str, Any]:
    """Arguments of OpenCLIP's `CLIP` from a transformers config.

    `own_words`: it has a tokenizer of its own, and is read at the first end-of-text token (MetaCLIP 2).
    """
    text, vision = tower_configs(config, source, _TEXT)
    if text["vocab_size"] != _VOCABULARY and not own_words:
        raise DearError(f"{source} can't be used, because its vocabulary is not that of CLIP's tokenizer.")
    activations = {text["hidden_act"], vision["hidden_act"]}
    if activations not in ({"quick_gelu"}, {"gelu"}):
        raise DearError(
            f"{source} can't be used, because its activation is {' and '.join(sorted(activations))}: both towers "
            "must have quick_gelu, or both gelu."
        )
    return {
        "embed_dim": config.get("projection_dim", PROJECTION),
        "quick_gelu": activations == {"quick_gelu"},
        "vision_cfg": vision_arguments(vision),
        "text_cfg": {
            **_tower(text),
            "heads": text["num_attention_heads"],
            "context_length": text["max_position_embeddings"],
            "vocab_size": text["vocab_size"],
            **({"pool_type": "eos", "eos_id": text.get("eos_token_id", 2)} if own_words else {}),
        },
    }


def tower_configs(config: dict[str, Any], source: str, text: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configs of text and image tower, with defaults for what they omit; `text`: the defaults of the text tower."""
    check_shape(config, _Config, f"{CONFIG} of {source}", "save it again with transformers")
    # Older files have other names for these parts, which win if both are there.
    text = text | (config.get("text_config") or {}) | (config.get("text_config_dict") or {})
    vision = _VISION | (config.get("vision_config") or {}) | (config.get("vision_config_dict") or {})
    if vision["num_channels"] != 3:
        raise DearError(f"{source} can't be used, because its images have {vision['num_channels']} channels, not 3.")
    return text, vision


def vision_arguments(vision: dict[str, Any]) -> dict[str, Any]:
    """OpenCLIP's vision_cfg."""
    return {
        **_tower(vision),
        "head_width": vision["hidden_size"] // vision["num_attention_heads"],
        "image_size": vision["image_size"],
        "patch_size": vision["patch_size"],
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
