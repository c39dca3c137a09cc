"""Recognises the modules of an OpenCLIP model: by their layers where these are known, else as a whole."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip.features import FeatureImage, FeatureText
from dear.clip.image import ImageTower
from dear.clip.read_out import is_known_pool
from dear.clip.text import CocaText, TextTower
from dear.clip.timm_tower import TimmTower, why_called
from dear.clip.whole_text import WholeText, WordsText


def image_tower(model: Any, image_size: tuple[int, int]) -> ImageTower:
    """The image tower of an OpenCLIP model: by its layers where they are known, else as a whole."""
    from open_clip.timm_model import TimmModel
    from open_clip.transformer import VisionTransformer

    visual = model.visual
    if type(visual) is TimmModel and why_called(visual) is None:
        return TimmTower(visual)
    if type(visual) is VisionTransformer and has_plain_blocks(visual.transformer.resblocks):
        is_read = is_known_pool(visual) if visual.attn_pool is not None else visual.pool_type in ("tok", "avg")
        if is_read:
            return ImageTower(visual)
    return FeatureImage(model, image_size)


def text_side(model: Any, tokenizer: Callable[..., Tensor]) -> TextTower | FeatureText:
    """The text tower of an OpenCLIP model: packed where it is causal, whole where it sees padding, or called."""
    text = getattr(model, "text", model)
    if type(text).__name__ == "HFTextEncoder":
        return WordsText(model, tokenizer)
    blocks = getattr(getattr(text, "transformer", None), "resblocks", None)
    # In a model without a tower of its own for text, the names begin with text_.
    pool, end = (getattr(text, f"text_{name}", None) or getattr(text, name, None) for name in ("pool_type", "eos_id"))
    if blocks is None or not has_plain_blocks(blocks):
        return FeatureText(model, tokenizer)
    if getattr(text, "cls_emb", None) is not None:
        known = text.attn_mask is not None and not getattr(text, "correct_cls_mask", False)
        return CocaText(text, tokenizer) if known else FeatureText(model, tokenizer)
    if getattr(text, "attn_mask", None) is None and pool in ("argmax", "eos", "last", "first"):
        return WholeText(text, tokenizer, pool, end)
    if pool in ("argmax", "eos"):
        return TextTower(text, tokenizer, end if pool == "eos" else None)
    return FeatureText(model, tokenizer)


def has_plain_blocks(blocks: Any) -> bool:
    """Whether all blocks are OpenCLIP's ResidualAttentionBlock, whose parameters the towers use."""
    from open_clip.transformer import ResidualAttentionBlock

    return all(type(block) is ResidualAttentionBlock and _is_plain(block.attn) for block in blocks)


def _is_plain(attn: Any) -> bool:
    """Torch's attention; or OpenCLIP's own, which took its place in version 4, with everything optional left out."""
    if type(attn) is nn.MultiheadAttention:
        return True
    identities = all(isinstance(getattr(attn, name, None), nn.Identity) for name in ("ln_q", "ln_k", "ln_inner"))
    nothing = object()
    without = all(getattr(attn, name, nothing) is None for name in ("logit_scale", "head_scale"))
    return type(attn).__name__ == "Attention" and identities and without and attn.in_proj_weight is not None


@torch.no_grad()
def why_different(model: Any, image: ImageTower, text: Any) -> str | None:
    """A sentence if features of a grey picture, or of one word, are not the model's own; None: they are.

    Costs two pictures; a newer version of OpenCLIP or timm could change what a known module computes.
    """
    reason = "its {} tower computes something else than this version of dear knows"
    like = image.like
    if like.is_meta or like.dtype not in (torch.float32, torch.float64):
        return None
    grey = like.new_zeros(1, 3, *image.image_size)
    if image.tier == "full" and not _same(image.encode(grey), model.encode_image(grey, normalize=False)):
        return reason.format("image")
    if text.tier == "full":
        words = text.tokenizer(["a"]).to(like.device)
        if int(words.max()) >= text.module.token_embedding.num_embeddings:
            return "its tokenizer has more words than its text tower"
        if not _same(text.encode(["a"]), model.encode_text(words, normalize=False)):
            return reason.format("text")
    return None


def _same(mine: Tensor, theirs: Tensor) -> bool:
    mine, theirs = F.normalize(mine, dim=-1), F.normalize(theirs, dim=-1)
    return torch.allclose(mine, theirs, rtol=0, atol=1e-3, equal_nan=True)


def activation_of(model: Any) -> str:
    """gelu, quick_gelu or gelu_tanh of the image tower; "image/text" where the text tower has another."""
    kinds = [
        _activation(tower) for tower in (model.visual, getattr(model, "text", getattr(model, "transformer", model)))
    ]
    known = [kind for kind in kinds if kind]
    return "/".join(dict.fromkeys(known)) or "none"


def _activation(tower: Any) -> str | None:
    """Activation of the first layer that has one."""
    from open_clip.transformer import QuickGELU

    for module in tower.modules():
        if isinstance(module, nn.GELU):
            return "gelu" if module.approximate == "none" else "gelu_tanh"
        if isinstance(module, QuickGELU):
            return "quick_gelu"
    return None
