"""Shared by tests of the token methods: a method on a tiny backbone, classes, a batch."""

import torch
from torch import Tensor

from dear.methods.base import Method
from dear.methods.registry import find_method

NAMES = ("cat", "polar bear", "dog", "fire truck", "tabby")
TEMPLATE = "a photo of a {}, a type of thing."
OWN = [f"a photo of a {name}." for name in NAMES]  # the sentence of methods that have their own
GIVEN = [TEMPLATE.format(name) for name in NAMES]


def make(tiny, name: str, dtype=torch.float64, spread: float = 0.2, **settings) -> Method:
    backbone = tiny(quick_gelu=True)
    backbone.model.to(dtype)
    kind = find_method(name)
    own = {key: value for key, value in kind.recipe.settings.items() if key in kind.Config.__dataclass_fields__}
    torch.manual_seed(5)
    method = kind(backbone, kind.Config(**{**own, **settings}))
    with torch.no_grad():  # away from the start, where zeros would hide what is wrong
        for parameter in method.parameters():
            parameter += spread * torch.randn_like(parameter)
    method.set_classes(NAMES, TEMPLATE)
    method.before_training(Named())
    return method.eval()


class Named:
    """The labelled images, as far as these methods use them before training."""

    classes = NAMES


def batch(dtype=torch.float64) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(6, 3, 32, 32, dtype=dtype), torch.tensor([0, 1, 2, 3, 4, 0])
