"""A training step of other methods against the published way of writing it, in one run, as ratios.

    python benchmarks/methods.py [--methods coop cocoop] [--classes 37 1000] [--steps 2]

Shapes of ViT-B/16 with random weights, each method's own batch, fp32. "Published style" is what the CoOp lineage does:
OpenCLIP's own blocks on full sequences and all 77 text places of every class at each step; a frozen tower, where a
method needs one, runs again. With many classes that does not fit most machines, so no more than `--part` classes are
run in that style, and the rest of its text, of which every class costs the same, is added by proportion. Frozen text,
which no step computes, is made of one template (PromptSRC has sixty: many minutes of one core at 1000 classes).
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip import load_backbone
from dear.core.table import Table
from dear.methods import deep_prompts as its_templates
from dear.methods.base import Method
from dear.methods.optional import set_gradients
from dear.methods.registry import find_method, recipe_of
from dear.training.config import TrainConfig
from training import interleaved

WORDS = ["cat", "red fox", "fire truck", "golden retriever", "church", "grand piano", "lemon", "tabby cat"]


@dataclass(frozen=True)
class Published:
    """The published style of one method, in two parts that can be timed apart, forward and backward.

    images: method, pixels -> what one step computes of the images, [batch, ...]; text: method, ids, labels, that -> the
    loss.
    """

    images: Callable[[Method, Tensor], Tensor]
    text: Callable[[Method, Tensor, Tensor, Tensor], Tensor]


def words(method: Method, ids: Tensor, context: Tensor) -> Tensor:
    """Embeddings of full sequences [classes, 77, width], the learned `context` behind the first token."""
    model = method.backbone.model
    x, count = model.token_embedding(ids), len(context)
    x = torch.cat([x[:, :1], context.expand(len(x), -1, -1), x[:, 1 + count :]], 1)
    return x + model.positional_embedding


def full_text(method: Method, x: Tensor, ids: Tensor) -> Tensor:
    """Text features of full sequences through OpenCLIP's blocks, normalised, [classes, dim]."""
    model, size = method.backbone.model, x.shape[1]
    causal = torch.full((size, size), -torch.inf).triu(1)
    for block in model.transformer.resblocks:
        x = block(x, attn_mask=causal)
    return F.normalize(model.ln_final(x[torch.arange(len(x)), ids.argmax(-1)]) @ model.text_projection, dim=-1)


@torch.no_grad()
def frozen_images(method: Method, pixels: Tensor) -> Tensor:
    return method.backbone.model.encode_image(pixels, normalize=True)


def coop(method: Method, ids: Tensor, labels: Tensor, images: Tensor) -> Tensor:
    text = full_text(method, words(method, ids, method.context), ids)
    return F.cross_entropy(method.backbone.temperature * images @ text.T, labels)


def cocoop(method: Method, ids: Tensor, labels: Tensor, images: Tensor) -> Tensor:
    rows = []
    for image in images:
        text = full_text(method, words(method, ids, method.context + method.network(image)), ids)
        rows.append(method.backbone.temperature * text @ image)
    return F.cross_entropy(torch.stack(rows), labels)


def token_images(method: Method, pixels: Tensor, tokens: dict[int, Tensor]) -> tuple[Tensor, Tensor]:
    """States of CLS and of the tokens, which are replaced in each of these layers: all queries of all layers."""
    visual = method.backbone.model.visual
    x = visual._embeds(pixels)
    originals = x.shape[1]
    for number, block in enumerate(visual.transformer.resblocks, 1):
        if number in tokens:
            x = torch.cat([x[:, :originals], tokens[number].expand(len(x), -1, -1)], 1)
        x = block(x)
    return x[:, 0], x[:, originals:]


def token_text(method: Method, ids: Tensor, tokens: dict[int, Tensor], inserted: bool) -> Tensor:
    """Text features, normalised, of all 77 places; tokens behind the first one, inserted, or in place of words."""
    model = method.backbone.model
    x, eot, first = model.token_embedding(ids) + model.positional_embedding, ids.argmax(-1), min(tokens)
    for number, block in enumerate(model.transformer.resblocks, 1):
        if number in tokens:
            given = tokens[number].expand(len(x), -1, -1)
            new = inserted and number == first
            x = torch.cat([x[:, :1], given, x[:, 1 if new else 1 + given.shape[1] :]], 1)
            eot = eot + given.shape[1] if new else eot
        x = block(x, attn_mask=torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1))
    return F.normalize(model.ln_final(x[torch.arange(len(x)), eot]) @ model.text_projection, dim=-1)


def with_frozen(method: Method, feature: Tensor, pixels: Tensor) -> Tensor:
    """[batch, features, dim], the frozen one last: its whole tower runs again."""
    return torch.cat([feature, frozen_images(method, pixels)[:, None]], 1)


def prompted_images(method: Method, pixels: Tensor) -> Tensor:
    tower = method.backbone.image
    return F.normalize(tower.project(token_images(method, pixels, method.image_layers())[0]), dim=-1)[:, None]


def prompted_text(method: Method, ids: Tensor) -> Tensor:
    return token_text(method, ids, method.text_layers(method.classes), inserted=False)


def maple(method: Method, ids: Tensor, labels: Tensor, images: Tensor) -> Tensor:
    return F.cross_entropy(method.backbone.temperature * images[:, 0] @ prompted_text(method, ids).T, labels)


def promptsrc(method: Method, ids: Tensor, labels: Tensor, images: Tensor) -> Tensor:
    text, target, tau = prompted_text(method, ids), method.classes.frozen[: len(ids)], method.backbone.temperature
    logits, kept = tau * images[:, 0] @ text.T, tau * images[:, 1] @ target.T
    apart = F.kl_div(logits.log_softmax(-1), kept.softmax(-1), reduction="sum") / logits.numel()
    moved = 25 * (text - target).abs().mean() + 10 * (images[:, 0] - images[:, 1]).abs().mean()
    return F.cross_entropy(logits, labels) + moved + apart


def mmrl_images(method: Method, pixels: Tensor) -> Tensor:
    tower = method.backbone.image
    cls, added = token_images(method, pixels, method.image_layers())
    pair = torch.stack([tower.project(cls), tower.visual.ln_post(added).mean(1) @ method.projection], 1)
    return with_frozen(method, F.normalize(pair, dim=-1), pixels)


def mmrl(method: Method, ids: Tensor, labels: Tensor, images: Tensor) -> Tensor:
    text, alpha = token_text(method, ids, method.text_layers(), inserted=True), method.config.alpha
    of_cls, of_tokens = (method.backbone.temperature * images[:, i] @ text.T for i in range(2))
    kept = (images[:, 0] * images[:, 2]).sum(-1).mean() + (text * method.classes.frozen[: len(ids)]).sum(-1).mean()
    loss = alpha * F.cross_entropy(of_cls, labels) + (1 - alpha) * F.cross_entropy(of_tokens, labels)
    return loss + method.config.lambda_reg * (2 - kept)


PUBLISHED = {
    "coop": Published(frozen_images, coop),
    "cocoop": Published(frozen_images, cocoop),
    "maple": Published(prompted_images, maple),
    "promptsrc": Published(lambda m, pixels: with_frozen(m, prompted_images(m, pixels), pixels), promptsrc),
    "mmrl": Published(mmrl_images, mmrl),
}


class Case:
    """A method at some number of classes, and a batch of its own size."""

    def __init__(self, name: str, classes: int) -> None:
        torch.manual_seed(0)
        its_templates.SIXTY = ("a photo of a {}.",)
        kind, recipe = find_method(name), recipe_of(name)
        self.method = kind(load_backbone("ViT-B-16-quickgelu", random_weights=True), kind.Config.pick(recipe))
        self.names = [f"{WORDS[i % 8]} {i}" for i in range(classes)]
        self.method.set_classes(self.names, "a photo of a {}.")
        batch = TrainConfig.pick(recipe).batch
        self.pixels = torch.randn(batch, 3, *self.method.backbone.image.image_size)
        self.labels = torch.arange(batch) % min(classes, 8)
        self.published = PUBLISHED[name]

    def gradients(self, loss: Tensor, keep_graph: bool = False) -> list[Tensor | None]:
        parameters = list(self.method.parameters())
        return list(torch.autograd.grad(loss, parameters, retain_graph=keep_graph, allow_unused=True))

    def our_step(self) -> Tensor:
        loss = self.method.loss(self.method.layer_input(self.pixels), self.labels)
        set_gradients(self.method, loss, self.gradients)
        return loss.total.detach()

    def with_part(self, classes: int) -> tuple[Callable[[], None], Callable[[], Tensor]]:
        """The published style's work on the images, and its text with so many of the classes."""
        method, names = self.method, self.names[:classes]
        ids = method.backbone.text.tokenizer([f"a photo of a {name}." for name in names])
        constant = self.published.images(method, self.pixels).detach()

        def images() -> None:
            found = self.published.images(method, self.pixels)
            if found.requires_grad:
                found.sum().backward()

        def text() -> Tensor:
            loss = self.published.text(method, ids, self.labels, constant)
            loss.backward()
            return loss.detach()

        return images, text

    def same_loss(self, classes: int) -> bool:
        """With the classes that both can run."""
        _, text = self.with_part(classes)
        self.method.set_classes(self.names[:classes], "a photo of a {}.")
        same = abs(self.our_step() - text()) < 1e-4
        self.method.set_classes(self.names, "a photo of a {}.")
        return bool(same)


def memory(name: str, classes: int) -> None:
    """Peak resident memory (GiB) of a training step, in a process of its own."""
    Case(name, classes).our_step()
    # Not getrusage: there, the peak of a child starts at what its parent held.
    print(int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 2**20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=list(PUBLISHED), choices=list(PUBLISHED))
    parser.add_argument("--classes", type=int, nargs="+", default=[37, 1000])
    parser.add_argument("--part", type=int, default=37, help="most classes that are run in the published style")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--memory-of", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory_of:
        memory(args.memory_of[0], int(args.memory_of[1]))
        return
    table = Table(["method", "classes", "batch", "published s", "ours s", "ratio", "same loss", "our peak GiB"])
    for name in args.methods:
        for classes in args.classes:
            case, part = Case(name, classes), min(classes, args.part)
            same = case.same_loss(part)
            images, text, ours = interleaved(args.steps, *case.with_part(part), case.our_step)
            slow = images + text * classes / part
            command = [sys.executable, __file__, "--memory-of", name, str(classes)]
            peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            shown = f"{slow:.2f}" if part == classes else f"{slow:.1f} (by {part})"
            table.add(
                name, classes, len(case.labels), shown, f"{ours:.2f}", f"{slow / ours:.1f}x", "yes" if same else "NO",
                f"{float(peak):.2f}",
            )  # fmt: skip
            print(table.text(), flush=True)


if __name__ == "__main__":
    main()
