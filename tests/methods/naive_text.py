"""Text-side methods the slow, readable way: all 77 places of every class, all layers, textbook attention."""

from collections.abc import Callable, Sequence
from functools import cache

import peers_naive
import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip import Backbone
from dear.methods.base import Method
from dear.methods.registry import find_method

NAMES = ("cat", "polar bear", "dog", "fire truck", "red-haired ape")
TEMPLATE = "a picture of a {}, a type of thing."
PIXELS, LABELS = (8, 3, 32, 32), torch.tensor([0, 1, 2, 3, 4, 0, 1, 2])


def frozen_text(model, tokenizer, sentences: Sequence[str]) -> Tensor:
    with torch.no_grad():
        return model.encode_text(tokenizer(sentences), normalize=True)


def frozen_image(model, pixels: Tensor) -> Tensor:
    with torch.no_grad():
        return model.encode_image(pixels, normalize=True)


def cosine_distance(text: Tensor, frozen: Tensor) -> Tensor:
    return 1 - F.cosine_similarity(text, frozen, dim=-1).mean()


# --- methods to compare with ---------------------------------------------------------------------------------


@cache
def frozen_backbone(tiny: Callable[..., Backbone], dtype: torch.dtype) -> Backbone:
    """One for all tests: no method changes it."""
    backbone = tiny(quick_gelu=True)
    backbone.model.to(dtype)
    return backbone


def make(tiny: Callable[..., Backbone], name: str, dtype=torch.float64, spread: float = 0.3, **settings) -> Method:
    backbone = frozen_backbone(tiny, dtype)
    kind = find_method(name)
    torch.manual_seed(5)
    method = kind(backbone, kind.Config(**settings))
    with torch.no_grad():  # away from the start, where gradients could vanish by symmetry
        for parameter in method.parameters():
            parameter += spread * torch.randn_like(parameter)
    method.set_classes(NAMES, TEMPLATE)
    return method


def pixels(dtype=torch.float64) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(*PIXELS, dtype=dtype)


def slow_text(method: Method, sentence: str, learned: Tensor, slots: list[int], deeper=None) -> Tensor:
    """Normalised, [classes, dim]: `learned` [tokens, width] in the place of the words at `slots`; deeper: layer, from 1
    -> [classes, tokens, width], what the states there are overwritten with."""
    model, sentences = method.backbone.model, [sentence.format(name) for name in NAMES]
    tokens = {1: learned + model.positional_embedding[slots], **(deeper or {})}
    return F.normalize(peers_naive.text(model, method.backbone.text.tokenizer, sentences, tokens, slots), dim=-1)


def template_text(method: Method) -> Tensor:
    sentences = [TEMPLATE.format(name) for name in NAMES]
    return frozen_text(method.backbone.model, method.backbone.text.tokenizer, sentences)


def slow_logits(method: Method, images: Tensor, text: Tensor) -> Tensor:
    model = method.backbone.model
    return model.logit_scale.exp() * frozen_image(model, images) @ text.T
