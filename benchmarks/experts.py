"""A training step of expert tokens, and of DeAR with all heads isolated, against one of DeAR, in one run, as ratios.

    python benchmarks/experts.py [--classes 37] [--steps 3]

Shapes of ViT-B/16 with random weights, batch 16, fp32, the 28 heads that the paper's table gives to attributes. Kept
for DeAR are the states before layer 9, for the other two what they read.
"""

import argparse
import time
from collections.abc import Callable

import torch

from dear.clip import load_backbone
from dear.clip.layer_input import CachedStates, Images, LayerInput
from dear.core.table import Table
from dear.methods.dear import Dear, DearConfig
from dear.methods.experts import Experts, ExpertsConfig
from training import interleaved  # beside this file

BATCH, CLASSES = 16, 37


def cached_input(method: Dear, states: CachedStates) -> Images:
    """What is cached for the method: keys and values where the whole tower is constant."""
    if method.masks.visible_heads is None:
        return states
    tower = method.backbone.image
    return tower.cached_kv(tower.layer_input(states, method.first_layer), method.masks)


def step(method: Dear, images: Images, labels: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(method.parameters(), lr=1e-3)

    def once() -> None:
        loss = method.loss(method.layer_input(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.total.backward()
        optimizer.step()

    return once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=CLASSES)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    torch.manual_seed(0)
    backbone = load_backbone("ViT-B-16-quickgelu", random_weights=True)
    tower = backbone.image
    pixels, labels = torch.randn(BATCH, 3, *tower.image_size), torch.randint(args.classes, (BATCH,))
    began = time.perf_counter()
    states = tower.trunk(pixels, 8)
    with torch.no_grad():
        cached = CachedStates(states, tower.cls_state(LayerInput(tower, 9, states)))
    encoding = time.perf_counter() - began
    methods = {
        "dear": Dear(backbone, DearConfig(roles="paper")),
        "dear, all heads isolated": Dear(backbone, DearConfig(roles="paper", role_strategy="all_generalization")),
        "experts": Experts(backbone, ExpertsConfig(roles="paper")),
    }
    runs = {}
    for name, method in methods.items():
        method.set_classes([f"kind {i}" for i in range(args.classes)], "a photo of a {}.")
        runs[name] = step(method, cached_input(method, cached), labels)
    best = dict(zip(runs, interleaved(args.steps, *runs.values()), strict=True))
    table = Table(["training step on kept states", "s", "dear / this", "of encoding the batch"])
    for name, seconds in best.items():
        table.add(name, f"{seconds:.3f}", f"{best['dear'] / seconds:.1f}x", f"{seconds / encoding:.2f}")
    print(table.text())


if __name__ == "__main__":
    main()
