"""The first view: what is it, what did each component say, and where did it look."""

from typing import Any

import numpy as np
from PIL import Image

from dear.data.dataset import Example
from dear.data.resolve import resolve_dataset
from dear.model.explain import as_seen
from dear.model.predictor import Predictor
from dear.server.model_thread import OnModel
from dear.server.page.pictures import data_url

_SIZE = 320  # pixels of a picture with an attention map
_EXAMPLES = 8


def classify(predictor: Predictor, picture: Image.Image, on_model: OnModel) -> dict[str, Any]:
    """The answer with its votes, and the picture as the model saw it under each component's attention."""
    pixels = predictor.pixels([picture]).to(predictor.model.backbone.device)
    answer, attention = on_model(
        lambda: (predictor.predict_batch(pixels, topk=5)[0], predictor.model.attention_maps(pixels))
    )
    seen = Image.fromarray((255 * as_seen(predictor, pixels[0])).round().astype(np.uint8))
    roles = predictor.model.roles
    maps = [
        {
            "attribute": name,
            "heads": len(roles.heads_for(name)) if roles and name in roles.core else None,
            "image": data_url(attention_overlay(seen, values[0].float().cpu().numpy()), _SIZE),
        }
        for name, values in attention.items()
    ]
    return {**answer.to_json(), "seen": data_url(seen, _SIZE), "maps": maps}


def attention_overlay(picture: Image.Image, attention: np.ndarray) -> Image.Image:
    """The picture in grey under a map [rows, columns] in the colours of heat, dark to bright from least to most."""
    from matplotlib import colormaps

    size = (_SIZE, round(_SIZE * picture.height / picture.width))
    low, high = float(attention.min()), float(attention.max())
    scaled = (attention - low) / (high - low) if high > low else np.zeros_like(attention)
    smooth = Image.fromarray(scaled.astype(np.float32)).resize(size, Image.Resampling.BICUBIC)
    heat = colormaps["inferno"](np.asarray(smooth).clip(0, 1))[..., :3]
    grey = np.asarray(picture.convert("L").resize(size, Image.Resampling.LANCZOS), dtype=np.float32)[..., None] / 255
    mixed = 0.38 * (0.25 + 0.6 * grey) + 0.62 * heat
    return Image.fromarray((255 * mixed).round().clip(0, 255).astype(np.uint8))


def world_examples(data: str, classes: tuple[str, ...]) -> list[tuple[Example, str]]:
    """Test pictures of a task of Attribute World, with what they show, from all over the classes that are answered."""
    dataset = resolve_dataset(data)
    names = [(example, dataset.classes[example.label]) for example in dataset.test]
    known = [(example, name) for example, name in names if name in classes]
    # Half a step in: each picture is from the middle of its part of the list.
    count = min(_EXAMPLES, len(known))
    return [known[(2 * i + 1) * len(known) // (2 * count)] for i in range(count)]
