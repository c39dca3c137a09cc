"""What late heads and MLPs know of the classes, and what a gain for all late heads does without any label.

    DEAR_SHARED=shared python benchmarks/head_gains.py dtd --model local-dir:vit-b-16 --text-features weights.npy

On training and validation images of a pack in DEAR_SHARED/data. For every part of the CLS state, centred: the accuracy
of its direct contribution alone, and how far it puts the true class above the mean of the others, in standard
deviations. Then base, novel and all accuracy with one gain for all heads of the last third. Last, one gain for each
role, learned on these images. Accuracy with learned gains:
`dear bench base-to-novel --methods zero-shot head-gains --text-features weights.npy`.
"""

import argparse
import os
from pathlib import Path

import torch
from torch import Tensor

from dear.clip import load_backbone
from dear.clip.image import last_third
from dear.clip.layer_input import CachedHeads
from dear.core.metrics import accuracy
from dear.core.names import AUTO
from dear.core.table import Table
from dear.data.loading import evaluation_batches
from dear.data.resolve import resolve_dataset
from dear.heads.contributions import decompose
from dear.heads.gains import Gains
from dear.heads.role_map import find_role_map
from dear.methods.registry import find_method


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", help="folder in DEAR_SHARED/data")
    parser.add_argument("--model", required=True)
    parser.add_argument("--text-features", metavar="FILE")
    args = parser.parse_args()
    backbone = load_backbone(args.model, text_features=args.text_features)
    data = resolve_dataset(str(Path(os.environ["DEAR_SHARED"]) / "data" / args.pack))
    method = find_method("zero-shot")(backbone, find_method("zero-shot").Config())
    method.set_classes(data.classes, data.template)
    tower, first, text = backbone.image, last_third(backbone.image.layers), method.encode_text(method.classes)
    parts, kept, truth = [], [], []
    for pixels, labels in evaluation_batches(data.train + data.val, backbone.preprocess, args.pack, 16):
        pixels = pixels.to(backbone.device)
        parts.append(decompose(backbone, pixels)[:3])
        kept.append(tower.head_outputs(pixels, first))
        truth.append(labels)
    labels = torch.cat(truth).to(backbone.device)
    embedding, heads, mlps = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    by_head = heads.sum(2)  # [images, layers, dim]
    rows = {f"heads of layer {layer}": by_head[:, layer - 1] for layer in range(first, tower.layers + 1)}
    rows["heads of the last third"] = by_head[:, first - 1 :].sum(1)
    rows["heads before"] = by_head[:, : first - 1].sum(1)
    rows["last MLP"] = mlps[:, -1]
    rows["MLPs of the last third"] = mlps[:, first - 1 :].sum(1)
    rows["MLPs before, embedding"] = mlps[:, : first - 1].sum(1) + embedding
    rows["everything"] = by_head.sum(1) + mlps.sum(1) + embedding
    table = Table(["part", "alone", "signal / noise", "length"])
    for name, values in rows.items():
        table.add(name, *signal(values, text, labels))
    print(table.text())

    images = CachedHeads(*(torch.cat(tensors) for tensors in zip(*kept, strict=True)))
    means, half = images.outputs.mean(0), (len(data.classes) + 1) // 2
    table = Table(["gain", "base", "novel", "all"])
    for gain in (0.5, 1.0, 1.5, 2.0, 3.0):
        changed = Gains(first, means, torch.full_like(means[..., 0], gain)).apply(tower, images)
        logits = tower.project(changed.frozen_cls) @ text.T
        base = labels < half
        table.add(
            gain,
            accuracy(logits[base, :half], labels[base]),
            accuracy(logits[~base, half:], labels[~base] - half),
            accuracy(logits, labels),
        )
    print(table.text())

    kind = find_method("head-gains")
    learned = kind(backbone, kind.Config(gains="roles"))
    learned.set_classes(data.classes, data.template)
    learned.head_means = means
    gains, roles = learned.fitted_gains(images, labels), find_role_map(AUTO, backbone)
    table = Table(["part", "heads", "learned gain"])
    for part in dict.fromkeys(map(roles.part_of, roles.roles)):
        at = [head for head in roles.roles if roles.part_of(head) == part]
        table.add(part, len(at), float(gains[at[0][0] - first, at[0][1]]))
    print(table.text())


def signal(values: Tensor, text: Tensor, labels: Tensor) -> tuple[float, float, float]:
    """Of contributions [images, dim]: accuracy alone, signal over noise, and mean length, all centred."""
    centred = values - values.mean(0)
    scores = centred @ text.T
    of_truth = scores.gather(1, labels[:, None])[:, 0]
    above = of_truth - (scores.sum(1) - of_truth) / (scores.shape[1] - 1)
    return accuracy(scores, labels), float(above.mean() / above.std()), float(centred.norm(dim=1).mean())


if __name__ == "__main__":
    with torch.no_grad():
        main()
