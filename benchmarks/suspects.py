"""Wrong labels found by `dear data suspects`, beside cleanlab on the same probabilities (pip install cleanlab).

    DEAR_SHARED=shared python benchmarks/suspects.py [--draws 10] [--human FEATURES.npz]

On features of UCF101, Caltech101 and Food101 in DEAR_SHARED/data, with 5, 10 and 20% of the labels flipped: to "any"
other class, or to one of the three whose texts are most "similar". Both get the same probabilities, each image left out
of a fit of GDA; --method proker: of ProKeR. Precision, recall and F1 (%), means over draws;
AP: average precision of the ranking. "0%" are labels as published: what is named there counts as a false alarm (% of
all images). cleanlab: each of its filters with its default ranking; AP of its best score. --human: a file with
features `f`, true labels `clean` and human labels under any other name, such as those of CIFAR-10N; texts `text`.
"""

import argparse
import os
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores
from sklearn.metrics import average_precision_score
from torch import Tensor
from torch.nn import functional as F

from dear.core.table import Table
from dear.methods.closed_forms import GdaHead, ProKeRHead
from dear.trials.suspects import label_noise

TAU = 100.0
SETS = {"ucf101": "UCF101", "caltech101": "Caltech101", "food101": "Food101"}
FILTERS = (
    "prune_by_noise_rate", "prune_by_class", "both", "confident_learning", "predicted_neq_given",
    "low_normalized_margin", "low_self_confidence",
)  # fmt: skip
SCORES = ("self_confidence", "normalized_margin", "confidence_weighted_entropy")
HEADS = {"gda": GdaHead, "proker": ProKeRHead}


def flipped(labels: Tensor, share: float, draw: int, text: Tensor, kind: str) -> Tensor:
    rng = np.random.default_rng(draw)
    rows = rng.choice(len(labels), round(share * len(labels)), replace=False)
    near = (text @ text.T - 2 * torch.eye(len(text))).topk(3 if kind == "similar" else len(text) - 1).indices
    labels = labels.clone()
    labels[rows] = near[labels[rows], rng.integers(0, near.shape[1], len(rows))]
    return labels


def figures(features: Tensor, labels: Tensor, truth: Tensor, text: Tensor, method: str) -> dict[str, list[float]]:
    """Precision, recall, F1, AP and share of images named, in %, of each way."""
    head = HEADS[method](features.shape[1], TAU, features)
    head.fit(features, labels, text)
    assert head.left_out is not None
    probabilities, bad = head.left_out.double().softmax(1).numpy(), (labels != truth).numpy()
    wrong = label_noise(head.left_out, labels).wrong.numpy()
    ranking = [-get_label_quality_scores(labels.numpy(), probabilities, method=score) for score in SCORES]
    best = max((average_precision_score(bad, scores) for scores in ranking), default=0) if bad.any() else np.nan
    named = {"dear": (wrong > 0.5, average_precision_score(bad, wrong) if bad.any() else np.nan)}
    for way in FILTERS:
        named[f"cleanlab, {way}"] = find_label_issues(labels.numpy(), probabilities, filter_by=way, n_jobs=1), best
    found = {}
    for way, (chosen, quality) in named.items():
        precision, recall = bad[chosen].mean() if chosen.any() else 0.0, chosen[bad].mean() if bad.any() else np.nan
        f1 = 2 * precision * recall / max(1e-9, precision + recall)
        found[way] = [100 * x for x in (precision, recall, f1, quality, chosen.mean())]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--method", choices=HEADS, default="gda")
    parser.add_argument("--human", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(["set", "wrong", "to", "way", "precision", "recall", "F1", "AP", "named, %"])

    def add(name: str, share: object, kind: str, rounds: list[dict[str, list[float]]]) -> None:
        rows = defaultdict(list)
        for found in rounds:
            for way, values in found.items():
                rows[way].append(values)
        for way, values in rows.items():
            table.add(name, share, kind, way, *np.mean(values, 0).tolist())
        print(table.text().splitlines()[-len(rows) :], flush=True)

    if args.human:
        arrays = {key: torch.from_numpy(value) for key, value in np.load(args.human).items()}
        text, truth = F.normalize(arrays.pop("text").float(), dim=1), arrays.pop("clean").long()
        features = F.normalize(arrays.pop("f").float(), dim=1)
        for name, labels in {"clean": truth, **arrays}.items():
            share = f"{100 * (labels != truth).float().mean():.0f}%"
            add("cifar10", share, name, [figures(features, labels.long(), truth, text, args.method)])
        print(table.text())
        return
    folder = Path(os.environ["DEAR_SHARED"]) / "data"
    stored = np.load(folder / "full_features" / "vit_b_16.npz")
    for name, weights in SETS.items():
        keys = ("test_f", "test_l") if f"{name}/test_f" in stored else ("keys_16shots", "labels_16shots")
        features, truth = (torch.from_numpy(stored[f"{name}/{key}"]) for key in keys)
        features, truth = F.normalize(features.float(), dim=1), truth.long()
        text = torch.from_numpy(np.load(folder / "text_embeddings" / "class_weights" / f"{weights}.npy"))
        text = F.normalize(text.float(), dim=1)
        add(name, "0%", "-", [figures(features, truth, truth, text, args.method)])
        for kind in ("any", "similar"):
            for share in (0.05, 0.1, 0.2):
                rounds = []
                for draw in range(args.draws):
                    labels = flipped(truth, share, draw, text, kind)
                    rounds.append(figures(features, labels, truth, text, args.method))
                add(name, f"{100 * share:.0f}%", kind, rounds)
    print(table.text())


if __name__ == "__main__":
    main()
