"""Closed forms with 1 to 16 images of each class, beside their authors' rules, which see all validation images.

    DEAR_SHARED=shared python benchmarks/few_images.py [--draws 10]

On features of the full test sets of UCF101 and Caltech101 in DEAR_SHARED/data: test accuracy, mean over draws, of
zero-shot, each closed form and the one that `dear fit` takes, and of GDA and ProKeR as published (one view, a weight or
a pair of settings with the best validation accuracy). "mixed": 2 images of every other class, 16 of the rest.
"""

import argparse
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dear.core.metrics import accuracy
from dear.core.table import Table
from dear.methods.closed_forms import GdaHead, ProKeRHead, SSTextHead
from dear.methods.shared.leave_one_out import KernelRidge, class_means
from dear.trials.selection import select

TAU = 100.0
Answers = Callable[[Tensor], Tensor]
HEADS = {"ss-text": SSTextHead, "gda": GdaHead, "proker": ProKeRHead}
SETS = {"ucf101": "UCF101", "caltech101": "Caltech101"}


def published_gda(x: Tensor, y: Tensor, text: Tensor, val: Tensor) -> Iterator[tuple[Tensor, Answers]]:
    """Logits of the validation images, and those of any images, for each weight."""
    means, dim = class_means(x, y, len(text))[0], x.shape[1]
    scatter = (x - means[y]).T @ (x - means[y])
    precision = dim * torch.linalg.pinv(scatter + scatter.trace() / (len(x) - 1) * torch.eye(dim).double())
    weight = means @ precision
    bias = -(weight * means).sum(1) / 2

    def answers(share: float, images: Tensor) -> Tensor:
        return TAU * images @ text.T + share * (images @ weight.T + bias)

    for power in range(-4, 3):
        yield answers(10.0**power, val), partial(answers, 10.0**power)


def published_proker(x: Tensor, y: Tensor, text: Tensor, val: Tensor) -> Iterator[tuple[Tensor, Answers]]:
    """Logits on validation images, and those of any images, for each setting of the authors' widest ranges."""
    targets, everything = F.one_hot(y, len(text)) - x @ text.T, torch.arange(len(x))
    plain, cosines, among = val @ text.T, val @ x.T, x @ x.T
    for beta in torch.linspace(0.1, 10, 12).tolist():
        fit = KernelRidge(among, targets, everything, beta)
        kernel = fit.kernel(cosines.clone())
        for ridge in (0.01, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0, 7.0, 10.0):
            values = ridge * fit.weights(ridge)

            def answers(images: Tensor, fit: KernelRidge = fit, values: Tensor = values) -> Tensor:
                return images @ text.T + fit.kernel(images @ x.T) @ values

            yield plain + kernel @ values, answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=10)
    args = parser.parse_args()
    folder = Path(os.environ["DEAR_SHARED"]) / "data"
    arrays = np.load(folder / "full_features" / "vit_b_16.npz")
    for name, weights in SETS.items():
        parts = {key: torch.from_numpy(arrays[f"{name}/{key}"]) for key in ("keys_16shots", "test_f", "val_f")}
        pool, test, val = (F.normalize(part.double(), dim=1) for part in parts.values())
        labels, truth, val_truth = (
            torch.from_numpy(arrays[f"{name}/{key}"]).long() for key in ("labels_16shots", "test_l", "val_l")
        )
        text = torch.from_numpy(np.load(folder / "text_embeddings" / "class_weights" / f"{weights}.npy"))
        text = F.normalize(text.double(), dim=1)
        table = Table([name, "zero-shot", *HEADS, "dear fit", "gda, published", "proker, published"])
        for shots in (1, 2, 3, 4, 8, 16, "mixed"):
            rows = [
                figures(pool, labels, shots, draw, text, (test, truth), (val, val_truth))
                for draw in range(1 if shots == 16 else args.draws)
            ]
            table.add(shots, *np.mean(rows, 0).tolist())
            print(table.text(), flush=True)


def figures(
    pool: Tensor, labels: Tensor, shots: int | str, draw: int, text: Tensor,
    test: tuple[Tensor, Tensor], val: tuple[Tensor, Tensor],
) -> list[float]:  # fmt: skip
    """Test accuracies of one draw, in the order of the table."""
    chance = torch.Generator().manual_seed(draw)
    rows = torch.arange(0)
    for label in range(len(text)):
        count = (2, 16)[label % 2] if isinstance(shots, str) else shots
        own = (labels == label).nonzero()[:, 0]
        rows = torch.cat([rows, own[torch.randperm(len(own), generator=chance)[:count]]])
    x, y = pool[rows], labels[rows]
    plain, reached = accuracy(test[0] @ text.T, test[1]), {}
    left_out = {"zero-shot": (TAU * x @ text.T, "")}
    for name, kind in HEADS.items():
        head = kind(x.shape[1], TAU, x.float())
        head.fit(x.float(), y, text.float())
        assert head.left_out is not None
        reached[name], left_out[name] = accuracy(head(test[0].float(), text.float()), test[1]), (head.left_out, "")
    chosen = "proker" if shots == 1 else select(left_out, y, [str(c) for c in range(len(text))]).chosen
    published = []
    for rule in (published_gda, published_proker):
        best = max(rule(x, y, text, val[0]), key=lambda pair: accuracy(pair[0], val[1]))
        published.append(accuracy(best[1](test[0]), test[1]))
    return [plain, *reached.values(), {"zero-shot": plain, **reached}[chosen], *published]


if __name__ == "__main__":
    main()
