"""The first view: the class of an image, what decided for it, and where the model looked."""

from typing import Any

import numpy as np
from PIL import Image

from dear.core.figure import color_of
from dear.core.names import CLS
from dear.core.sheet import thumbnail_url
from dear.core.words import counted
from dear.methods.base import Method
from dear.methods.experts import REST
from dear.methods.optional import HasRoles
from dear.methods.shared.attention_maps import read_place
from dear.methods.shared.role_settings import attribute_heads
from dear.model.explain import as_seen, explained
from dear.model.predictor import Predictor
from dear.server.model_thread import OnModel

_SIZE = 320  # pixels of a picture with an attention map


def classify(predictor: Predictor, picture: Image.Image, on_model: OnModel) -> dict[str, Any]:
    """The answer with its votes, and the picture as the model saw it under each component's attention."""
    pixels = predictor.preprocess(picture)[None].to(predictor.model.backbone.device)
    answer, attention = on_model(lambda: (explained(predictor, pixels, topk=5), predictor.model.attention_maps(pixels)))
    seen = Image.fromarray((255 * as_seen(predictor, pixels[0])).round().astype(np.uint8))
    maps = [
        {
            "component": name,
            "color": color_of(name),
            "heads": heads_in_words(predictor.model, name),
            "image": thumbnail_url(attention_overlay(seen, values[0].float().cpu().numpy()), _SIZE),
        }
        for name, values in attention.items()
    ]
    return {**answer.to_json(), "seen": thumbnail_url(seen, _SIZE), "maps": maps}


def heads_in_words(model: Method, component: str) -> str:
    """The heads whose attention is shown for a component, as the page says it."""
    if component == REST:
        return "in all heads without a core attribute"
    if component == CLS:
        return read_place(model.backbone.image)
    heads = model.roles.heads_for(component) if isinstance(model, HasRoles) else attribute_heads(model)[component]
    return f"in its {counted(len(heads), 'head')}" if heads else "in all heads: it has none of its own"


def attention_overlay(picture: Image.Image, attention: np.ndarray) -> Image.Image:
    """The picture in grey under a heat map of attention [rows, columns], from dark (least) to bright (most)."""
    from matplotlib import colormaps

    size = (_SIZE, round(_SIZE * picture.height / picture.width))
    low, high = float(attention.min()), float(attention.max())
    scaled = (attention - low) / (high - low) if high > low else np.zeros_like(attention)
    smooth = Image.fromarray(scaled.astype(np.float32)).resize(size, Image.Resampling.BICUBIC)
    heat = colormaps["inferno"](np.asarray(smooth).clip(0, 1))[..., :3]
    grey = np.asarray(picture.convert("L").resize(size, Image.Resampling.LANCZOS), dtype=np.float32)[..., None] / 255
    mixed = 0.38 * (0.25 + 0.6 * grey) + 0.62 * heat
    return Image.fromarray((255 * mixed).round().clip(0, 255).astype(np.uint8))
