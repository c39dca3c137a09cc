"""Train dear-mini, the CLIP that is shipped with the package, on Attribute World. About two hours on two cores.

    torchrun --nproc_per_node 2 scripts/train_mini.py OUT               # resumes from OUT/checkpoint.pt if it exists
    torchrun --nproc_per_node 2 scripts/train_mini.py OUT --from DIR    # starts from the weights in DIR

One process per core, with one thread: they synchronise once per step, so that other programs on the machine cost
little. Each process contrasts its own pictures; gradients are averaged.

Contrastive training in OpenCLIP's own architecture. Five things differ from CLIP's recipe, because here the truth of
every caption is known and computing time is scarce:
- a caption is a positive for every picture of the batch that it is true of (UniCL's loss);
- each picture is also contrasted with the names of all values of each attribute ("a circle", "an oval", ...), because
  color and place alone distinguish most captions of a batch;
- a linear classifier of the five attributes helps the image tower to learn shape, texture and object early; it is
  discarded (without it, the loss did not fall up to 31,000 pictures, where we stopped that run);
- most steps drop half of the image patches (FLIP); the last steps see whole pictures;
- heads of the last layers get roles (`HEADS_OF`). In a quarter of the pictures the heads for one attribute output their
  mean over the batch; the target is then no information about this attribute, and all about the others. Also, a linear
  classifier, which is discarded, must recognise the attribute from each of these heads' output at CLS. Without this, a
  tower this small spreads everything over all heads and brings objects to CLS through the MLPs.
"""

import argparse
import gzip
import json
import math
import time
from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import torch
from open_clip.model import CLIP
from open_clip.tokenizer import SimpleTokenizer
from open_clip.transformer import PatchDropout
from PIL import Image
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from torch.utils.data import DataLoader

from dear.clip.image import ImageTower
from dear.clip.layer_input import LayerInput
from dear.data.loading import Mapped
from dear.data.world.render import render
from dear.data.world.vocabulary import ATTRIBUTES, VALUES, WHERE, Scene, Traits, is_held_out
from dear.heads.contributions import run_layer_heads
from world_captions import ALONE, caption, name_alone, random_caption

SEED = 2026
CONTEXT = 20
BATCH = 32  # pictures per process and step: small, because the number of steps is the limit
MODEL = {
    "embed_dim": 128,
    "quick_gelu": False,
    "vision_cfg": {"image_size": 64, "patch_size": 8, "layers": 9, "width": 160, "head_width": 20},
    "text_cfg": {"context_length": CONTEXT, "layers": 4, "width": 128, "heads": 4},
}
# (layer, head) pairs for each attribute: the nearest to it in a tower trained without roles; four heads have no role.
HEADS_OF = {
    "color": ((7, 7), (8, 3), (9, 2)),
    "shape": ((7, 3), (7, 4), (8, 1), (8, 5)),
    "texture": ((8, 0), (8, 7), (9, 0), (9, 1), (9, 7)),
    "object": ((7, 0), (7, 2), (8, 2), (9, 6)),
    "location": ((7, 5), (7, 6), (8, 6), (9, 3)),
}
FIRST_ROLE = 7
PREPROCESS = {"mean": [0.5] * 3, "std": [0.25] * 3, "interpolation": "bicubic", "resize_mode": "shortest"}


def make_vocabulary(path: Path) -> None:
    """Byte-pair merges with one token per word of Attribute World; other words become letters."""
    words = {w for templates in ALONE.values() for t in templates for w in t.split() if w != "{}"}
    words |= {w for values in VALUES.values() for w in values} | {w for where in WHERE.values() for w in where.split()}
    words |= {"a", "an", "on", "and", "photo", "image", "of", "with", "the"}
    split = {w: (*w[:-1], w[-1] + "</w>") for w in sorted(words)}
    merges: list[tuple[str, str]] = []
    while pairs := Counter(p for parts in split.values() for p in pairwise(parts)):
        best = min(pairs, key=lambda p: (-pairs[p], p))
        merges.append(best)
        split = {w: _merge(parts, best) for w, parts in split.items()}
    # No trailing newline, which OpenCLIP would read as an empty merge. No time and no name, for the same bytes always.
    with path.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
        file.write("\n".join(["#version: dear-mini", *(" ".join(m) for m in merges)]).encode())


def _merge(parts: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    merged: list[str] = []
    for part in parts:
        if merged and (merged[-1], part) == pair:
            merged[-1] += part
        else:
            merged.append(part)
    return tuple(merged)


def pretraining_example(tokenizer: SimpleTokenizer, first_cropped: int, i: int) -> tuple[torch.Tensor, ...]:
    """Picture, caption, labels and mentioned attributes; example i is always the same."""
    rng = Random(f"{SEED}/{i}")
    while is_held_out(traits := Traits(*(rng.choice(values) for values in VALUES.values()))):
        pass
    picture = render(Scene(traits, rng.getrandbits(40)))
    if i >= first_cropped and rng.random() < 0.5:  # few-shot training crops, so the model should see crops
        side = 64 * math.sqrt(rng.uniform(0.6, 1))
        x, y = rng.uniform(0, 64 - side), rng.uniform(0, 64 - side)
        picture = picture.resize((64, 64), Image.Resampling.BICUBIC, (x, y, x + side, y + side))
    text, mentioned = random_caption(traits, rng)
    return (
        torch.from_numpy(np.array(picture)),
        tokenizer([text])[0],
        torch.tensor(traits.labels),
        torch.tensor([a in mentioned for a in ATTRIBUTES]),
    )


def to_input(pictures: torch.Tensor) -> torch.Tensor:
    """[n, 64, 64, 3] bytes -> [n, 3, 64, 64] normalised."""
    return (pictures.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25


@torch.no_grad()
def zero_shot(model: CLIP, tokenizer: SimpleTokenizer, count: int = 600) -> dict[str, float]:
    """Accuracy (%) on held-out combinations: each attribute alone, and the full caption among 64."""
    model.eval()
    rng = Random(f"{SEED}/evaluation")
    traits: list[Traits] = []
    while len(traits) < count:
        if is_held_out(drawn := Traits(*(rng.choice(v) for v in VALUES.values()))):
            traits.append(drawn)
    pictures = torch.from_numpy(np.stack([render(Scene(t, rng.getrandbits(40))) for t in traits]))
    image = model.encode_image(to_input(pictures), normalize=True)
    accuracy = {}
    for a in ATTRIBUTES:
        text = model.encode_text(tokenizer([name_alone(a, v, ALONE[a][0]) for v in VALUES[a]]), normalize=True)
        right = (image @ text.T).argmax(1) == torch.tensor([VALUES[a].index(getattr(t, a)) for t in traits])
        accuracy[a] = 100 * right.float().mean().item()
    text = model.encode_text(tokenizer([caption(t, set(ATTRIBUTES)) for t in traits]), normalize=True)
    own = (image * text).sum(1, keepdim=True)
    accuracy["caption"] = 100 * ((image @ text.T)[:, :64] <= own + 1e-6).all(1).float().mean().item()
    model.train()
    return accuracy


class Loss(torch.nn.Module):
    """Contrast with captions (UniCL) and with the names of each attribute's values; and roles of heads."""

    def __init__(self, model: CLIP, tokenizer: SimpleTokenizer) -> None:
        super().__init__()
        self.model, self.tokenizer, self.rng = model, tokenizer, Random(SEED)
        self.tower = ImageTower(model.visual)
        self.counts = [len(values) for values in VALUES.values()]
        self.helper = torch.nn.Linear(MODEL["embed_dim"], sum(self.counts))
        of_heads = {f"{a} {head}": len(VALUES[a]) for a, heads in HEADS_OF.items() for head in heads}
        self.of_heads = torch.nn.ModuleDict(
            {name: torch.nn.Linear(self.tower.head_dim, count) for name, count in of_heads.items()}
        )

    def forward(self, pictures: torch.Tensor, tokens: torch.Tensor, traits: torch.Tensor, mentioned: torch.Tensor):
        """pictures [n, 64, 64, 3], tokens [n, context], traits [n, 5], mentioned [n, 5] -> loss."""
        names = [name_alone(a, v, self.rng.choice(ALONE[a])) for a in ATTRIBUTES for v in VALUES[a]]
        without = torch.randint(-3 * len(ATTRIBUTES), len(ATTRIBUTES), (len(pictures),))  # below 0: all heads
        features, by_heads = self._encode_image(pictures, traits, without)  # [n, d]
        image = F.normalize(features, dim=-1)
        text = F.normalize(self._encode_text(torch.cat([tokens, self.tokenizer(names)])), dim=-1)  # [n + names, d]
        whole = (without < 0).nonzero()[:, 0]
        # A picture with ablated heads must not change the texts: its gradient would pull their meanings together.
        of_all = self.model.logit_scale.exp() * text  # [n + names, d]
        logits = torch.where((without < 0)[:, None], image @ of_all.T, image @ of_all.detach().T)
        of_captions, *of_names = logits.split([len(tokens), *self.counts], dim=1)
        of_captions = of_captions[whole][:, whole]
        true = ((traits[whole, None] == traits[None, whole]) | ~mentioned[None, whole]).all(-1).float()
        by_image = F.cross_entropy(of_captions, true / true.sum(1, keepdim=True))
        by_text = F.cross_entropy(of_captions.T, (true / true.sum(0)).T)
        by_attribute = self.helper(features).split(self.counts, dim=1)
        by_name = by_helper = torch.zeros(())
        for a, count in enumerate(self.counts):
            target = F.one_hot(traits[:, a], count).float()
            target[without == a] = 1 / count
            by_name = by_name + F.cross_entropy(of_names[a], target) / len(ATTRIBUTES)
            by_helper = by_helper + F.cross_entropy(by_attribute[a], target)
        return (by_image + by_text) / 2 + 2 * by_name + by_helper + 2 * by_heads

    def _encode_image(
        self, pictures: torch.Tensor, traits: torch.Tensor, without: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Features [n, d], picture i without the heads for attribute without[i]; and the loss of their classifiers."""
        x = self.tower.embed(to_input(pictures))
        for layer in range(1, FIRST_ROLE):
            x = self.tower.run_layer(LayerInput(self.tower, layer, x))
        by_heads: list[torch.Tensor] = []
        for layer in range(FIRST_ROLE, self.tower.layers + 1):

            def ablate(outputs: torch.Tensor, layer: int = layer) -> torch.Tensor:
                """Outputs of the heads of a layer, [n, heads, queries, head_dim], some replaced by their mean."""
                ablated = torch.zeros(len(pictures), self.tower.heads, 1, 1, dtype=torch.bool)
                for a, heads in enumerate(HEADS_OF.values()):
                    for at, head in heads:
                        ablated[:, head, 0, 0] |= (without == a) & (at == layer)
                return torch.where(ablated, outputs.detach().mean(0), outputs)

            x, outputs = run_layer_heads(self.tower, layer, x, ablate)
            for a, (attribute, heads) in enumerate(HEADS_OF.items()):
                for at, head in heads:
                    if at == layer:
                        logits = self.of_heads[f"{attribute} {(at, head)}"](outputs[without != a, head, 0])
                        by_heads.append(F.cross_entropy(logits, traits[without != a, a]))
        return self.tower.project(x[:, 0]), torch.stack(by_heads).mean()

    def _encode_text(self, tokens: torch.Tensor) -> torch.Tensor:
        """[n, context] -> [n, d], as the model does it, but without the padding after the longest caption."""
        model, eot = self.model, tokens.argmax(-1)
        used = int(eot.max()) + 1
        x = model.token_embedding(tokens[:, :used]) + model.positional_embedding[:used]
        x = model.transformer(x, attn_mask=model.attn_mask[:used, :used])
        return model.ln_final(x)[torch.arange(len(x)), eot] @ model.text_projection


def save(out: Path, loss_of: Loss, optimizer: torch.optim.Optimizer, step: int, seconds: float) -> None:
    state = {
        "model": loss_of.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": step,
        "seconds": seconds,
    }
    torch.save(state, out / "checkpoint.part")
    (out / "checkpoint.part").replace(out / "checkpoint.pt")
    save_file(
        {k: v.half().contiguous() for k, v in loss_of.model.state_dict().items()}, out / "open_clip_model.safetensors"
    )
    config = {"model_cfg": MODEL, "preprocess_cfg": PREPROCESS}
    (out / "open_clip_config.json").write_text(json.dumps(config, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=3200)
    parser.add_argument("--whole", type=int, default=500, help="number of last steps, which drop no patches")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--from", dest="start", type=Path, metavar="DIR", help="folder with weights to start from")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(SEED)  # the same start in every process
    args.out.mkdir(parents=True, exist_ok=True)
    vocabulary = args.out / f"bpe_vocab.{rank}.gz"
    make_vocabulary(vocabulary)
    tokenizer = SimpleTokenizer(str(vocabulary), context_length=CONTEXT)
    vocabulary.replace(args.out / "bpe_vocab.txt.gz")
    MODEL["text_cfg"]["vocab_size"] = tokenizer.vocab_size
    model = CLIP(**MODEL)
    if args.start:
        weights = load_file(args.start / "open_clip_model.safetensors")
        model.load_state_dict({name: part.float() for name, part in weights.items()})
    loss_of = Loss(model, tokenizer)
    discarded = [*loss_of.helper.parameters(), *loss_of.of_heads.parameters()]
    groups = [{"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": 0.1, "rate": 1},
              {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0, "rate": 1},
              {"params": discarded, "weight_decay": 0.0, "rate": 10}]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True)
    start, seconds = 0, 0.0
    if (args.out / "checkpoint.pt").exists():
        state = torch.load(args.out / "checkpoint.pt", weights_only=True)
        loss_of.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start, seconds = state["step"], state["seconds"]
    torch.manual_seed(SEED + 1 + rank + world * start)  # each process drops other patches
    items = [i for i in range(start * BATCH * world, args.steps * BATCH * world) if i // BATCH % world == rank]
    example = partial(pretraining_example, tokenizer, args.steps * BATCH * world * 6 // 10)
    loader = DataLoader(Mapped(items, example), BATCH, num_workers=1, prefetch_factor=4)
    parallel_loss = torch.nn.parallel.DistributedDataParallel(loss_of)
    began = time.time() - seconds
    for step, batch in enumerate(loader, start):
        lr = args.lr * min(1.0, (step + 1) / 100) * (0.5 + 0.5 * math.cos(math.pi * step / args.steps))
        for group in optimizer.param_groups:
            group["lr"] = lr * group["rate"]
        model.visual.patch_dropout = PatchDropout(0.5) if step < args.steps - args.whole else torch.nn.Identity()
        loss = parallel_loss(*batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(loss_of.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            model.logit_scale.clamp_(0, math.log(100))
        done = step + 1
        if rank == 0 and done % 20 == 0:
            scale = model.logit_scale.exp().item()
            print(f"step {done} loss {loss.item():.3f} scale {scale:.1f} {time.time() - began:.0f} s", flush=True)
        if rank == 0 and (done % 250 == 0 or done == args.steps):
            print(json.dumps({"step": done, **zero_shot(model, tokenizer)}), flush=True)
            save(args.out, loss_of, optimizer, done, time.time() - began)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
