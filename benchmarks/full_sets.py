"""Full test sets with official splits: closed forms, head gains, baselines and what trains on features.

    DEAR_SHARED=shared python benchmarks/full_sets.py OUT [--kept FOLDER --model local-dir:vit-b-16] [--draws 10]

Two protocols: all classes with 1 to 16 images each; and 4 or 16 images of each base class, tested on base and on novel
classes (official halves). Caltech101 and UCF101 are kept as class features, so methods on heads or on the projection
run on sets that kept.py has encoded. Writes OUT/cells.jsonl; a second call goes on where the first ended.
"""

import argparse
import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from baselines import SKLEARN, ResiDual, class_bias, head_units, head_vectors
from kept import TEMPLATE, FeatureTower, KeptSet, Shots, answers, fit, of_shared, pick
from torch import Tensor
from torch.nn import functional as F

from dear.clip.layer_input import CachedHeads
from dear.core.files import write_text
from dear.core.metrics import accuracy
from dear.core.table import Table
from dear.methods.base import Method

ON_FEATURES = ("zero-shot", "tip-adapter", "ss-text", "gda", "proker")
TRAINED = ("lp-plus-plus", "zs-lp", "clap")
ON_HEADS: dict[str, dict[str, Any]] = {
    "projection": {"gains": "none"},
    "one gain": {"gains": "one", "pull": None},
    "one gain, projection": {"gains": "one"},
    "head gains": {},
}
"""Steps of head-gains, with GDA behind them in a row of its own."""
PLAN = [("base-to-novel", k) for k in (16, 4)] + [("few-shot", k) for k in (1, 2, 4, 8, 16)]
BIASED = ("zero-shot", "gda", "projection")


class Fits:
    """Fits to one draw, each computed once for all rows that need it."""

    def __init__(self, kept: KeptSet, given: Shots, base: Sequence[int], protocol: str) -> None:
        self.kept, self.given, self.base, self.protocol = kept, given, base, protocol
        self.heads = not isinstance(kept.backbone.image, FeatureTower)
        self.known: dict[str, Method] = {}

    def method(self, name: str) -> Method:
        if name not in self.known:
            settings = ON_HEADS.get(name)
            kind = name if settings is None else "head-gains"
            self.known[name] = fit(kind, self.kept, self.given, self.protocol, **settings or {})
        return self.known[name]

    def logits(self, name: str, classes: Sequence[int], part: str = "test", gda: bool = False) -> Tensor:
        """Logits of the images of some classes; of steps of head-gains without GDA, unless it is asked for."""
        method = self.method(name)
        found = answers(method, self.kept, classes, part)[0]
        if name not in ON_HEADS or gda:
            return found
        mix, method.head.mix = method.head.mix, method.head.mix.new_tensor([1.0, 0.0])
        found = answers(method, self.kept, classes, part)[0]
        method.head.mix = mix
        return found

    def shown(self, name: str, classes: Sequence[int]) -> Tensor:
        """Logits of the labelled images themselves among some classes; of GDA each by the fit without it."""
        method = self.method(name)
        if name == "gda" and list(classes) == list(self.base):
            return method.head.left_out
        with torch.no_grad():
            method.set_classes([self.kept.classes[number] for number in classes], TEMPLATE)
            features = method.encode_image(method.layer_input(self.given.images))
            return method.logits(features, method.encode_text(method.classes))

    def rows(self) -> dict[str, Callable[[Sequence[int]], Tensor | None]]:
        """Each row's logits of the test images of base or novel classes; None: it cannot answer them."""
        found: dict[str, Callable[[Sequence[int]], Tensor | None]] = {
            name: partial(self.logits, name) for name in ON_FEATURES
        }
        found["zero-shot, bias of the test images"] = lambda classes: biased(self.logits("zero-shot", classes))
        for name in BIASED if self.heads else BIASED[:2]:
            found[f"{name}, class bias"] = lambda c, name=name: self.logits(name, c) - class_bias(self.shown(name, c))
            for share in (0.5, 1.0):
                found[f"{name}, {share:g} mean logit"] = lambda c, name=name, share=share: (
                    self.logits(name, c) - share * self.shown(name, c).mean(0)
                )
        for name in SKLEARN:
            found[name] = partial(self.scikit_learn, name, False)
        if self.heads:
            for name in ON_HEADS:
                found[name] = partial(self.logits, name)
            found["head gains, GDA"] = partial(self.logits, "head gains", gda=True)
            found["ridge on head outputs"] = partial(self.scikit_learn, "ridge", True)
            for name, full in (("residual coarse", False), ("residual full", True)):
                found[name] = partial(self.residual, full)
        return found

    def scikit_learn(self, name: str, heads: bool, classes: Sequence[int]) -> Tensor | None:
        if list(classes) != list(self.base):
            return None
        rows = self.kept.rows("test", classes)
        images = self.given.images, pick(self.kept.parts["test"][0], rows)
        known, new = (head_vectors(part) if heads else features_of(self.kept, part).numpy() for part in images)
        if heads:
            known, new = known - known.mean(0), new - known.mean(0)
        fitted: Any = SKLEARN[name]().fit(known, self.given.labels.numpy())
        return F.one_hot(torch.from_numpy(fitted.predict(new)), len(classes)).float()

    def residual(self, full: bool, classes: Sequence[int]) -> Tensor:
        tower, text = self.kept.backbone.image, self.kept.texts
        assert isinstance(self.given.images, CachedHeads)
        units = head_units(tower, self.given.images)
        fitted = ResiDual(units, self.given.labels, text[list(self.base)], 100.0, full)
        images, rows = self.kept.parts["test"][0], self.kept.rows("test", classes)
        return torch.cat([fitted(head_units(tower, pick(images, r)), text[list(classes)]) for r in rows.split(500)])


def biased(logits: Tensor) -> Tensor:
    return logits - class_bias(logits)


@torch.no_grad()
def features_of(kept: KeptSet, images: Any) -> Tensor:
    tower = kept.backbone.image
    return tower.frozen_feature(tower.layer_input(images, getattr(tower, "layers", 0) + 1))


def cell(
    kept: KeptSet, protocol: str, shots: int, seed: int, only: Sequence[str] | None
) -> dict[str, list[float | None]]:
    """Accuracies of all rows on one draw: [all], or [base, novel]."""
    everything = range(len(kept.classes))
    halves = kept.halves() if protocol == "base-to-novel" else (everything,)
    base = halves[0]
    given = Shots(kept, "train", kept.draw("train", base, shots, seed), base)
    fits, found = Fits(kept, given, base, protocol), {}
    rows = fits.rows()
    if (seed == 0 or only) and shots in (1, 4, 16):  # the costly ones
        rows |= {name: partial(fits.logits, name) for name in TRAINED}
    for name, row in rows.items():
        if only and name not in only:
            continue
        accuracies: list[float | None] = []
        for classes in halves:
            labels = kept.parts["test"][1][kept.rows("test", classes)] - classes[0]
            able = name != "lp-plus-plus" or classes is base
            logits = row(classes) if able else None
            accuracies.append(None if logits is None else round(accuracy(logits, labels), 2))
        found[name] = accuracies
    return found


def report(cells: list[dict[str, Any]], out: Path) -> None:
    """A table of each protocol and set: means and deviations over draws."""
    text = []
    for protocol in ("few-shot", "base-to-novel"):
        for place in dict.fromkeys(c["set"] for c in cells):
            own = [c for c in cells if c["set"] == place and c["protocol"] == protocol]
            counts = sorted({c["shots"] for c in own})
            table = Table(["method", *(f"{k} shots ({sum(c['shots'] == k for c in own)} draws)" for k in counts)])
            for name in dict.fromkeys(name for c in own for name in c["found"]):
                table.add(name, *(entry([c["found"].get(name) for c in own if c["shots"] == k]) for k in counts))
            if own:
                text.append(f"### {place}, {protocol}\n\n{table.markdown()}\n")
    write_text(out / "tables.md", "\n".join(text))
    print("\n".join(text))


def entry(found: list[list[float | None] | None]) -> str:
    """Mean and deviation over draws; of base and novel, both means and the harmonic mean."""
    rows = [row for row in found if row]
    if not rows:
        return "-"
    if len(rows[0]) == 1:
        values = [row[0] for row in rows]
        return f"{fmean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")
    base, novel = ([row[i] for row in rows] for i in range(2))
    if novel[0] is None:
        return f"{fmean(base):.1f} / -"
    means = [2 * b * n / (b + n) for b, n in zip(base, novel, strict=True)]
    spread = f" ± {stdev(means):.1f}" if len(means) > 1 else ""
    return f"{fmean(base):.1f} / {fmean(novel):.1f} / **{fmean(means):.1f}**{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kept", type=Path, help="folder with files of kept.py: pets.npz, flowers.npz")
    parser.add_argument("--model", help="the tower of these files")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--protocols", nargs="+", default=["few-shot", "base-to-novel"])
    parser.add_argument("--only", nargs="+", help="these rows alone")
    parser.add_argument("--report", action="store_true", help="only the tables, of the cells there are")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "cells.jsonl"
    cells = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(c["set"], c["protocol"], c["shots"], c["seed"]) for c in cells}
    sets = {} if args.report else of_shared(Path(os.environ["DEAR_SHARED"]), args.kept, args.model)
    sets = {name: kept for name, kept in sets.items() if "test" in kept.parts}
    for seed in range(args.draws):
        for name, kept in sets.items():
            labels = kept.parts["train"][1]
            fewest = int(torch.bincount(labels, minlength=len(kept.classes)).min())
            for protocol, shots in PLAN:
                same = shots >= fewest > 0 and seed > 0  # the same images as in the first draw
                able = fewest > 0 or protocol == "base-to-novel"  # else only base classes have images
                asked = protocol in args.protocols and name in (args.sets or sets)
                if same or not able or not asked or (name, protocol, shots, seed) in done:
                    continue
                found = cell(kept, protocol, shots, seed, args.only)
                cells.append({"set": name, "protocol": protocol, "shots": shots, "seed": seed, "found": found})
                with path.open("a") as file:
                    file.write(json.dumps(cells[-1]) + "\n")
    report(cells, args.out)


if __name__ == "__main__":
    main()
