"""Names of weights: those of transformers, and the same in OpenCLIP and timm. Unknown ones are a KeyError."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

Weights = dict[str, Tensor]

_OPENCLIP_BLOCK = {
    "layer_norm1": "ln_1.", "layer_norm2": "ln_2.", "self_attn.q_proj": "attn.in_proj_",
    "self_attn.out_proj": "attn.out_proj.", "mlp.fc1": "mlp.c_fc.", "mlp.fc2": "mlp.c_proj.",
}  # fmt: skip
_TIMM_BLOCK = {
    "layer_norm1": "norm1.", "layer_norm2": "norm2.", "self_attn.q_proj": "attn.qkv.",
    "self_attn.out_proj": "attn.proj.", "mlp.fc1": "mlp.fc1.", "mlp.fc2": "mlp.fc2.",
}  # fmt: skip
_CLIP_BLOCKS = {
    "vision_model": ("visual.transformer.resblocks", _OPENCLIP_BLOCK),
    "text_model": ("transformer.resblocks", _OPENCLIP_BLOCK),
}
_CLIP_NAMES = {
    "logit_scale": "logit_scale",
    "vision_model.embeddings.class_embedding": "visual.class_embedding",
    "vision_model.embeddings.position_embedding.weight": "visual.positional_embedding",
    "vision_model.embeddings.patch_embedding": "visual.conv1",
    "vision_model.pre_layrnorm": "visual.ln_pre",
    "vision_model.post_layernorm": "visual.ln_post",
    "visual_projection.weight": "visual.proj",
    "text_model.embeddings.token_embedding": "token_embedding",
    "text_model.embeddings.position_embedding.weight": "positional_embedding",
    "text_model.final_layer_norm": "ln_final",
    "text_projection.weight": "text_projection",
}
_SIGLIP_BLOCKS = {
    "vision_model": ("visual.trunk.blocks", _TIMM_BLOCK),
    "text_model": ("text.transformer.resblocks", _OPENCLIP_BLOCK),
}
_POOL = "visual.trunk.attn_pool"
_SIGLIP_NAMES = {
    "logit_scale": "logit_scale",
    "logit_bias": "logit_bias",
    "vision_model.embeddings.patch_embedding": "visual.trunk.patch_embed.proj",
    "vision_model.embeddings.position_embedding.weight": "visual.trunk.pos_embed",
    "vision_model.post_layernorm": "visual.trunk.norm",
    "vision_model.head.probe": f"{_POOL}.latent",
    "vision_model.head.attention": _POOL,
    "vision_model.head.attention.out_proj": f"{_POOL}.proj",
    "vision_model.head.layernorm": f"{_POOL}.norm",
    "vision_model.head.mlp.fc1": f"{_POOL}.mlp.fc1",
    "vision_model.head.mlp.fc2": f"{_POOL}.mlp.fc2",
    "text_model.embeddings.token_embedding": "text.token_embedding",
    "text_model.embeddings.position_embedding.weight": "text.positional_embedding",
    "text_model.final_layer_norm": "text.ln_final",
    "text_model.head": "text.text_projection",
}


def _with_names(
    weights: Weights, names: Mapping[str, str], blocks: Mapping[str, tuple[str, Mapping[str, str]]]
) -> Weights:
    """The weights under other names: `names` of whole weights or of modules, `blocks` of each tower."""
    renamed: Weights = {}
    for name, tensor in weights.items():
        if name.endswith("position_ids") or ".self_attn.k_proj." in name or ".self_attn.v_proj." in name:
            continue  # 0, 1, 2, ..., which older versions stored; keys and values are with the queries
        module, _, kind = name.rpartition(".")
        tower, _, inside = module.partition(".encoder.layers.")
        if inside:
            layer, _, part = inside.partition(".")
            block, parts = blocks[tower]
            if part == "self_attn.q_proj":
                tensor = torch.cat([weights[name.replace("q_proj", other)] for other in ("q_proj", "k_proj", "v_proj")])
            renamed[f"{block}.{layer}.{parts[part]}{kind}"] = tensor
        else:
            renamed[names[name] if name in names else f"{names[module]}.{kind}"] = tensor
    return renamed


def clip_weights(weights: Weights) -> Weights:
    """The weights of a CLIPModel under the names of OpenCLIP's CLIP."""
    renamed = _with_names(weights, _CLIP_NAMES, _CLIP_BLOCKS)
    return renamed | {name: renamed[name].T for name in ("visual.proj", "text_projection") if name in renamed}


def weights_as_in_clip(weights: Weights, names: Iterable[str]) -> Weights:
    """The weights of OpenCLIP's CLIP under these names of a CLIPModel: the inverse of `clip_weights`."""
    renamed: Weights = {}
    for name in names:
        module, _, kind = name.rpartition(".")
        tower, _, inside = module.partition(".encoder.layers.")
        if inside:
            layer, _, part = inside.partition(".")
            block, parts = _CLIP_BLOCKS[tower]
            joint = [f"self_attn.{letter}_proj" for letter in "qkv"]
            tensor = weights[f"{block}.{layer}.{parts[joint[0] if part in joint else part]}{kind}"]
            renamed[name] = tensor.chunk(3)[joint.index(part)] if part in joint else tensor
        else:
            own = _CLIP_NAMES[name] if name in _CLIP_NAMES else f"{_CLIP_NAMES[module]}.{kind}"
            renamed[name] = weights[own].T if own in ("visual.proj", "text_projection") else weights[own]
    return renamed


def chinese_weights(weights: Weights) -> Weights:
    """The weights of a ChineseCLIPModel: those of BERT keep their names, behind `text.transformer`."""
    renamed = clip_weights({name: tensor for name, tensor in weights.items() if not name.startswith("text_")})
    renamed["text.proj.weight"] = weights["text_projection.weight"]
    for name, tensor in weights.items():
        if name.startswith("text_model.") and not name.endswith("position_ids"):
            renamed[f"text.transformer.{name.removeprefix('text_model.')}"] = tensor
    return renamed


def siglip_weights(weights: Weights) -> Weights:
    """The weights of a SiglipModel under the names of timm and OpenCLIP."""
    renamed = _with_names(weights, _SIGLIP_NAMES, _SIGLIP_BLOCKS)
    for kind in ("weight", "bias"):
        joint = renamed.pop(f"{_POOL}.in_proj_{kind}")
        renamed[f"{_POOL}.q.{kind}"], renamed[f"{_POOL}.kv.{kind}"] = joint.split(
            [len(joint) // 3, 2 * len(joint) // 3]
        )
    renamed |= {name: renamed[name].reshape(()) for name in ("logit_scale", "logit_bias")}
    return renamed | {"visual.trunk.pos_embed": renamed["visual.trunk.pos_embed"][None]}
