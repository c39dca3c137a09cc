"""What the modules of an OpenCLIP model are: whether their layers are known here, and how they compute."""

from typing import Any

from torch import nn

from dear.clip.features import FeatureImage
from dear.clip.image import ImageTower
from dear.clip.timm_tower import TimmTower, why_called


def image_tower(model: Any, image_size: tuple[int, int]) -> ImageTower:
    """The image tower of an OpenCLIP model: by its layers where they are known, else as a whole."""
    from open_clip.timm_model import TimmModel
    from open_clip.transformer import VisionTransformer

    visual = model.visual
    if type(visual) is TimmModel and why_called(visual) is None:
        return TimmTower(visual)
    is_read = type(visual) is VisionTransformer and visual.attn_pool is None and visual.pool_type in ("tok", "avg")
    if is_read and has_plain_blocks(visual.transformer.resblocks):
        return ImageTower(visual)
    return FeatureImage(model, image_size)


def reads_eot(text: Any) -> bool:
    """Whether a text tower (`model.text`, or the model itself) is OpenCLIP's, causal, and read at the end of text."""
    blocks = getattr(getattr(text, "transformer", None), "resblocks", None)
    pool = getattr(text, "text_pool_type", None) or getattr(text, "pool_type", None)
    return (
        blocks is not None
        and pool in ("argmax", "eos")
        and getattr(text, "cls_emb", None) is None
        and getattr(text, "attn_mask", None) is not None
        and has_plain_blocks(blocks)
    )


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


def activation_of(model: Any) -> str:
    """gelu, quick_gelu or gelu_tanh of the image tower; "image/text" where the text tower has another."""
    kinds = [
        _activation(tower) for tower in (model.visual, getattr(model, "text", getattr(model, "transformer", model)))
    ]
    known = [kind for kind in kinds if kind]
    return "/".join(dict.fromkeys(known)) or "none"


def _activation(tower: Any) -> str | None:
    """Of the first layer that has one."""
    from open_clip.transformer import QuickGELU

    for module in tower.modules():
        if isinstance(module, nn.GELU):
            return "gelu" if module.approximate == "none" else "gelu_tanh"
        if isinstance(module, QuickGELU):
            return "quick_gelu"
    return None
