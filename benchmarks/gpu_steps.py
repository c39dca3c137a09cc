"""Kernels, host waits and casts of frozen weights in one training step on a pretended GPU, before and after.

    python benchmarks/gpu_steps.py [--methods dear coop] [--before COMMIT]

No GPU is needed: `tests/pretended_gpu.py` counts the operations that one would run. They do not depend on sizes, so
the towers have the layers of ViT-B and tiny widths; random weights, 37 classes, bf16, the training loop. "plain" is
OpenCLIP's own forward and backward of both towers under autocast. `--before` runs this file on the tree of a commit, in
a worktree that is removed again, and prints both columns; 5592773 is the last commit whose steps waited.
"""

import argparse
import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import open_clip
import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip import wrap
from dear.core.names import CORE_ATTRIBUTES
from dear.core.table import Table
from dear.heads.head_role import HeadRole
from dear.heads.role_map import RoleMap
from dear.methods.registry import find_method
from dear.training.config import TrainConfig
from dear.training.loop import train_epochs

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))
from pretended_gpu import Gpu, pretend_gpu  # noqa: E402

METHODS = ("dear", "experts", "maple", "mmrl", "coop")
STEPS, BATCH, CLASSES = 4, 2, 37
Counts = dict[str, int]


class Batches:
    """Batches that note the counters of the device whenever the loop asks for the next."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.steps = gpu, list[Counts]()
        self.pixels, self.labels = torch.randn(BATCH, 3, 32, 32), torch.arange(BATCH)

    def __len__(self) -> int:
        return STEPS

    def epoch(self, _: int) -> "Batches":
        return self

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(STEPS):
            self.gpu.reset()
            yield self.pixels.pin_memory(), self.labels.pin_memory()
            self.steps.append(counts(self.gpu))


def counts(gpu: Gpu) -> Counts:
    return {"kernels": gpu.kernels, "waits": sum(gpu.waits.values()), "casts": gpu.casts}


def towers() -> Any:
    """OpenCLIP's ViT-B with tiny widths, on the GPU."""
    torch.manual_seed(0)
    vision = {"image_size": 32, "patch_size": 8, "layers": 12, "width": 48, "head_width": 12}
    text = {"context_length": 77, "vocab_size": 49408, "layers": 12, "width": 32, "heads": 4}
    model = open_clip.CLIP(embed_dim=32, vision_cfg=vision, text_cfg=text)
    open_clip.set_model_preprocess_cfg(model, {"size": 32, "mean": (0.5,) * 3, "std": (0.25,) * 3})
    return model.to("cuda")


def build(name: str) -> Any:
    kind: Any = find_method(name)
    # Before a backbone had a precision, the loop cast its weights.
    half = {"precision": torch.bfloat16} if "precision" in inspect.signature(wrap).parameters else {}
    backbone = wrap(towers(), open_clip.SimpleTokenizer(), "tiny", **half)
    if name not in ("dear", "experts"):
        return kind(backbone, kind.Config())
    kinds = [HeadRole("core_attribute", a) for a in CORE_ATTRIBUTES] + [HeadRole("mixed"), HeadRole("generalization")]
    layers, heads = range(9, 13), backbone.image.heads
    roles = {(layer, head): kinds[(layer + head) % 7] for layer in layers for head in range(heads)}
    identity = backbone.identity.to_json()
    return kind(
        backbone, kind.Config(), RoleMap(identity, tuple(layers), heads, CORE_ATTRIBUTES, CORE_ATTRIBUTES, roles)
    )


def of_method(name: str) -> Counts:
    """The third step of an epoch: constants are computed, and losses not yet read."""
    with pretend_gpu() as gpu, tempfile.TemporaryDirectory() as folder:
        method = build(name)
        gpu.watch(method.backbone.model)
        method.set_classes([f"class {number}" for number in range(CLASSES)], "a photo of a {}.")
        batches = Batches(gpu)
        more = {"steps": STEPS} if "steps" in inspect.signature(train_epochs).parameters else {}
        config = TrainConfig(precision="bf16", epochs=1, device="cuda")
        train_epochs(method, batches, config, epochs=1, out=Path(folder), **more)
        return batches.steps[2]


def of_plain() -> Counts:
    with pretend_gpu() as gpu:
        clip = towers()
        texts = open_clip.SimpleTokenizer()([f"a photo of a class {n}." for n in range(CLASSES)]).to("cuda")
        pixels, labels = torch.randn(BATCH, 3, 32, 32).to("cuda"), torch.arange(BATCH).to("cuda")
        gpu.reset()
        with torch.autocast("cuda", torch.bfloat16):
            image, text = clip.encode_image(pixels, normalize=True), clip.encode_text(texts, normalize=True)
            logits = clip.logit_scale.exp() * image @ text.T
        F.cross_entropy(logits.float(), labels).backward()
        return counts(gpu)


def measure(methods: list[str]) -> dict[str, Counts]:
    runs: dict[str, Callable[[], Counts]] = {name: lambda name=name: of_method(name) for name in methods}  # type: ignore
    return {name: run() for name, run in {**runs, "plain": of_plain}.items()}


def measure_at(commit: str, methods: list[str]) -> dict[str, Counts]:
    """The same in the tree of a commit, which is given this file and the pretended GPU."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "before"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", str(tree), commit], check=True, capture_output=True)
        try:
            for name in ("benchmarks/gpu_steps.py", "tests/pretended_gpu.py"):
                (tree / name).write_text((ROOT / name).read_text())
            command = [sys.executable, str(tree / "benchmarks/gpu_steps.py"), "--json", "--methods", *methods]
            environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
            return json.loads(done.stdout.splitlines()[-1])
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--before", metavar="COMMIT")
    parser.add_argument("--json", action="store_true", help="print the counts alone")
    args = parser.parse_args()
    after = measure(args.methods)
    if args.json:
        print(json.dumps(after))
        return
    before = measure_at(args.before, args.methods) if args.before else {}
    columns = ("kernels", "waits", "casts")
    table = Table(["step", *(f"{name}, {when}" for when in ["before"] * bool(before) + ["after"] for name in columns)])
    for name, found in after.items():
        rows = [before[name], found] if before else [found]
        table.add(name, *(row[column] for row in rows for column in columns))
    print(table.text())


if __name__ == "__main__":
    main()
