"""SigLIP and SigLIP 2 (fixed sizes) in the format of transformers, loaded into timm's ViT and OpenCLIP's text tower."""

from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from dear.clip.transformers_files import CONFIG, FolderTokenizer, read_pictures, read_weights
from dear.core.errors import DearError
from dear.core.schema import Finite, Positive, check_shape

_EPS, _ACTIVATION = 1e-6, "gelu_pytorch_tanh"  # of all published ones
# A config omits fields that have their default value.
_COMMON = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "hidden_act": _ACTIVATION, "layer_norm_eps": _EPS,
}  # fmt: skip
_VISION = {**_COMMON, "image_size": 224, "patch_size": 16}
_TEXT = {**_COMMON, "vocab_size": 32000, "max_position_embeddings": 64, "pad_token_id": 1}
_OUTSIDE_BLOCKS = {
    "logit_scale": "logit_scale",
    "logit_bias": "logit_bias",
    "vision_model.embeddings.patch_embedding": "visual.trunk.patch_embed.proj",
    "vision_model.embeddings.position_embedding.weight": "visual.trunk.pos_embed",
    "vision_model.post_layernorm": "visual.trunk.norm",
    "vision_model.head.probe": "visual.trunk.attn_pool.latent",
    "vision_model.head.attention.out_proj": "visual.trunk.attn_pool.proj",
    "vision_model.head.layernorm": "visual.trunk.attn_pool.norm",
    "vision_model.head.mlp.fc1": "visual.trunk.attn_pool.mlp.fc1",
    "vision_model.head.mlp.fc2": "visual.trunk.attn_pool.mlp.fc2",
    "text_model.embeddings.token_embedding.weight": "text.token_embedding.weight",
    "text_model.embeddings.position_embedding.weight": "text.positional_embedding",
    "text_model.final_layer_norm": "text.ln_final",
    "text_model.head": "text.text_projection",
}
_IN_BLOCKS = {
    "vision_model": {
        "layer_norm1": "norm1", "layer_norm2": "norm2", "self_attn.out_proj": "attn.proj", "mlp.fc1": "mlp.fc1",
        "mlp.fc2": "mlp.fc2",
    },
    "text_model": {
        "layer_norm1": "ln_1", "layer_norm2": "ln_2", "self_attn.out_proj": "attn.out_proj", "mlp.fc1": "mlp.c_fc",
        "mlp.fc2": "mlp.c_proj",
    },
}  # fmt: skip


class _Tower(TypedDict, total=False):
    hidden_size: Positive
    intermediate_size: Positive
    num_hidden_layers: Positive
    num_attention_heads: Positive
    hidden_act: str
    layer_norm_eps: Finite
    image_size: Positive
    patch_size: Positive
    vocab_size: Positive
    max_position_embeddings: Positive
    projection_size: Positive
    pad_token_id: int | None


class _Config(TypedDict, total=False):
    text_config: _Tower | None
    vision_config: _Tower | None


def load_siglip(folder: Path, config: dict[str, Any], source: str) -> tuple[Any, Any]:
    """The model with its weights, and its tokenizer."""
    import open_clip

    check_shape(config, _Config, f"{CONFIG} of {source}", "save it again with transformers")
    vision, text = _VISION | (config.get("vision_config") or {}), _TEXT | (config.get("text_config") or {})
    for tower in (vision, text):
        if (tower["hidden_act"], tower["layer_norm_eps"]) != (_ACTIVATION, _EPS):
            raise DearError(f"{source} can't be used, because its activation or eps is not that of SigLIP.")
    try:
        weights = siglip_weights(read_weights(folder))
        if max(vision["num_hidden_layers"], text["num_hidden_layers"]) > len(weights):
            raise KeyError("more layers than tensors")
        with torch.device("meta"):  # shapes first: a config can ask for more memory than there is
            build(vision, text).load_state_dict(weights, assign=True)
        model = build(vision, text)
        model.load_state_dict(weights)
    except (AssertionError, IndexError, KeyError, RuntimeError, ValueError, ZeroDivisionError) as error:
        raise DearError(
            f"The weights of {source} do not fit its {CONFIG}: both must come from one SiglipModel."
        ) from error
    default = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "interpolation": "bicubic", "resize_mode": "squash"}
    open_clip.set_model_preprocess_cfg(model, read_pictures(folder, source, vision["image_size"], default))
    context = text["max_position_embeddings"]
    return model, FolderTokenizer(folder, context, text.get("pad_token_id") or 1, clean="canonicalize")


def build(vision: dict[str, Any], text: dict[str, Any]) -> Any:
    """OpenCLIP's CustomTextCLIP of these sizes, which its own configs cannot give to a tower of timm."""
    import timm
    from open_clip.model import CustomTextCLIP, _build_text_tower
    from open_clip.timm_model import TimmModel

    visual, model = (kind.__new__(kind) for kind in (TimmModel, CustomTextCLIP))
    nn.Module.__init__(visual)
    nn.Module.__init__(model)
    visual.trunk = timm.create_model(
        "vit_base_patch16_siglip_224",
        img_size=vision["image_size"],
        patch_size=vision["patch_size"],
        embed_dim=vision["hidden_size"],
        depth=vision["num_hidden_layers"],
        num_heads=vision["num_attention_heads"],
        mlp_ratio=(vision["intermediate_size"] + 0.5) / vision["hidden_size"],  # timm rounds the product down
        act_layer="gelu_tanh",
        num_classes=0,
        global_pool="map",
    )
    visual.head, visual.image_size = nn.Sequential(), (vision["image_size"],) * 2
    model.visual, model.output_dict = visual, False
    model.text = _build_text_tower(
        vision["hidden_size"],
        {
            "context_length": text["max_position_embeddings"],
            "vocab_size": text["vocab_size"],
            "width": text["hidden_size"],
            "heads": text["num_attention_heads"],
            "layers": text["num_hidden_layers"],
            "mlp_ratio": (text["intermediate_size"] + 0.5) / text["hidden_size"],
            "no_causal_mask": True,
            "pool_type": "last",
            "proj_bias": True,
            "norm_kwargs": {"eps": _EPS},
            "act_kwargs": {"approximate": "tanh"},
        },
    )
    model.context_length, model.vocab_size = text["max_position_embeddings"], text["vocab_size"]
    model.logit_scale, model.logit_bias = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))
    return model


def siglip_weights(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same weights under the names of timm and OpenCLIP; a name that is not SigLIP's is a KeyError."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if name.endswith("position_ids") or ".self_attn.k_proj." in name or ".self_attn.v_proj." in name:
            continue  # with the queries
        part, _, kind = name.rpartition(".")
        if ".encoder.layers." in name:
            tower, rest = name.split(".encoder.layers.")
            layer, inside = rest.split(".", 1)
            block = f"visual.trunk.blocks.{layer}" if tower == "vision_model" else f"text.transformer.resblocks.{layer}"
            if inside.startswith("self_attn.q_proj."):
                parts = [weights[name.replace("q_proj", projection)] for projection in ("q_proj", "k_proj", "v_proj")]
                joint = f"attn.qkv.{kind}" if tower == "vision_model" else f"attn.in_proj_{kind}"
                renamed[f"{block}.{joint}"] = torch.cat(parts)
            else:
                renamed[f"{block}.{_IN_BLOCKS[tower][inside.rpartition('.')[0]]}.{kind}"] = tensor
        elif name.startswith("vision_model.head.attention.in_proj_"):
            pool, ending, width = "visual.trunk.attn_pool", name.rpartition("_")[2], len(tensor) // 3
            renamed[f"{pool}.q.{ending}"], renamed[f"{pool}.kv.{ending}"] = tensor[:width], tensor[width:]
        elif name in _OUTSIDE_BLOCKS:
            renamed[_OUTSIDE_BLOCKS[name]] = tensor.reshape(()) if name.startswith("logit_") else tensor
        else:
            renamed[f"{_OUTSIDE_BLOCKS[part]}.{kind}"] = tensor
    renamed["visual.trunk.pos_embed"] = renamed["visual.trunk.pos_embed"][None]
    return renamed
