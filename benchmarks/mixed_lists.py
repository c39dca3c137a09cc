"""Lists in which classes with and without labelled images stand together, on full test sets of stored features.

    DEAR_SHARED=shared python benchmarks/mixed_lists.py [--sets ucf101 caltech101] [--shots 4 16] [--out cells.jsonl]

Accuracy (%) on test images of classes without / with labelled images and their harmonic mean, for each way to put the
classes beside each other: *alone* adds corrections to the classes that have them and nothing to the others, *gate* lets
CLIP say which kind an image is (as DeCoOp and GMoP train prompts to), *rule* is `fair_lists.beside`, *offset* the same
with the offset by left-out classes, which is what the package does. *best* is the greatest harmonic mean that an offset
chosen on the test images gives *rule*, *alone best* the same for *alone*; area: under the curve of one accuracy over
the other for all offsets of *rule*, which is also its OpenworldAUC. Means over draws of classes and images. Cells that
are in the file of `--out` are not computed again.
"""

import argparse
import json
import os
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dear.core.table import Table
from dear.methods.closed_forms import GdaHead, ProKeRHead, SSTextHead
from dear.methods.shared.closed_form import CorrectionHead
from dear.methods.shared.fair_lists import beside, share_weights

TAU = 100.0
HEADS: dict[str, type[CorrectionHead]] = {"gda": GdaHead, "proker": ProKeRHead, "ss-text": SSTextHead}
TEXTS = {"ucf101": "UCF101", "caltech101": "Caltech101"}
WAYS = ("alone", "gate", "rule", "offset")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=list(TEXTS), choices=TEXTS)
    parser.add_argument("--methods", nargs="+", default=list(HEADS), choices=HEADS)
    parser.add_argument("--shares", nargs="+", type=float, default=[0.5, 0.1], help="of classes without images")
    parser.add_argument("--shots", nargs="+", type=int, default=[4, 16])
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--classes", type=int, default=0, help="so many classes, drawn too; 0: all")
    parser.add_argument("--images", default="keys", choices=("keys", "val"), help="mean of ten views, or one view")
    parser.add_argument("--out", type=Path, help="a file for finished cells")
    args = parser.parse_args()
    done: dict[str, Any] = {}
    if args.out and args.out.exists():
        done = dict(json.loads(line) for line in args.out.read_text().splitlines())
    table = Table(["set", "share", "shots", "method", *WAYS, "best", "alone best", "area", "offset by"])
    for name, share, shots in product(args.sets, args.shares, args.shots):
        for method in ("zero-shot", *args.methods):
            cells = []
            for draw in range(args.draws):
                key = f"{name} {share} {shots} {method} {draw} {args.classes} {args.images}"
                if key not in done:
                    done[key] = cell(name, share, shots, method, draw, args.classes, args.images)
                    if args.out:
                        with args.out.open("a") as file:
                            file.write(json.dumps([key, done[key]]) + "\n")
                cells.append(done[key])
            mean = {part: np.mean([each[part] for each in cells], axis=0) for part in cells[0]}
            ways = ("{:.1f} / {:.1f}, {:.1f}".format(*mean[way]) for way in WAYS)
            rest = (f"{mean[part]:.1f}" for part in ("best", "alone best", "area"))
            table.add(name, share, shots, method, *ways, *rest, f"{mean['added']:.2f}")
    print(table.text())


def cell(name: str, share: float, shots: int, method: str, draw: int, classes: int, images: str) -> dict[str, Any]:
    """Accuracies of one draw."""
    data = load(name)
    chance = torch.Generator().manual_seed(1000 + draw)
    order = torch.randperm(len(data["text"]), generator=chance)[: classes or None]
    novel = max(1, round(share * len(order)))
    known = len(order) - novel
    place = torch.full((len(data["text"]),), -1)
    place[order] = torch.arange(len(order))  # classes with images come first
    labels = data[f"{images}_labels"]
    own = ((labels == each).nonzero()[:, 0] for each in order[:known])
    rows = torch.cat([each[torch.randperm(len(each), generator=chance)[:shots]] for each in own])
    asked = place[data["test_labels"]] >= 0
    features, truth = data["test"][asked], place[data["test_labels"]][asked]
    text, new = data["text"][order], torch.arange(len(order)) >= known
    plain = TAU * features @ text.T
    adapted, added = plain, 0.0
    if method != "zero-shot":
        head = HEADS[method](text.shape[1], TAU, text)
        given = data[images][rows], place[labels[rows]], text[:known]
        head.be_fair(*given, head.fit(*given))
        corrections = torch.cat([head.correction(features), torch.zeros(len(features), novel)], 1)
        adapted = head.mix[0] * plain + head.mix[1] * corrections
        added = float(head.offsets @ torch.tensor(share_weights(novel / len(order))))
    ruled = beside(adapted, plain, new)
    says_new = new[plain.argmax(1)]
    gated = torch.where(says_new[:, None] == new, ruled, -torch.inf)
    ways = {"alone": adapted, "gate": gated, "rule": ruled, "offset": ruled + added * new}
    best, area = over_offsets(ruled, truth, new)
    alone_best, _ = over_offsets(adapted, truth, new)
    return {way: accuracies(logits, truth, new) for way, logits in ways.items()} | {
        "best": best, "alone best": alone_best, "area": area, "added": added,
    }  # fmt: skip


def load(name: str) -> dict[str, Tensor]:
    """Unit features and labels, and the texts of the classes."""
    folder = Path(os.environ["DEAR_SHARED"]) / "data"
    stored = np.load(folder / "full_features" / "vit_b_16.npz")
    parts = {"test": ("test_f", "test_l"), "keys": ("keys_16shots", "labels_16shots"), "val": ("val_f", "val_l")}
    data = {"text": unit(np.load(folder / "text_embeddings" / "class_weights" / f"{TEXTS[name]}.npy"))}
    for part, (features, labels) in parts.items():
        data[part] = unit(stored[f"{name}/{features}"])
        data[f"{part}_labels"] = torch.tensor(stored[f"{name}/{labels}"].astype(np.int64))
    return data


def unit(rows: np.ndarray) -> Tensor:
    return F.normalize(torch.tensor(rows.astype(np.float32)), dim=1)


def harmonic(one: Any, other: Any) -> Any:
    return 2 * one * other / np.maximum(one + other, 1e-9)


def accuracies(logits: Tensor, truth: Tensor, new: Tensor) -> list[float]:
    """On images of classes without and with labelled images, and the harmonic mean, in percent."""
    right, of_new = (logits.argmax(1) == truth).double(), new[truth]
    one, other = (100 * right[kind].mean().item() for kind in (of_new, ~of_new))
    return [one, other, harmonic(one, other)]


def over_offsets(logits: Tensor, truth: Tensor, new: Tensor) -> tuple[float, float]:
    """The greatest harmonic mean over all offsets of the new names, and the area under one accuracy over the other."""
    (old_best, old), (new_best, novel) = (logits.masked_fill(kind, -torch.inf).max(1) for kind in (new, ~new))
    gap, of_new = (old_best - new_best).numpy(), new[truth].numpy()
    order = np.argsort(gap, kind="stable")  # with a greater offset, one image after the other gets a new name
    one = np.cumsum(((novel == truth).numpy() & of_new)[order]) / of_new.sum()
    lost = np.cumsum(((old == truth).numpy() & ~of_new)[order]) / (~of_new).sum()
    other = lost[-1] - lost
    return 100 * float(harmonic(one, other).max()), 100 * float(np.sum(np.diff(one, prepend=0) * other))


if __name__ == "__main__":
    torch.set_num_threads(1)
    with torch.no_grad():
        main()
