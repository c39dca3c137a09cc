"""Classes without images: the accuracy expected from left-out classes, against the measured one.

    python benchmarks/unseen.py TEXTS FEATURES.npz ... [--draws 8] [--out docs/pictures/unseen.png]

FEATURES.npz holds normalised image features of some sets: SET/keys_16shots and SET/labels_16shots, SET/val_f and val_l,
SET/test_f and test_l (sets without val and test are measured on the 16 images of the unseen classes). TEXTS is a
folder of class weights, SET.npy. A draw takes 2 K classes: K get 1, 4 or 16 labelled images each, the others are the
unseen ones. Zero-shot, and a projection after the features fitted with ProLIP's loss (pull 1); both with the bias of
names at the strength that left-out classes choose. Printed: means over draws; "error" and "of the bare figure" are root
mean squares of expected less measured, with and without the correction for the length of the list.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from dear.core.figure import save_figure
from dear.core.table import Table
from dear.methods.shared.class_folds import class_folds
from dear.methods.shared.stacking import minimise
from dear.trials.unseen import (
    STRENGTHS,
    best_strength,
    expected_accuracies,
    interval_of,
    right_among,
    without_bias,
    zero_shot_by_length,
)

TAU = 100.0
NAMES = {
    "ucf101": "UCF101",
    "caltech101": "Caltech101",
    "dtd": "DescribableTextures",
    "food101": "Food101",
    "eurosat": "EuroSAT",
}
Encoder = Callable[[Tensor], Tensor]


def projection(features: Tensor, labels: Tensor, text: Tensor, pull: float = 1.0) -> Encoder:
    """Maps features by 1 + C, which minimises cross entropy + pull |C|^2, in the span of what the loss sees."""
    span = torch.linalg.qr(torch.cat([features, text]).T)[0]  # [dim, rank]
    inside, names = features @ span, text @ span
    change = torch.zeros(span.shape[1], span.shape[1])

    def loss() -> Tensor:
        moved = F.normalize(inside + inside @ change, dim=1)
        return F.cross_entropy(TAU * moved @ names.T, labels) + pull * change.square().sum()

    minimise([change], loss, max_iter=60, tolerance_grad=1e-6, history_size=10)
    return lambda images: F.normalize(images + images @ span @ change @ span.T, dim=1)


METHODS: dict[str, Callable[..., Encoder]] = {
    "zero-shot": lambda features, labels, text: lambda images: images,
    "projection": projection,
}


def one_draw(kind: Callable[..., Encoder], X: Tensor, y: Tensor, text: Tensor, T: Tensor, t: Tensor, unseen: Tensor):
    """Expected and measured accuracies (%) of a method: labelled X, y, test images T, t of the unseen names."""
    logits, truth = [], []
    for out in class_folds(len(text), most=10):
        place = torch.full((len(text),), -1).index_copy(0, out, torch.arange(len(out)))[y]
        stay = torch.ones(len(text), dtype=torch.bool).index_fill(0, out, False)
        encode = kind(X[place < 0], (stay.cumsum(0) - 1)[y[place < 0]], text[stay])
        logits.append(TAU * encode(X) @ text[out].T)
        truth.append(place)
    strength = best_strength(logits, truth)
    scores = [part[own >= 0] for part, own in zip(without_bias(logits, truth, strength), truth, strict=True)]
    own, of = [part[part >= 0] for part in truth], [y[part >= 0] for part in truth]
    plain = zero_shot_by_length(X @ text.T, y)
    expected = expected_accuracies(scores, own, of, plain, len(unseen))
    bare = expected_accuracies(scores, own, of, lambda names: 1.0, len(unseen)).mean().item()
    encode = kind(X, y, text)
    measured = {
        s: right_among(encode(T) @ unseen.T - s * encode(X).mean(0) @ unseen.T, t, len(unseen))[1] for s in STRENGTHS
    }
    means = {s: 100 * of_classes.mean().item() for s, of_classes in measured.items()}
    low, high = interval_of(expected, len(y), len(unseen))
    got = means[strength]
    return [
        100 * bare,
        100 * expected.mean().item(),
        got,
        means[0.0],
        max(means.values()),
        strength,
        low <= got <= high,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path)
    parser.add_argument("features", type=Path, nargs="+")
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    stored: dict[str, Any] = {key: value for path in args.features for key, value in np.load(path).items()}
    records: dict[tuple[int, int, str], list[Any]] = defaultdict(list)
    for name, file in NAMES.items():
        if f"{name}/keys_16shots" not in stored:
            continue

        def read(key: str, name: str = name) -> Tensor:
            kind = "float32" if key.startswith("keys") or key.endswith("_f") else "int64"
            return torch.tensor(stored[f"{name}/{key}"].astype(kind))

        whole = f"{name}/test_f" in stored
        pool, labels = (read("val_f"), read("val_l")) if whole else (read("keys_16shots"), read("labels_16shots"))
        test, truth = (read("test_f"), read("test_l")) if whole else (pool, labels)
        pool, test = F.normalize(pool, dim=1), F.normalize(test, dim=1)
        text = F.normalize(torch.tensor(np.load(args.texts / f"{file}.npy")).float(), dim=1)
        for size in (5, 10, 23):
            for draw in range(args.draws if 2 * size <= len(text) else 0):
                chance = torch.Generator().manual_seed(100 * draw + size)
                seen, unseen = torch.randperm(len(text), generator=chance)[: 2 * size].split(size)
                rows = [(labels == c).nonzero()[:, 0] for c in seen]
                rows = [r[torch.randperm(len(r), generator=chance)] for r in rows]
                t = torch.full((len(text),), -1).index_copy(0, unseen, torch.arange(size))[truth]
                for shots in (1, 4, 16):
                    picked = torch.cat([r[:shots] for r in rows])
                    y = torch.cat([torch.full((len(r[:shots]),), i) for i, r in enumerate(rows)])
                    for method, kind in METHODS.items():
                        found = one_draw(kind, pool[picked], y, text[seen], test[t >= 0], t[t >= 0], text[unseen])
                        records[size, shots, method].append((name, *found))
            print(f"{name}, {size} and {size} classes: done", flush=True)
    table = Table(["classes", "images", "method", "measured", "no bias", "best", "expected", "error",
                   "of the bare figure", "in the interval (%)"])  # fmt: skip
    for (size, shots, method), rows in sorted(records.items()):
        bare, expected, got, none, best, _, inside = np.array([row[1:] for row in rows], dtype=float).T
        error, before = (np.sqrt(np.mean((guess - got) ** 2)) for guess in (expected, bare))
        table.add(
            size,
            shots,
            method,
            got.mean(),
            none.mean(),
            best.mean(),
            expected.mean(),
            error,
            before,
            100 * inside.mean(),
        )
    print(table.text())
    if args.out:
        draw_figure(records, args.out)


def draw_figure(records: dict, out: Path) -> None:
    """Expected against measured accuracy: the bare figure, and the corrected one."""
    figure = Figure(figsize=(9, 4.4), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis, column, title in zip(
        axes, (1, 2), ("left-out classes as they are", "corrected for the list's length"), strict=True
    ):
        for number, (name, label) in enumerate(NAMES.items()):
            rows = [row for part in records.values() for row in part if row[0] == name]
            axis.scatter(
                [row[column] for row in rows], [row[3] for row in rows], s=6, alpha=0.5, label=label, color=f"C{number}"
            )
        axis.plot([30, 100], [30, 100], color="grey", linewidth=0.8)
        axis.set(xlabel="expected (%)", ylabel="measured (%)", title=title, xlim=(30, 101), ylim=(30, 101))
    axes[0].legend(frameon=False)
    save_figure(figure, out, dpi=110)


if __name__ == "__main__":
    main()
