"""Promises of decisions, and what comes of them, on genuine features of CLIP's ViT-B/16.

    DEAR_SHARED=shared python benchmarks/decisions.py [--draws 3]

Known: the first half of the classes of UCF101 and of Caltech101, with 1, 4 or up to 16 images each, drawn from the
validation images (the features of the published draws are means over views, unlike those of a test image). Strangers:
the other half (near), the other set, textures and dishes (far). Scores are compared by AUROC on the other validation
images; the rule takes the score with the highest mean over sets, methods and numbers of images. All else is measured on
test images.
"""

import argparse
import json
import os
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from dear.core.metrics import calibration_error, reliability
from dear.core.table import Table
from dear.decisions.apply import ridge_sets
from dear.decisions.decide import NOUNS
from dear.decisions.thresholds import (
    above_strangers,
    least_accepted,
    least_probability,
    least_sure,
    probabilities_of,
    score_of,
)
from dear.methods.closed_forms import GdaHead, ProKeRHead
from dear.methods.shared.stacking import classes_alike, stack

TAU = 100.0
SETS = {"ucf101": "UCF101", "caltech101": "Caltech101"}
FAR = {"textures": "dtd/keys_16shots", "dishes": "food101/keys_16shots"}
LIKE = torch.zeros(1)


class Zero(torch.nn.Module):
    """Zero-shot in the form of a head, calibrated as published."""

    def fit(self, features, labels, text):
        self.left_out = TAU * features @ text.T

    def forward(self, features, text):
        return TAU * features @ text.T


def auroc(own, others):
    order = np.sort(others)
    return 50 * (np.searchsorted(order, own, "left") + np.searchsorted(order, own, "right")).mean() / len(others)


def share_of(flags, labels):
    """Share (%) of flags, all classes alike, as among the labelled images."""
    return 100 * np.average(flags, weights=1 / np.bincount(labels)[labels])


def log_sum(values):
    return torch.logsumexp(torch.from_numpy(values), 1).numpy()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=3)
    draws = parser.parse_args().draws
    data = Path(os.environ["DEAR_SHARED"]) / "data"
    arrays = np.load(data / "full_features" / "vit_b_16.npz")

    def features(name):
        return F.normalize(torch.from_numpy(arrays[name].astype(np.float32)), dim=1)

    embedded = data / "text_embeddings" / "b16_text_single"
    texts = [entry["text"] for entry in json.loads(embedded.with_suffix(".json").read_text())]
    places = {text: row for row, text in enumerate(texts)}
    rows = [places[noun] for noun in NOUNS.read_text().split() if noun in places]
    nouns = F.normalize(torch.from_numpy(np.load(embedded.with_suffix(".npz"))["emb"][rows].astype(np.float32)), dim=1)
    print(f"{len(rows)} nouns of the package have genuine embeddings")
    scored, promised, sets = defaultdict(list), defaultdict(list), defaultdict(list)
    for name, long in SETS.items():
        weights = data / "text_embeddings" / "class_weights" / f"{long}.npy"
        text = F.normalize(torch.from_numpy(np.load(weights).astype(np.float32)), dim=1)
        half = (len(text) + 1) // 2
        text = text[:half]
        parts = {
            part: (features(f"{name}/{part}_f"), arrays[f"{name}/{part}_l"].astype(int)) for part in ("val", "test")
        }
        known = {part: images[labels < half] for part, (images, labels) in parts.items()}
        truth = torch.from_numpy(parts["test"][1][parts["test"][1] < half])
        strangers = {part: images[labels >= half] for part, (images, labels) in parts.items()}
        far = {"other set": f"{next(o for o in SETS if o != name)}/test_f", **FAR}
        pool, pool_labels = known["val"], parts["val"][1][parts["val"][1] < half]
        strangers |= {title: features(place) for title, place in far.items()}
        for shots in (1, 4, 16):
            for draw in range(draws):
                rng = np.random.default_rng(draw)
                of_class = [rng.permutation((pool_labels == c).nonzero()[0]) for c in range(half)]
                rows = np.concatenate([mine[: min(shots, len(mine) - 1)] for mine in of_class])
                images, labels = pool[rows], torch.from_numpy(pool_labels[rows])
                rest = np.setdiff1d(np.arange(len(pool)), rows)
                known["val"] = pool[rest]
                truths = {"val": pool_labels[rest], "test": truth.numpy()}
                for method, head in (
                    ("zero-shot", Zero()), ("gda", GdaHead(text.shape[1], TAU, LIKE)),
                    ("proker", ProKeRHead(text.shape[1], TAU, LIKE)),
                ):  # fmt: skip
                    if method != "zero-shot":
                        head.set_sizes(half, len(images))
                    head.fit(images, labels, text)
                    calibrates = shots > 1
                    scale = stack([head.left_out], labels, classes_alike(labels))[0].item() if calibrates else 1.0

                    def answers(x, head=head, scale=scale, text=text, images=images):
                        """Logits, and the candidates for a score."""
                        logits = scale * head(x, text).numpy()
                        plain, others = (TAU * x @ text.T).numpy(), (TAU * x @ nouns.T).numpy()
                        return logits, {
                            "largest probability": logits.max(1) - log_sum(logits), "energy": log_sum(logits),
                            "largest logit": score_of(logits), "nearest image": (x @ images.T).numpy().max(1),
                            "words": score_of(logits, plain, others),
                        }  # fmt: skip

                    all_known = {part: answers(x) for part, x in known.items()}
                    all_others = {part: answers(x)[1] for part, x in strangers.items()}
                    for score in all_known["val"][1]:
                        for part, others in all_others.items():
                            own = all_known["val" if part == "val" else "test"][1][score]
                            key = (score, part)
                            scored[key].append(
                                (auroc(own, others[score]), 100 * (others[score] >= np.quantile(own, 0.05)).mean())
                            )
                    if not calibrates:
                        continue
                    logits, tests = all_known["test"]
                    left = (scale * head.left_out).numpy()
                    plain, others = (TAU * images @ text.T).numpy(), (TAU * images @ nouns.T).numpy()
                    cut = least_accepted(score_of(left, plain, others), 0.05)
                    near = above_strangers(all_others["val"]["words"], 0.05)
                    probabilities, test = (
                        F.softmax(torch.from_numpy(left), 1).numpy(),
                        F.softmax(torch.from_numpy(logits), 1),
                    )
                    before = F.softmax(head(known["test"], text), 1)
                    least = least_probability(probabilities[np.arange(len(left)), labels], 0.95)
                    row = [share_of(all_known[part][1]["words"] < cut, truths[part]) for part in truths]
                    row += [100 * (all_others["test"]["words"] >= cut).mean()]
                    row += [
                        100 * (all_others["test"]["words"] >= near).mean(),
                        share_of(tests["words"] < near, truths["test"]),
                    ]
                    try:
                        sure, _ = least_sure(probabilities.max(1), probabilities.argmax(1) == labels.numpy(), 0.95)
                        given = test.max(1).values >= sure
                        row += [
                            100 * given.float().mean().item(),
                            100 * (test.argmax(1) == truth)[given].float().mean().item(),
                        ]
                    except Exception:  # no such share
                        row += [np.nan, np.nan]
                    one_hot = F.one_hot(truth, half)
                    for p in (before, test):
                        row += [
                            calibration_error(reliability(p.log(), truth)),
                            F.nll_loss(p.clamp(min=1e-12).log(), truth).item(),
                            (p - one_hot).square().sum(1).mean().item(),
                        ]  # fmt: skip
                    promised[name, method, shots].append(row)
                    order = None
                    if method == "proker" and head.mix[1] > 0:
                        order = labels.numpy()[(head.landmarks @ images.T).argmax(1).numpy()]
                        exact = ridge_sets(head, text.numpy(), order, 1 / scale)
                    for how in ("left out",) if order is None else ("left out", "full conformal"):
                        row = []
                        for part, of in truths.items():
                            inside = probabilities_of(all_known[part][0]) >= least
                            if how != "left out":
                                inside = exact.p_values(known[part].numpy()) > 0.05
                            row += [share_of(inside[np.arange(len(of)), of], of), inside.sum(1).mean()]
                        sets[name, method, shots, how].append(row)
        print(f"{name} done", flush=True)

    scores = list(dict.fromkeys(score for score, _ in scored))
    table = Table(["score: AUROC (FPR95)", *list(dict.fromkeys(part for _, part in scored))])
    for score in scores:
        means = [np.mean(values, 0) for (of, _), values in scored.items() if of == score]
        table.add(score, *(f"{mean[0]:.1f} ({mean[1]:.0f})" for mean in means))
    print(table.text())
    best = max(scores, key=lambda score: np.mean([value[0] for value in scored[score, "val"]]))
    print(f"the rule takes: {best}\n")
    names = (
        "own refused, other val", "own refused, test", "near answered", "near answered, promised", "own refused then",
        "answered", "right", "ECE", "log loss", "Brier", "ECE after", "log loss after", "Brier after",
    )  # fmt: skip
    table = Table(["set, method, images", *names])
    for (name, method, shots), rows in promised.items():
        digits = [3 if of.startswith(("log", "Brier")) else 1 for of in names]
        cells = [f"{value:.{count}f}" for value, count in zip(np.nanmean(rows, 0), digits, strict=True)]
        table.add(f"{name}, {method}, {shots}", *cells)
    print(table.text(), "\n")
    table = Table(["sets of 95%", "coverage, other val", "sd", "classes", "coverage, test", "sd", "classes"])
    for (name, method, shots, how), rows in sets.items():
        both, sd = np.mean(rows, 0), np.std(rows, 0)
        cells = [f"{both[0]:.1f}", f"{sd[0]:.1f}", f"{both[1]:.2f}", f"{both[2]:.1f}", f"{sd[2]:.1f}", f"{both[3]:.2f}"]
        table.add(f"{name}, {method}, {shots}, {how}", *cells)
    print(table.text())


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
