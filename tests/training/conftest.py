"""A small DeAR, and what a store of images computes."""

from collections.abc import Callable

import pytest
import torch

from dear.clip import Backbone
from dear.data.resolve import resolve_dataset
from dear.methods.dear import Dear, DearConfig
from dear.training.store import ImageStore
from small_models import each_role


@pytest.fixture(scope="module", autouse=True)
def _few(few_test_pictures):
    pass


@pytest.fixture
def model(tiny: Callable[..., Backbone]) -> Dear:
    backbone = tiny()
    torch.manual_seed(0)
    dear = Dear(backbone, DearConfig(first_layer=3), each_role(backbone, (3, 4)))
    data = resolve_dataset("world:colors")
    dear.set_classes(data.classes, data.template)
    return dear


@pytest.fixture
def computed(monkeypatch) -> list[torch.Tensor]:
    """The pixels of each image that a store computes, [1, 3, height, width]."""
    seen: list[torch.Tensor] = []
    compute = ImageStore._compute
    monkeypatch.setattr(
        ImageStore, "_compute", lambda self, pixels, *a: seen.append(pixels) or compute(self, pixels, *a)
    )
    return seen
