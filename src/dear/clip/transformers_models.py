"""Models in the format of transformers, loaded into OpenCLIP's modules: CLIP, MetaCLIP 2, SigLIP and SigLIP 2 (fixed
sizes), Chinese-CLIP.

The transformers package is needed for the BERT of Chinese-CLIP only.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import torch
from torch import nn

from dear.clip.support import refusal
from dear.clip.transformers_files import CONFIG, FolderTokenizer, find_folder, read_pictures, read_weights
from dear.clip.transformers_names import Weights, chinese_weights, clip_weights, siglip_weights
from dear.core.errors import DearError, needing
from dear.core.files import read_json
from dear.core.schema import Finite, Positive, check_shape

_CLIP_WORDS = 49408  # tokens of CLIP's own tokenizer
_CHINESE_CONTEXT = 52  # of its authors' tokenizer, for all published ones; BERT itself would take 512
_SIGLIP_EPS, _SIGLIP_ACTIVATION = 1e-6, "gelu_pytorch_tanh"  # of all published ones

# A config omits fields that have their default value.
_BASE = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
_IMAGES = {**_BASE, "image_size": 224, "num_channels": 3}
_CLIP = {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
_CLIP_VISION = {**_IMAGES, **_CLIP, "patch_size": 32}
_CLIP_TEXT = {
    **_BASE, **_CLIP, "hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8,
    "max_position_embeddings": 77, "vocab_size": _CLIP_WORDS,
}  # fmt: skip
_SIGLIP = {"hidden_act": _SIGLIP_ACTIVATION, "layer_norm_eps": _SIGLIP_EPS}
_SIGLIP_VISION = {**_IMAGES, **_SIGLIP, "patch_size": 16}
_SIGLIP_TEXT = {**_BASE, **_SIGLIP, "vocab_size": 32000, "max_position_embeddings": 64, "pad_token_id": 1}
_BERT = {
    **_BASE, "hidden_act": "gelu", "layer_norm_eps": 1e-12, "vocab_size": 30522, "max_position_embeddings": 512,
    "type_vocab_size": 2, "pad_token_id": 0,
}  # fmt: skip
_CLIP_DIM = 512


class _TowerConfig(TypedDict, total=False):
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
    projection_size: Positive


class _ModelConfig(TypedDict, total=False):
    projection_dim: Positive
    text_config: _TowerConfig | None
    text_config_dict: _TowerConfig | None
    vision_config: _TowerConfig | None
    vision_config_dict: _TowerConfig | None


class _Plan(NamedTuple):
    """All that differs between kinds of models."""

    made_by: str  # the class of transformers that saved it
    towers: tuple[dict[str, Any], dict[str, Any]]  # the configs of text and image tower
    build: Callable[[], Any]  # the model with any weights
    rename: Callable[[Weights], Weights]  # to OpenCLIP's names; a name that is not the kind's is a KeyError
    tokenizer: Callable[[Any], Any]  # gets the model
    pictures: dict[str, Any]  # settings that the folder may change


def load_transformers(source: str) -> tuple[Any, Any]:
    """A model with weights from a folder or the hub, and its tokenizer.

    A config is judged by its model_type alone; code that it names is never run.
    """
    import open_clip

    folder = find_folder(source)
    config = read_json(folder / CONFIG)
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind not in _PLANS:
        raise refusal(source, f"it is {kind or 'no model'} in transformers, not one of {', '.join(_PLANS)}")
    plan = _PLANS[kind](folder, config, source)
    try:
        weights = plan.rename(read_weights(folder))
        if max(tower["num_hidden_layers"] for tower in plan.towers) > len(weights):
            raise KeyError("more layers than tensors")
        with torch.device("meta"):  # shapes first: a config can ask for more memory than there is
            plan.build().load_state_dict(weights, assign=True)
        model = plan.build()
        model.load_state_dict(weights)
    except (AssertionError, IndexError, KeyError, RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
        raise DearError(
            f"The weights of {source} do not fit its {CONFIG}: both must come from one {plan.made_by}."
        ) from error
    pictures = read_pictures(folder, source, plan.towers[1]["image_size"], plan.pictures)
    open_clip.set_model_preprocess_cfg(model, pictures)
    return model, plan.tokenizer(model)


def _tower_configs(
    config: dict[str, Any], source: str, text: dict[str, Any], vision: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configs of text and image tower; `text`, `vision`: their defaults."""
    check_shape(config, _ModelConfig, f"{CONFIG} of {source}", "save it again with transformers")
    # Older files have other names for these parts, which win if both are there.
    text = text | (config.get("text_config") or {}) | (config.get("text_config_dict") or {})
    vision = vision | (config.get("vision_config") or {}) | (config.get("vision_config_dict") or {})
    if vision["num_channels"] != 3:
        raise DearError(f"{source} can't be used, because its images have {vision['num_channels']} channels, not 3.")
    return text, vision


def _mlp_ratio(tower: dict[str, Any]) -> float:
    return (tower["intermediate_size"] + 0.5) / tower["hidden_size"]  # OpenCLIP and timm round the product down


def _openclip_tower(tower: dict[str, Any]) -> dict[str, Any]:
    """The arguments of OpenCLIP that image and text towers share."""
    return {
        "layers": tower["num_hidden_layers"],
        "width": tower["hidden_size"],
        "mlp_ratio": _mlp_ratio(tower),
        "norm_kwargs": {"eps": tower["layer_norm_eps"]},
    }


def _openclip_text(text: dict[str, Any]) -> dict[str, Any]:
    return {
        **_openclip_tower(text),
        "heads": text["num_attention_heads"],
        "context_length": text["max_position_embeddings"],
        "vocab_size": text["vocab_size"],
    }


def _openclip_vision(vision: dict[str, Any]) -> dict[str, Any]:
    return {
        **_openclip_tower(vision),
        "head_width": vision["hidden_size"] // vision["num_attention_heads"],
        "image_size": vision["image_size"],
        "patch_size": vision["patch_size"],
    }


def _plan_clip(folder: Path, config: dict[str, Any], source: str) -> _Plan:
    """CLIP; or MetaCLIP 2, with a tokenizer of its own, which is read at the first end-of-text token."""
    import open_clip

    own_words = config["model_type"] == "metaclip_2"
    text, vision = towers = _tower_configs(config, source, _CLIP_TEXT, _CLIP_VISION)
    if text["vocab_size"] != _CLIP_WORDS and not own_words:
        raise DearError(f"{source} can't be used, because its vocabulary is not that of CLIP's tokenizer.")
    activations = {text["hidden_act"], vision["hidden_act"]}
    if activations not in ({"quick_gelu"}, {"gelu"}):
        raise DearError(
            f"{source} can't be used, because its activation is {' and '.join(sorted(activations))}: both towers "
            "must have quick_gelu, or both gelu."
        )
    end, context = {"pool_type": "eos", "eos_id": text.get("eos_token_id", 2)}, text["max_position_embeddings"]

    def build() -> Any:
        return open_clip.CLIP(
            embed_dim=config.get("projection_dim", _CLIP_DIM),
            quick_gelu=activations == {"quick_gelu"},
            vision_cfg=_openclip_vision(vision),
            text_cfg=_openclip_text(text) | (end if own_words else {}),
        )

    def tokenizer(_: Any) -> Any:
        if own_words:
            return FolderTokenizer(folder, context, text.get("pad_token_id", 1))
        return open_clip.SimpleTokenizer(context_length=context)

    pictures = {"mean": open_clip.OPENAI_DATASET_MEAN, "std": open_clip.OPENAI_DATASET_STD}
    return _Plan("CLIPModel", towers, build, clip_weights, tokenizer, pictures)


def _plan_chinese(folder: Path, config: dict[str, Any], source: str) -> _Plan:
    """Chinese-CLIP: CLIP's image tower, and a BERT for the text."""
    import open_clip

    text, vision = towers = _tower_configs(config, source, _BERT, _CLIP_VISION)
    if (text["hidden_act"], vision["hidden_act"]) != ("gelu", "quick_gelu"):
        raise DearError(f"{source} can't be used, because its activations are not those of Chinese-CLIP.")
    with needing(f"The text tower of {source} is a BERT", "'dear-vlm[hf]'"):
        import transformers  # noqa: F401 - its BERT

    def build() -> Any:
        """OpenCLIP's CustomTextCLIP around a BERT of these sizes, which its own configs would fetch by name."""
        from open_clip.hf_model import ClsLastHiddenStatePooler, HFTextEncoder
        from open_clip.model import CustomTextCLIP, _build_vision_tower
        from transformers import BertConfig, BertModel

        dim = config.get("projection_dim", _CLIP_DIM)
        model, tower = _empty(CustomTextCLIP), _empty(HFTextEncoder)
        sizes: dict[str, Any] = {key: text[key] or 0 for key in _BERT}
        tower.config = BertConfig(**sizes)
        tower.transformer = BertModel(tower.config, add_pooling_layer=False)
        tower.pooler, tower.proj = ClsLastHiddenStatePooler(), nn.Linear(text["hidden_size"], dim, bias=False)
        tower.output_tokens = model.output_dict = False
        model.visual, model.text = _build_vision_tower(dim, _openclip_vision(vision), quick_gelu=True), tower
        model.logit_scale, model.logit_bias = nn.Parameter(torch.zeros(())), None
        return model

    def tokenizer(model: Any) -> Any:
        context = min(_CHINESE_CONTEXT, text["max_position_embeddings"])
        return FolderTokenizer(folder, context, model.text.config.pad_token_id)

    pictures = {"mean": open_clip.OPENAI_DATASET_MEAN, "std": open_clip.OPENAI_DATASET_STD,
                "interpolation": "bicubic", "resize_mode": "squash"}  # fmt: skip
    return _Plan("ChineseCLIPModel", towers, build, chinese_weights, tokenizer, pictures)


def _plan_siglip(folder: Path, config: dict[str, Any], source: str) -> _Plan:
    """SigLIP: timm's ViT and OpenCLIP's text tower."""
    text, vision = towers = _tower_configs(config, source, _SIGLIP_TEXT, _SIGLIP_VISION)
    for tower in towers:
        if (tower["hidden_act"], tower["layer_norm_eps"]) != (_SIGLIP_ACTIVATION, _SIGLIP_EPS):
            raise DearError(f"{source} can't be used, because its activation or eps is not that of SigLIP.")

    def build() -> Any:
        """OpenCLIP's CustomTextCLIP of these sizes, which its own configs cannot give to a tower of timm."""
        import timm
        from open_clip.model import CustomTextCLIP, _build_text_tower
        from open_clip.timm_model import TimmModel

        model, visual = _empty(CustomTextCLIP), _empty(TimmModel)
        visual.trunk = timm.create_model(
            "vit_base_patch16_siglip_224",
            img_size=vision["image_size"],
            patch_size=vision["patch_size"],
            embed_dim=vision["hidden_size"],
            depth=vision["num_hidden_layers"],
            num_heads=vision["num_attention_heads"],
            mlp_ratio=_mlp_ratio(vision),
            act_layer="gelu_tanh",
            num_classes=0,
            global_pool="map",
        )
        visual.head, visual.image_size = nn.Sequential(), (vision["image_size"],) * 2
        model.visual, model.output_dict = visual, False
        own = {"no_causal_mask": True, "pool_type": "last", "proj_bias": True, "act_kwargs": {"approximate": "tanh"}}
        model.text = _build_text_tower(vision["hidden_size"], _openclip_text(text) | own)
        model.context_length, model.vocab_size = text["max_position_embeddings"], text["vocab_size"]
        model.logit_scale, model.logit_bias = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))
        return model

    def tokenizer(_: Any) -> Any:
        context, pad = text["max_position_embeddings"], text.get("pad_token_id") or 1
        return FolderTokenizer(folder, context, pad, clean="canonicalize")

    pictures = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "interpolation": "bicubic", "resize_mode": "squash"}
    return _Plan("SiglipModel", towers, build, siglip_weights, tokenizer, pictures)


def _empty(kind: Any) -> Any:
    """A module of this class without its parts."""
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    return module


_PLANS: dict[str, Callable[[Path, dict[str, Any], str], _Plan]] = {
    "clip": _plan_clip, "metaclip_2": _plan_clip, "siglip": _plan_siglip, "chinese_clip": _plan_chinese
}  # fmt: skip
