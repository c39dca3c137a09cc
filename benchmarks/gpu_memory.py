"""Memory of a training step on a GPU, derived without one: weights, and what backward keeps of the activations.

    python benchmarks/gpu_memory.py [--model ViT-B-16] [--methods dear coop]

What is kept is linear in the number of images and of classes, so steps of one and two images, and of 8 and 16 classes,
are run on the pretended GPU in bf16, and extrapolated to the method's own batch and to 37 and 1000 classes. With many
classes the text blocks are checkpointed: only their inputs are kept, and one block is computed again at a time. Not in
it: the CUDA context and its libraries (about half a GiB), and memory that the allocator holds back.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dear.clip import load_backbone
from dear.clip.text import _MANY
from dear.core.table import Table
from dear.methods.optional import views_of
from dear.methods.registry import find_method, recipe_of
from dear.training.config import TrainConfig

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from pretended_gpu import GpuTensor, pretend_gpu

METHODS = ("dear", "experts", "coop", "maple", "mmrl", "clip-lora", "skipt")
WORDS = ["cat", "red fox", "fire truck", "golden retriever", "church", "grand piano", "lemon", "tabby cat"]


def weight_bytes(tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def kept(method: Any, batch: int, classes: int) -> tuple[int, int]:
    """Bytes that backward keeps besides weights, and the number of packed text tokens."""
    method.set_classes([f"{WORDS[i % 8]} {i}" for i in range(classes)], "a photo of a {}.")
    weights = [*method.backbone.model.parameters(), *method.parameters()]
    own = {w.values.untyped_storage().data_ptr() for w in weights if isinstance(w, GpuTensor)}
    storages: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        storage = x.values.untyped_storage() if isinstance(x, GpuTensor) else x.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage.nbytes()
        return x

    size = method.backbone.image.image_size
    pixels = torch.randn(batch * len(views_of(method)), 3, *size).to("cuda")
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss = method.loss(method.layer_input(pixels), torch.arange(batch).to("cuda"))
    total = sum(storages.values())
    del loss
    return total, len(method.classes.prompts.ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="ViT-B-16-quickgelu")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    args = parser.parse_args()
    table = Table(["method", "batch", "weights", "37 classes", "1000 classes"])
    with pretend_gpu():
        backbone = load_backbone(args.model, random_weights=True, device="cuda", precision="bf16")
        text = backbone.text
        for name in args.methods:
            kind: Any = find_method(name)
            settings = {"roles": "paper"} if name in ("dear", "experts") else {}
            method = kind(backbone, kind.Config(**settings))
            one, _ = kept(method, 1, 8)
            per_image = kept(method, 2, 8)[0] - one
            more, tokens = kept(method, 1, 16)
            per_class = (more - one) / 8
            batch = TrainConfig.pick(recipe_of(name)).batch
            weights = weight_bytes(backbone.model.parameters()) + 4 * weight_bytes(method.parameters())  # and AdamW's
            totals = []
            for classes in (37, 1000):
                activations = one + (batch - 1) * per_image + (classes - 8) * per_class
                if tokens / 16 * classes > _MANY and per_class:
                    inputs = tokens / 16 * classes * text.width * 4 * text.layers
                    activations = one + (batch - 1) * per_image + inputs + (classes - 8) * per_class / text.layers
                totals.append((weights + activations) / 2**30)
            table.add(name, batch, f"{weights / 2**30:.2f}", *(f"{total:.1f} GiB" for total in totals))
    print(table.text())


if __name__ == "__main__":
    main()
