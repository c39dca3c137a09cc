"""Which OpenCLIP models are supported, decided by their config before anything is downloaded."""

from functools import cache
from typing import Annotated, Any, TypedDict

from msgspec import Meta
from torch import nn

SUPPORTED = (
    "dear supports OpenCLIP's own ViT image towers with a CLS token and its causal text transformers "
    "(ViT-B-32, ViT-B-16, ViT-L-14, ViT-H-14, ... and their -quickgelu forms; `dear backbones` lists them)"
)

TIERS = ("table", "features", "words", "full")
"""What a tower can do, each more than the one before: class names alone, by a text table; features of whole images or
texts; learned words at the first text layer; learned tokens, masks and heads in every layer."""


def reaches(tier: str, needed: str) -> bool:
    """Whether a tower of this tier does what a method needs."""
    return TIERS.index(tier) >= TIERS.index(needed)


_CUSTOM_BLOCKS = (
    "qk_norm",
    "scaled_cosine_attn",
    "scale_heads",
    "scale_attn_inner",
    "scale_attn",
    "scale_fc",
)


_Depth = Annotated[int, Meta(ge=1, le=1000)]
_Size = Annotated[int, Meta(ge=1, le=100_000)]  # larger than in any model, small enough to allocate
_Channels = Annotated[list[float], Meta(min_length=3, max_length=3)]


class _Vision(TypedDict, total=False):
    layers: _Depth | list[int]  # a list: a ResNet
    width: _Size
    head_width: _Size
    patch_size: _Size
    image_size: _Size | list[_Size]
    mlp_ratio: Annotated[float, Meta(gt=0, le=100)]


class _Text(TypedDict, total=False):
    context_length: _Size
    vocab_size: Annotated[int, Meta(ge=1, le=10**7)]
    width: _Size
    heads: _Size
    layers: _Depth


class _Model(TypedDict):
    embed_dim: _Size
    vision_cfg: _Vision
    text_cfg: _Text


class _Preprocess(TypedDict, total=False):
    size: _Size | list[_Size]
    mean: _Channels
    std: _Channels
    interpolation: str
    resize_mode: str
    fill_color: int


class _Required(TypedDict):
    model_cfg: _Model


class ConfigFile(_Required, total=False):
    """open_clip_config.json: required fields, and limits on the size of the model."""

    preprocess_cfg: _Preprocess


def min_parameters(model: dict[str, Any]) -> int:
    """A lower bound on a config's parameters: attention, token and position embeddings alone."""
    vision, text = model["vision_cfg"], model["text_cfg"]
    layers = [(tower.get("layers"), tower.get("width", 0)) for tower in (vision, text)]
    attention = sum(4 * depth * width**2 for depth, width in layers if isinstance(depth, int))
    text_embeddings = (text.get("vocab_size", 0) + text.get("context_length", 0)) * text.get("width", 0)
    sides = vision.get("image_size", 0), vision.get("patch_size", 1)
    patches = (sides[0] // sides[1]) ** 2 if isinstance(sides[0], int) else 0
    return attention + text_embeddings + patches * vision.get("width", 0)


def why_unsupported(model_cfg: dict[str, Any]) -> str | None:
    """The reason why a model with this OpenCLIP config is not supported; None if it is."""
    vision, text = model_cfg["vision_cfg"], model_cfg["text_cfg"]
    if "multimodal_cfg" in model_cfg:
        return "it is a CoCa model with a multimodal decoder"
    if vision.get("timm_model_name"):
        return f"its image tower is timm's {vision['timm_model_name']}"
    if not isinstance(vision.get("layers", 12), int):
        return "its image tower is a ResNet"
    if text.get("hf_model_name"):
        return f"its text tower is Hugging Face's {text['hf_model_name']}"
    if vision.get("attentional_pool"):
        return "its image tower pools by attention"
    if vision.get("pool_type", "tok") != "tok":
        return "its image tower does not read the CLS token"
    if text.get("embed_cls") or text.get("no_causal_mask"):
        return "its text tower is not causal"
    if text.get("pool_type", "argmax") not in ("argmax", "eos"):
        return "its text tower does not read the end-of-text token"
    for tower in (vision, text):
        if tower.get("block_type") not in (None, "default") or any(tower.get(key) for key in _CUSTOM_BLOCKS):
            return "it has custom attention blocks"
    return None


@cache
def supported_models() -> dict[str, dict[str, Any]]:
    """OpenCLIP name -> config, of every supported model."""
    import open_clip

    configs = {name: open_clip.get_model_config(name) for name in open_clip.list_models()}
    return {name: config for name, config in configs.items() if why_unsupported(config) is None}


def has_supported_blocks(blocks: Any) -> bool:
    """Whether all blocks are OpenCLIP's ResidualAttentionBlock, whose parameters the towers use."""
    from open_clip.transformer import ResidualAttentionBlock

    return all(type(b) is ResidualAttentionBlock and type(b.attn) is nn.MultiheadAttention for b in blocks)
