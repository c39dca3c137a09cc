"""Judges OpenCLIP models by their configs, before anything is downloaded: the tier of both towers, or a refusal."""

import os
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, NamedTuple, TypedDict

from msgspec import Meta

from dear.core.errors import DearError

TIERS = ("table", "features", "words", "full")
"""What a tower can do, each more than the one before: class names alone, by a text table; features of whole images or
texts; learned words at the first text layer; learned tokens, masks and heads in every layer."""


def reaches(tier: str, needed: str) -> bool:
    """Whether a tower of this tier does what a method needs."""
    return TIERS.index(tier) >= TIERS.index(needed)


def no_such_model(name: str, known: Iterable[str]) -> DearError:
    """The error for a name that OpenCLIP does not have, with the nearest that it has."""
    if os.path.isdir(name):  # unlike Path, no error for a name that is too long
        return DearError(f"There is no model named {name}: if the folder holds one, write local-dir:{name}.")
    in_lower_case = {one.lower(): one for one in known}
    near = [in_lower_case[one] for one in get_close_matches(name.lower(), in_lower_case, n=3, cutoff=0.4)]
    hint = f"did you mean {' or '.join(near)}?" if near else "`dear backbones` lists the supported ones."
    return DearError(f"There is no model named {name}: {hint}")


_CUSTOM_BLOCKS = ("qk_norm", "scaled_cosine_attn", "scale_heads", "scale_attn_inner", "scale_attn", "scale_fc")
_BOTH = {"layers", "width", "mlp_ratio", "ls_init_value", "final_ln_after_pool", "pool_type", "output_tokens",
         "act_kwargs", "norm_kwargs", "block_type", *_CUSTOM_BLOCKS}  # fmt: skip
_KNOWN_KEYS = {
    "model_cfg": {
        "embed_dim", "vision_cfg", "text_cfg", "quick_gelu", "custom_text", "multimodal_cfg", "init_logit_scale",
        "init_logit_bias", "nonscalar_logit_scale",
    },
    "vision_cfg": {
        *_BOTH, "head_width", "patch_size", "image_size", "patch_dropout", "attentional_pool", "attn_pooler_queries",
        "attn_pooler_heads", "no_ln_pre", "pos_embed_type", "timm_model_name", "timm_model_pretrained", "timm_pool",
        "timm_proj", "timm_proj_bias", "timm_drop", "timm_drop_path",
    },
    "text_cfg": {
        *_BOTH, "context_length", "vocab_size", "hf_tokenizer_name", "tokenizer_mode", "tokenizer_kwargs", "heads",
        "embed_cls", "pad_id", "eos_id", "no_causal_mask", "proj_bias", "proj_type", "hf_model_name",
        "hf_model_pretrained", "hf_proj_type", "hf_pooler_type",
    },
}  # fmt: skip
"""The keys of OpenCLIP's configs that are understood here. Newer versions have others, which change what a tower does:
a model with one of those is refused, unless its value changes nothing."""

_Depth = Annotated[int, Meta(ge=1, le=1000)]
_Size = Annotated[int, Meta(ge=1, le=100_000)]  # larger than in any model, small enough to allocate
_Channels = Annotated[list[float], Meta(min_length=3, max_length=3)]


class _Vision(TypedDict, total=False):
    layers: _Depth | list[int]  # a list: a ResNet
    width: _Size
    head_width: _Size
    patch_size: _Size | None  # a ResNet has none
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
    sides = vision.get("image_size", 0), vision.get("patch_size") or 1
    patches = (sides[0] // sides[1]) ** 2 if isinstance(sides[0], int) else 0
    return attention + text_embeddings + patches * vision.get("width", 0)


class Tiers(NamedTuple):
    """The tiers of both towers of a model, and why one of them is not full ("": both are)."""

    image: str
    text: str
    reason: str = ""


def why_refused(model_cfg: dict[str, Any]) -> str | None:
    """The reason why a model with this OpenCLIP config cannot be used at all; None if it can."""
    for part, tower in (("vision_cfg", "image"), ("text_cfg", "text")):
        if not isinstance(model_cfg.get(part), dict):
            return f"it has no {tower} tower"
    for part, known in _KNOWN_KEYS.items():
        config = model_cfg if part == "model_cfg" else model_cfg[part]
        for key, value in config.items():
            if key not in known and not _is_neutral(part, key, value):
                from open_clip import __version__

                what = key if isinstance(value, dict) else f"{key} = {value!r}"
                return f"it has {what}, which this version does not know (OpenCLIP {__version__})"
    return None


def _is_neutral(part: str, key: str, value: Any) -> bool:
    """Whether a key that is not understood is of training only, or has the value of a model without it."""
    from open_clip.model import CLIPTextCfg, CLIPVisionCfg

    if key.startswith("timm_drop") or key.endswith("_pretrained") or key == "zero_init_residual" or not value:
        return True
    defaults = {"vision_cfg": CLIPVisionCfg, "text_cfg": CLIPTextCfg}
    return part in defaults and hasattr(defaults[part], key) and getattr(defaults[part], key) == value


def judge(model_cfg: dict[str, Any]) -> Tiers:
    """The tiers of the towers of a config that is not refused."""
    image, text = _why_image_is_called(model_cfg["vision_cfg"]), _why_text_is_called(model_cfg)
    called = "words" if model_cfg["text_cfg"].get("hf_model_name") else "features"
    return Tiers(
        "features" if image else "full",
        called if text else "full",
        " and ".join(filter(None, (image, text))),
    )


def _why_image_is_called(vision: dict[str, Any]) -> str:
    """Why the image tower can only be called as a whole; "" if its layers are known."""
    if name := vision.get("timm_model_name"):
        known = name.startswith(("vit_", "eva", "vitamin")) and not name.startswith("vit_relpos")
        return "" if known and vision.get("timm_proj") != "mlp" else f"its image tower is timm's {name}"
    if not isinstance(vision.get("layers", 12), int):
        return "its image tower is a ResNet"
    pool, read = vision.get("attentional_pool"), vision.get("pool_type", "tok")
    if pool and (isinstance(pool, str) or read != "tok"):
        return "its image tower has two attention pools, or averages the queries of one"
    if read not in ("tok", "avg"):
        return "its image tower reads neither CLS nor the mean over patches"
    return "its image tower has custom attention blocks" if _has_custom_blocks(vision) else ""


def _why_text_is_called(model_cfg: dict[str, Any]) -> str:
    """Why the text tower can only be called as a whole; "" if its layers are known."""
    text = model_cfg["text_cfg"]
    if text.get("hf_model_name"):
        return f"its text tower is Hugging Face's {text['hf_model_name']}"
    at_cls, is_whole = text.get("embed_cls"), text.get("no_causal_mask")
    if at_cls and is_whole:
        return "its text tower has a CLS token but no causal mask"
    pools = ("argmax", "eos", "last", "first") if is_whole else ("argmax", "eos")
    if not at_cls and text.get("pool_type", "argmax") not in pools:  # CLS is read whatever the pool
        return "its text tower does not read the end-of-text token"
    return "its text tower has custom attention blocks" if _has_custom_blocks(text) else ""


def _has_custom_blocks(tower: dict[str, Any]) -> bool:
    return tower.get("block_type") not in (None, "default") or any(tower.get(key) for key in _CUSTOM_BLOCKS)


def sums_heads(model_cfg: dict[str, Any]) -> bool:
    """Whether the heads of a model can have gains, by its config (see `ImageTower.why_no_sum`)."""
    vision = model_cfg["vision_cfg"]
    name, pool = vision.get("timm_model_name") or "", vision.get("attentional_pool") or vision.get("timm_pool") == "map"
    norm_first = "_gap" in name or (vision.get("pool_type") == "avg" and not vision.get("final_ln_after_pool"))
    return not (_why_image_is_called(vision) or pool or norm_first or name.startswith("eva02"))


@cache
def usable_models() -> dict[str, dict[str, Any]]:
    """OpenCLIP name -> config, of every model that is not refused."""
    import open_clip

    configs = {name: open_clip.get_model_config(name) for name in open_clip.list_models()}
    return {name: config for name, config in configs.items() if why_refused(config) is None}


def refusal(name: str, reason: str) -> DearError:
    """The sentence for a model that cannot be used, with the nearest one that can."""
    short = name.rpartition("/")[2].rpartition(":")[2]
    near = get_close_matches(short, usable_models(), n=1, cutoff=0.0)
    return DearError(f"{name} can't be used, because {reason}: the nearest that works is --model {near[0]}.")
