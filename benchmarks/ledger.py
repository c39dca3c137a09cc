"""What protocol is worth: each concession of published few-shot tables, in points, beside what methods are worth.

    DEAR_SHARED=shared python benchmarks/ledger.py OUT [--kept FOLDER --model local-dir:vit-b-16] [--draws 20]

Methods that work on class features are fitted under one rule (settings by leave-one-out on the shots, or the published
ones; the last epoch), and then again with one concession at a time. Writes OUT/ledger.json (finished cells are kept, so
a second call goes on) and OUT/ledger.png. It does not cover methods that train through the towers.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from kept import KeptSet, Shots, answers_of, class_vectors, divided, fit, load, of_shared
from ledger_report import CHOSEN, PARTLY, SHOTS, STRENGTHS, TRAINED, report
from torch import Tensor
from torch.nn import functional as F

from dear.methods.closed_forms import SHRINKS
from dear.methods.shared.leave_one_out import Gaussians, KernelRidge, TextAndMeans

FEW = 4  # validation images per class, if there are as many shots, as CoOp's lists have them


def candidates(name: str, features: Tensor, labels: Tensor, text: Tensor, shown: Tensor) -> dict[Any, Tensor]:
    """The answers for images `shown` [images] under each setting from which a method chooses."""
    plain, found = 100 * shown @ text.T, {}
    if name == "tip-adapter":
        similar, values = shown @ features.T, F.one_hot(labels, len(text)).float()
        for beta in (0.5, 1.0, 2.0, 4.0, 5.5, 7.0):
            cached = (-beta * (1 - similar)).exp() @ values
            found |= {(a, beta): (plain + a * cached).argmax(1) for a in (0.25, 0.5, 1, 1.5, 2, 3, 4, 5)}
    elif name == "ss-text":
        vectors = TextAndMeans(features, labels, text)
        found = {g: (shown @ vectors.vectors(g, 0.0).T).argmax(1) for g in (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)}
    elif name == "gda":
        gaussians = Gaussians(features, labels, len(text))
        for shrink in SHRINKS:
            weight, bias = (part.float() for part in gaussians.weights(shrink))
            score = shown @ weight.T + bias
            found |= {(shrink, b): (plain + b * score).argmax(1) for b in STRENGTHS}
    else:
        residuals = F.one_hot(labels, len(text)).double() - (features @ text.T).double()
        everything, cosines = torch.arange(len(labels)), features.double() @ features.double().T
        for beta in (0.3, 1.0, 3.0):
            ridge_fit, kernel = KernelRidge(cosines, residuals, everything, beta), (shown @ features.T - 1).mul(beta)
            kernel = kernel.exp_()
            for ridge in (0.002, 0.01, 0.05, 0.25):
                correction = 100 * ridge * kernel @ ridge_fit.weights(ridge).float()
                found[beta, ridge] = (plain + correction).argmax(1)
    return found


def epochs(name: str, kept: KeptSet, shots: Shots, shown: Tensor) -> list[Tensor]:
    """The answers for images `shown` after each tenth epoch, of Tip-Adapter-F after each of its twenty."""
    seen: list[Tensor] = []
    every = 1 if name == "tip-adapter-f" else 10

    def watch(method: Any, epoch: int) -> None:
        if epoch % every == 0:
            with torch.no_grad():
                features = method.encode_image(method.layer_input(shown))
                seen.append(method.logits(features, method.encode_text(method.classes)).argmax(1))

    fit(name, kept, shots, after_epoch=watch)
    return seen


def share(answers: Tensor, labels: Tensor) -> float:
    return round(100 * (answers == labels).float().mean().item(), 3)


def cell(kept: KeptSet, shots: int, seed: int) -> dict[str, Any]:
    """All accuracies of one draw."""
    classes = range(len(kept.classes))
    rows = kept.draw("train", classes, shots, seed)
    few = kept.draw("val", classes, min(shots, FEW), seed)
    (test, truth), (val, val_truth) = kept.parts["test"], kept.parts["val"]
    shown, marks = torch.cat([test, val]), (len(test), len(test) + len(val))
    given, text = Shots(kept, "train", rows, classes), kept.texts
    more = Shots(kept, "train", rows, classes)
    more.images, more.labels = torch.cat([more.images, val[few]]), torch.cat([more.labels, val_truth[few]])
    found: dict[str, Any] = {"zero-shot": {"fair": share((test @ text.T).argmax(1), truth)}}
    for name in CHOSEN:
        methods = {"fair": fit(name, kept, given), "more": fit(name, kept, more)}
        entry: dict[str, Any] = {key: share(answers_of(m, test), truth) for key, m in methods.items()}
        tried = candidates(name, given.images, given.labels, text, shown)
        on_test = [share(a[: marks[0]], truth) for a in tried.values()]
        on_val = [share(a[marks[0] :], val_truth) for a in tried.values()]
        on_few = [share(a[marks[0] :][few], val_truth[few]) for a in tried.values()]
        entry |= {"test": max(on_test), "val": on_test[int(np.argmax(on_val))], "few": on_test[int(np.argmax(on_few))]}
        found[name] = entry | {"each": [round(x, 1) for x in on_test]}
    for name in TRAINED if seed < 3 and shots in (1, 4) else ():  # the costly ones
        on_test = [share(answers, truth) for answers in epochs(name, kept, given, test)]
        found[name] = {"fair": on_test[-1], "epoch": max(on_test)}
    return found


def under_names(kept: KeptSet, shared: Path) -> tuple[KeptSet, KeptSet] | None:
    """The classes whose bare names have genuine embeddings, with descriptions and with names as their texts."""
    folder = shared / "data/text_embeddings"
    known = {
        entry["text"].lower(): row
        for row, entry in enumerate(json.loads((folder / "b16_text_single.json").read_text()))
    }
    has = [number for number, name in enumerate(kept.classes) if name.lower().replace("_", " ") in known]
    if len(has) < 10:
        return None
    vectors = torch.tensor(np.load(folder / "b16_text_single.npz")["emb"]).float()
    names = [kept.classes[number] for number in has]
    new = torch.full((len(kept.classes),), -1).index_copy(0, torch.tensor(has), torch.arange(len(has)))
    parts = {}
    for part, (images, labels) in kept.parts.items():
        rows = kept.rows(part, has)
        parts[part] = images[rows], new[labels[rows]]
    found = []
    for features in (kept.texts[has], vectors[[known[name.lower().replace("_", " ")] for name in names]]):
        table = type(kept.backbone.text)(names, F.normalize(features, dim=1), kept.name)
        found.append(KeptSet(kept.name, tuple(names), SimpleNamespace(**{**vars(kept.backbone), "text": table}), parts))
    return found[0], found[1]


def text_cell(kept: KeptSet, shared: Path, shots: int, seed: int) -> dict[str, Any]:
    """Accuracies under descriptions and under bare names, by the same rule on the same images."""
    pair, found = under_names(kept, shared), {}
    for key, one in zip(("descriptions", "names"), pair or (), strict=False):
        classes, (test, truth) = range(len(one.classes)), one.parts["test"]
        given = Shots(one, "train", one.draw("train", classes, shots, seed), classes)
        for name in ("zero-shot", *CHOSEN):
            found.setdefault(name, {})[key] = share(answers_of(fit(name, one, given), test), truth)
    return found


def view_cells(shared: Path, folder: Path | None) -> Iterator[dict[str, Any]]:
    """Images as they are against means over ten augmented views of the same images, where both are kept.

    The published means do not say of which image they are: the nearest of the class, and each image once.
    """
    whole = of_shared(shared, folder)
    if "caltech" not in whole:
        return
    kept, plain = whole["caltech101"], whole["caltech"].parts["train"]
    (means, labels), pairs = kept.parts["train"], []
    for label in labels.unique().tolist():
        images, views = ((y == label).nonzero()[:, 0] for y in (plain[1], labels))
        cosines = plain[0][images] @ means[views].T
        best = cosines.argmax(1)
        same = (cosines.max(1).values > 0.9) & (torch.bincount(best, minlength=len(views))[best] == 1)
        pairs += list(zip(images[same].tolist(), views[best[same]].tolist(), strict=True))
    rows = torch.tensor(pairs)
    parts = {"plain": (plain[0][rows[:, 0]], plain[1][rows[:, 0]]), "views": (means[rows[:, 1]], labels[rows[:, 1]])}
    both, (test, truth) = replace(kept, parts=parts), kept.parts["test"]
    classes = range(len(kept.classes))
    for shots, seed in product((1, 2), range(10)):
        drawn, found = both.draw("plain", classes, shots, seed), {}
        for key in parts:
            given = Shots(both, key, drawn, classes)
            for name in CHOSEN:
                found.setdefault(name, {})[key] = share(answers_of(fit(name, both, given), test), truth)
        yield {"set": kept.name, "kind": "views", "shots": shots, "seed": seed, "pairs": len(rows), "found": found}


def sets(shared: Path, folder: Path | None) -> Iterator[tuple[Callable[[int], KeptSet], int]]:
    """The set of a draw, and the most shots. Where no validation images are kept, some training images serve."""
    vectors = shared / "data/text_embeddings/class_weights"
    whole = {name: kept for name, kept in of_shared(shared, folder).items() if name not in PARTLY}
    for name, title in (("dtd", "DescribableTextures"), ("food101", "Food101")):
        whole[name] = load(shared / "data/full_features/vit_b_16.npz", class_vectors(vectors, title), name)
    for kept in whole.values():
        counts = {"train": 16 - FEW, "val": FEW} if "test" in kept.parts else {"train": 4, "val": FEW, "test": 8}
        if "val" in kept.parts:
            yield lambda seed, kept=kept: kept, 16
        else:
            yield (
                lambda seed, kept=kept, counts=counts: replace(
                    kept, parts=kept.parts | divided(kept, "train", counts, seed)
                ),
                min(8, counts["train"]),
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kept", type=Path, help="folder with files of kept.py: pets.npz, flowers.npz")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--report", action="store_true", help="only the tables and the figure, of the cells there are")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    path, shared = args.out / "cells.jsonl", Path(os.environ["DEAR_SHARED"])
    cells = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(c["set"], c["kind"], c["shots"], c["seed"]) for c in cells}
    for seed in range(0 if args.report else args.draws):
        for of_draw, most in sets(shared, args.kept):
            kept = of_draw(seed)
            fewest = int(torch.bincount(kept.parts["train"][1]).min())
            for shots in (k for k in SHOTS if k <= most and (seed == 0 or k < fewest or most < 16)):
                kinds: dict[str, Callable[[], Any]] = {"protocol": partial(cell, kept, shots, seed)}
                if shots in (1, 4) and seed < 10:
                    kinds["texts"] = partial(text_cell, kept, shared, shots, seed)
                for kind, make in kinds.items():
                    if (kept.name, kind, shots, seed) not in done and (found := make()):
                        cells.append({"set": kept.name, "kind": kind, "shots": shots, "seed": seed, "found": found})
                        with path.open("a") as file:
                            file.write(json.dumps(cells[-1]) + "\n")
    if not args.report and all(c["kind"] != "views" for c in cells):
        for found in view_cells(shared, args.kept):
            cells.append(found)
            with path.open("a") as file:
                file.write(json.dumps(found) + "\n")
    report(cells, args.out)


if __name__ == "__main__":
    main()
