"""A training step and inference against the published way of writing them, in one run, as ratios.

    python benchmarks/training.py [--classes 37 200 1000] [--steps 3]

Shapes of ViT-B/16 with random weights, batch 16, fp32. "Published style" is what the CoOp lineage does: OpenCLIP's own
blocks on full sequences, a [batch * heads, n, n] mask, 77 + 5 text tokens of every class from the first layer on at
each step, and a second pass of a frozen model for the regulariser.
"""

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip import Backbone, load_backbone
from dear.core.table import Table
from dear.methods.dear import Dear, DearConfig

BATCH = 16


def build(classes: int, **settings: float) -> Dear:
    torch.manual_seed(0)
    backbone = load_backbone("ViT-B-16-quickgelu", random_weights=True)
    dear = Dear(backbone, DearConfig(roles="paper", **settings))
    words = ["cat", "red fox", "fire truck", "golden retriever", "church", "grand piano", "lemon", "tabby cat"]
    dear.all_prompts = [f"a photo of a {words[i % 8]} {i}." for i in range(classes)]
    dear.set_classes(dear.all_prompts, "{}")
    return dear


def published_features(dear: Dear, pixels: Tensor) -> Tensor:
    visual, config = dear.backbone.model.visual, dear.config
    x = visual._embeds(pixels)
    originals = x.shape[1]
    for number, block in enumerate(visual.transformer.resblocks, 1):
        mask = None
        if number >= dear.first_layer:
            raw = dear.tokens.expand(len(x), -1, -1)
            tokens = raw if number == dear.first_layer else config.beta * raw + (1 - config.beta) * x[:, originals:]
            x = torch.cat([x[:, :originals], tokens], 1)
            of_original, of_added = dear.masks[number]
            of_original, of_added = of_original.expand(-1, -1, originals, -1), of_added.expand(-1, -1, len(raw[0]), -1)
            rows = torch.cat([of_original, of_added], 2)
            mask = torch.zeros(rows.shape).masked_fill(~rows, -torch.inf).expand(len(x), -1, -1, -1).flatten(0, 1)
        x = block(x, attn_mask=mask)
    cls = visual.ln_post(x[:, :1]) @ visual.proj
    return F.normalize(torch.cat([cls, visual.ln_post(x[:, originals:]) @ dear.projection], 1), dim=-1)


def published_text(dear: Dear, ids: Tensor) -> Tensor:
    model, beta, count = dear.backbone.model, dear.config.beta, len(dear.text_tokens)
    x = model.token_embedding(ids) + model.positional_embedding
    for number, block in enumerate(model.transformer.resblocks, 1):
        if number == dear.first_text_layer:
            x = torch.cat([x[:, :1], dear.text_tokens.expand(len(x), -1, -1), x[:, 1:]], 1)
        elif number > dear.first_text_layer:
            x = torch.cat([x[:, :1], beta * dear.text_tokens + (1 - beta) * x[:, 1 : 1 + count], x[:, 1 + count :]], 1)
        size = x.shape[1]
        x = block(x, attn_mask=torch.full((size, size), -torch.inf).triu(1))
    return F.normalize(model.ln_final(x[torch.arange(len(x)), ids.argmax(-1) + count]) @ model.text_projection, dim=-1)


def published_step(dear: Dear, pixels: Tensor, labels: Tensor, ids: Tensor) -> Tensor:
    model = dear.backbone.model
    features, text = published_features(dear, pixels), published_text(dear, ids)
    logits = dear.backbone.temperature * torch.einsum("k,bkd,cd->bc", dear.fusion_weights(), features, text)
    with torch.no_grad():
        frozen = model.encode_image(pixels, normalize=True)
    loss = F.cross_entropy(logits, labels) + 2 - (features[:, 0] * frozen).sum(-1).mean()
    loss = loss - (text * dear.classes.frozen).sum(-1).mean() + 0.7 * (1 - dear.fusion_weights()[0])
    loss.backward()
    return loss.detach()


def our_step(dear: Dear, pixels: Tensor, labels: Tensor) -> Tensor:
    loss = dear.loss(dear.layer_input(pixels), labels).total
    loss.backward()
    return loss.detach()


def interleaved(steps: int, *functions) -> list[float]:
    """Best seconds of each, run in turns; the first round warms up. The best is what other programs disturbed least.

    With one thread (OMP_NUM_THREADS=1) seconds are those of the processor, which others hardly disturb at all.
    """
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(steps + 1):
        for record, function in zip(times, functions, strict=True):
            began = clock()
            function()
            record.append(clock() - began)
    return [min(record[1:]) for record in times]


def batch_of(backbone: Backbone, classes: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(BATCH, 3, *backbone.image.image_size), torch.randint(0, classes, (BATCH,))


def memory(classes: int) -> None:
    """Peak resident memory of training steps, in a process of its own."""
    dear = build(classes)
    pixels, labels = batch_of(dear.backbone, classes)
    for _ in range(2):
        our_step(dear, pixels, labels)
    # Not getrusage: there, the peak of a child starts at what its parent held.
    status = Path("/proc/self/status").read_text()
    print(int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 2**20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", default=[37, 200, 1000])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--memory-of", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory_of:
        memory(args.memory_of)
        return
    table = Table(["training step, classes", "published s", "ours s", "ratio", "same loss"])
    for classes in args.classes:
        dear = build(classes)
        pixels, labels = batch_of(dear.backbone, classes)
        ids = dear.backbone.text.tokenizer(dear.all_prompts)
        losses: dict[str, Tensor] = {}
        slow, fast = interleaved(
            args.steps if classes < 500 else 1,
            lambda: losses.update(slow=published_step(dear, pixels, labels, ids)),  # noqa: B023
            lambda: losses.update(fast=our_step(dear, pixels, labels)),  # noqa: B023
        )
        same = abs(losses["slow"] - losses["fast"]) < 1e-4
        table.add(classes, f"{slow:.2f}", f"{fast:.2f}", f"{slow / fast:.1f}x", "yes" if same else "NO")
        print(table.text(), flush=True)
    with_reg, without = build(37), build(37, lambda_reg=0.0)
    pixels, labels = batch_of(with_reg.backbone, 37)
    a, b = interleaved(
        2 * args.steps, lambda: our_step(with_reg, pixels, labels), lambda: our_step(without, pixels, labels)
    )
    print(f"regulariser: +{100 * (a / b - 1):.0f}% (paper: +35%)", flush=True)
    with torch.no_grad():
        plain, adapted = interleaved(
            2 * args.steps,
            lambda: with_reg.backbone.model.encode_image(pixels),
            lambda: with_reg.encode_image(with_reg.layer_input(pixels)),
        )
    print(f"inference, all six features against OpenCLIP's encode_image: {adapted / plain:.2f}x", flush=True)
    command = [sys.executable, __file__, "--memory-of", "1000"]
    peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    print(f"peak resident memory, training with 1000 classes: {float(peak):.2f} GiB")


if __name__ == "__main__":
    main()
