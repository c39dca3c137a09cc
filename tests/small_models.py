"""Small models of the true classes of each family: timm's own constructors at small sizes, noise on all weights."""

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import open_clip
import timm
import torch
from safetensors.torch import save_file
from timm.models import register_model

from dear.clip import Backbone, wrap
from dear.core.names import CORE_ATTRIBUTES
from dear.heads.head_role import HeadRole
from dear.heads.role_map import RoleMap

TEXT = {"context_length": 20, "vocab_size": 49408, "layers": 3, "width": 32, "heads": 4}
_SIZES = {"img_size": 64, "embed_dim": 48, "depth": 3, "num_heads": 4}
_simple_tokenizer = lru_cache(open_clip.SimpleTokenizer)  # reading its vocabulary takes longer than building a model


def _register(name: str, of: str, **sizes: Any) -> str:
    """A small form of a timm model, under a name that OpenCLIP's configs can use."""

    def build(pretrained: bool = False, **options: Any) -> Any:
        return timm.create_model(of, pretrained=False, **{**sizes, **options})

    build.__name__, build.__module__ = name, __name__
    register_model(build)
    return name


def _timm(name: str, of: str, pool: str, proj: str | None, **sizes: Any) -> dict[str, Any]:
    size = sizes.get("img_size", 224)
    return {
        "timm_model_name": _register(name, of, **sizes),
        "timm_pool": pool,
        "timm_proj": proj,
        "image_size": size,
    }


class WordTokenizer:
    """Words as ids, cut as Hugging Face's tokenizers cut: the end stays.

    SigLIP's kind pads with its end token and has no token before the words; CLIPA's kind has one, and ends in zeros.
    """

    def __init__(self, context_length: int, begin: int | None = None, end: int = 1) -> None:
        self.context_length, self.begin, self.end, self.pad = context_length, begin, end, end

    def __call__(self, texts: list[str], context_length: int | None = None) -> torch.Tensor:
        size = context_length or self.context_length
        rows = []
        for text in texts:
            words = [4 + sum(map(ord, word)) % 400 for word in text.lower().replace(".", "").split()]
            ids = ([self.begin] if self.begin is not None else []) + words
            ids = [*ids[: size - 1], self.end]
            rows.append(ids + [self.pad] * (size - len(ids)))
        return torch.tensor(rows)


WHOLE = {
    "SigLIP": ({"no_causal_mask": True, "pool_type": "last", "proj_bias": True, "norm_kwargs": {"eps": 1e-6},
                "act_kwargs": {"approximate": "tanh"}}, WordTokenizer(20)),
    "SigLIP i18n": ({"no_causal_mask": True, "pool_type": "last", "proj_type": "none", "width": 24}, WordTokenizer(20)),
    "CLIPA": ({"no_causal_mask": True, "pool_type": "last"}, WordTokenizer(20, begin=2, end=0)),
    "MobileCLIP2-L": ({"no_causal_mask": True}, open_clip.SimpleTokenizer(context_length=20)),
}  # fmt: skip
"""Text towers that see padding: settings, and a tokenizer of their kind."""

VISION = {
    "plain": {"layers": 3, "width": 48, "head_width": 12, "patch_size": 16, "image_size": 64},
    "CLIPA": {
        "layers": 3, "width": 48, "head_width": 12, "patch_size": 16, "image_size": 64, "no_ln_pre": True,
        "pool_type": "avg", "final_ln_after_pool": True,
    },
    "CoCa": {
        "layers": 3, "width": 48, "head_width": 12, "patch_size": 16, "image_size": 64, "attentional_pool": True,
        "attn_pooler_queries": 5, "attn_pooler_heads": 4,
    },
    "SigLIP": _timm("vit_small_siglip", "vit_base_patch16_siglip_224", "map", "none", **_SIZES),
    "PE-Core": _timm("vit_small_pe", "vit_pe_core_base_patch16_224", "map", None, **_SIZES),
    "PE-Core bigG": _timm(
        "vit_small_pe_gigantic", "vit_pe_core_gigantic_patch14_448", "map", None, **{**_SIZES, "img_size": 56}
    ),
    "EVA01": _timm("eva_small", "eva_giant_patch14_224", "token", None, **{**_SIZES, "img_size": 56}),
    "EVA02-B": _timm("eva02_small", "eva02_base_patch16_clip_224", "token", None, **_SIZES),
    "EVA02-E": _timm(
        "eva02_small_enormous", "eva02_enormous_patch14_clip_224", "token", None, **{**_SIZES, "img_size": 56}
    ),
    "MobileCLIP2-L": _timm("vit_small_clip", "vit_large_patch14_clip_224", "token", None, **{**_SIZES, "img_size": 56}),
    "gap": _timm("vit_small_gap", "vit_medium_patch16_gap_256", "avg", "linear", **_SIZES),
}  # fmt: skip
STEMS = {  # their stems fix width and size: only the depth can shrink
    "MobileCLIP-B": _timm("vit_small_mci", "vit_base_mci_224", "token", None, depth=2),
    "ViTamin": _timm("vitamin_small_one", "vitamin_small_224", "avg", "linear", depth=2),
}


_PLAIN = {"layers": 2, "width": 32, "head_width": 8, "patch_size": 16, "image_size": 64}
CALLED = {
    "ResNet": {"layers": [1, 1, 1, 1], "width": 8, "image_size": 64, "patch_size": None},
    "ConvNeXt": {
        "timm_model_name": "convnext_atto", "timm_pool": "", "timm_proj": "linear", "image_size": 64,
    },
    "attention pool": {**_PLAIN, "attentional_pool": True, "attn_pooler_queries": 4, "pool_type": "avg"},
    "custom blocks": {**_PLAIN, "scale_attn_inner": True},
}  # fmt: skip
"""Image towers that are called as a whole."""


def shaken(model: torch.nn.Module) -> torch.nn.Module:
    """The model with noise on all weights: fresh biases and scales are near zero or one, and would hide errors."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def config_of(family: str, **text: Any) -> dict[str, Any]:
    vision = {**VISION, **STEMS, **CALLED}[family]
    text = {"scale_heads": True, **text} if family == "custom blocks" else text
    dim = 48 if family == "SigLIP" else 24
    config = {"embed_dim": dim, "vision_cfg": dict(vision), "text_cfg": {**TEXT, **text}}
    return config | ({"init_logit_bias": -10.0} if family == "SigLIP" else {})


def small(family: str, seed: int = 0, tokenizer: Any = None, **text: Any) -> Backbone:
    """A backbone of the family, in fp64."""
    torch.manual_seed(seed)
    config = config_of(family, **text)
    kind = open_clip.CustomTextCLIP if text else open_clip.CLIP
    model = shaken(kind(**config)).double()
    return wrap(model, tokenizer or _simple_tokenizer(context_length=20), family)


def called(family: str) -> Backbone:
    """A backbone whose image tower is called as a whole, in fp32."""
    torch.manual_seed(0)
    model = shaken(open_clip.CLIP(**config_of(family)))
    return wrap(model, open_clip.SimpleTokenizer(context_length=20), family)


def of_hugging_face(config: Any, pooler: str, projection: str, folder: Path) -> tuple[Backbone, dict[str, Any]]:
    """A backbone with a text tower of transformers, whose config is saved to the folder, and its own config."""
    config.save_pretrained(folder)
    text = {"hf_model_name": str(folder), "hf_model_pretrained": False, "hf_pooler_type": pooler,
            "hf_proj_type": projection, "context_length": 20}  # fmt: skip
    arguments = {"embed_dim": 24, "vision_cfg": dict(VISION["plain"]), "text_cfg": text}
    tokenizer = WordTokenizer(20, begin=None if config.model_type == "mt5" else 2, end=3)
    tokenizer.pad = config.pad_token_id
    torch.manual_seed(0)
    return wrap(shaken(open_clip.CustomTextCLIP(**arguments)), tokenizer, config.model_type), arguments


def save_model(folder: Path, config: Mapping[str, Any], model: torch.nn.Module, **pictures: Any) -> Path:
    """The folder of `--model local-dir:FOLDER`."""
    folder.mkdir(exist_ok=True)
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": pictures}))
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / "open_clip_model.safetensors")
    return folder


def each_role(backbone: Backbone, layers: tuple[int, ...] = (2, 3)) -> RoleMap:
    """A role map of layers with four heads each: color, shape, mixed and generalization."""
    kinds = [HeadRole("core_attribute", "color"), HeadRole("core_attribute", "shape"), HeadRole("mixed")]
    kinds.append(HeadRole("generalization"))
    roles = {(layer, head): kinds[(head + layer) % 4] for layer in layers for head in range(4)}
    return RoleMap(backbone.identity.to_json(), layers, 4, CORE_ATTRIBUTES, CORE_ATTRIBUTES, roles)
