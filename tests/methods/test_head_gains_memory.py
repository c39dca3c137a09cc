"""Memory of a fit of head gains."""

import pytest
from naive_text import make
from test_head_gains import labelled
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that is computed inside."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.elements = max([self.elements, *(t.numel() for t in tree_leaves(out) if isinstance(t, Tensor))])
        return out


@pytest.mark.parametrize("gains", ["heads", "one"])
def test_what_each_head_writes_is_never_kept_for_all_images(tiny, gains: str) -> None:
    """All of it, [images, heads, width], is 2.4 GB for 1000 classes of 16 images and ViT-B/16."""
    images, labels = labelled(8)
    method = make(tiny, "head-gains", gains=gains)
    tower = method.backbone.image
    seen = tower.head_outputs(images, method.heads_from)
    with Largest() as largest:
        method.fit(seen, labels)
    assert (method.gains - 1).abs().max() > 1e-3
    assert seen.outputs.numel() <= largest.elements < method.gains.numel() * len(images) * tower.width
