"""Several labels for an image: kernel ridge of 0/1 targets, with a threshold for each class by exact leave-one-out."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip import Backbone, load_backbone
from dear.core.errors import DearError
from dear.core.schema import damaged
from dear.core.table import Table
from dear.core.tensors import read_tensors, save_tensors
from dear.core.words import counted
from dear.data.dataset import Example, ImageFile
from dear.data.folder import TEMPLATE, checked_row, list_rows
from dear.data.prompts import check_name, check_template
from dear.data.splits import split_of
from dear.methods.registry import ZERO_SHOT, find_method
from dear.methods.shared.leave_one_out import KernelRidge
from dear.methods.shared.per_class import frozen_features
from dear.training.images import ImageSource

_FILE, _ADVICE = "several.safetensors", "fit it again"
_BETAS, _RIDGES, _LANDMARKS = (0.3, 1.0, 3.0, 10.0), (0.002, 0.01, 0.05, 0.25, 1.0), 1000


@dataclass(frozen=True)
class LabelledSets:
    """Images and the names of all classes of each; an image may have none. `test`: which of them are not fitted to."""

    examples: list[Example]
    labels: list[frozenset[str]]
    test: Tensor

    def targets(self, classes: Sequence[str]) -> Tensor:
        """Whether each image has each class, [images, classes]."""
        if unknown := sorted(frozenset[str]().union(*self.labels) - set(classes)):
            raise DearError(f"The class {unknown[0]!r} is none of the model's: {', '.join(classes)}.")
        return torch.tensor([[name in own for name in classes] for own in self.labels])


def read_labelled(file: Path) -> LabelledSets:
    """A CSV of path,label[,split] with labels as `a;b`, or JSONL, where they may also be lists."""
    if file.suffix.lower() not in (".csv", ".jsonl") or not file.is_file():
        raise DearError(f"{file} is no list of images: give a .csv or .jsonl with path, label (as a;b) and perhaps "
                        "split.")  # fmt: skip
    examples, labels, test = [], [], []
    for line, row in list_rows(file):
        label = row.get("label")
        if isinstance(label, list) and all(isinstance(name, str) for name in label):
            label = ";".join(label)
        _, path, names, split = checked_row(file, line, {**row, "label": label or ";"})  # no label: none of the classes
        if split is not None and split_of(split) is None:
            raise DearError(f"{file}, line {line}: split must be train, val or test, not {split or 'empty'}.")
        examples.append(Example(ImageFile(path), 0))
        labels.append(frozenset(check_name(name.strip()) for name in names.split(";") if name.strip()))
        test.append(split_of(split or "train") == "test")
    return LabelledSets(examples, labels, torch.tensor(test, dtype=torch.bool))


class Several:
    """Scores k(f, F) V + b (z - m): kernel ridge, and cosines z with the texts beside their means m over the images."""

    def __init__(self, tensors: dict[str, Tensor], classes: tuple[str, ...], backbone: Backbone) -> None:
        self.tensors, self.classes, self.backbone = tensors, classes, backbone

    def scores(self, features: Tensor) -> Tensor:
        """Features [images, dim] -> scores [images, classes]."""
        t, features = self.tensors, features.double().cpu()
        kernel = (t["beta"] * (features @ t["landmarks"].T - 1)).exp()
        return kernel @ t["values"] + t["weight"] * (features @ t["text"].T - t["means"])

    def encode(self, examples: Sequence[Example], source: ImageSource) -> Tensor:
        kind = find_method(ZERO_SHOT)
        model = kind(self.backbone, kind.Config())
        source.encode(examples, [model])
        return frozen_features(model, source.images(examples, model, "features"))[0].double().cpu()

    def save(self, folder: Path, template: str) -> None:
        facts = {"classes": self.classes, "template": template, "backbone": self.backbone.identity.to_json()}
        folder.mkdir(parents=True, exist_ok=True)
        save_tensors(folder / _FILE, self.tensors, {"facts": json.dumps(facts)})

    @classmethod
    def load(cls, folder: Path, device: str = "cpu", precision: str = "auto") -> "Several":
        if not (folder / _FILE).is_file():
            raise DearError(f"{folder} holds no model for several labels: `dear several fit` makes one.")
        tensors, notes = read_tensors(folder / _FILE, _ADVICE)
        with damaged(str(folder / _FILE), _ADVICE):
            facts: dict[str, Any] = json.loads(notes["facts"])
            identity = facts["backbone"]
        backbone = load_backbone(identity["model"], identity["pretrained"], device=device, precision=precision)
        backbone.identity.require_same(identity, f"The model in {folder}")
        return cls(tensors, tuple(facts["classes"]), backbone)


def fit_scores(features: Tensor, targets: Tensor, text: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """The tensors of a model, and scores [images, classes] of each image by the fit without it.

    Features [images, dim] and texts [classes, dim] in fp64. Width and ridge of the kernel, and the weight of the texts,
    are those with the least squared error of images left out.
    """
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(0))
    landmarks, everything = order[:_LANDMARKS].sort().values, torch.arange(len(features))
    cosines, plain, y = features @ features[landmarks].T, features @ text.T, targets.double()
    means = plain.mean(0)
    plain, best, found = plain - means, math.inf, None
    for beta, ridge in product(_BETAS, _RIDGES):
        fit = KernelRidge(cosines, y, landmarks, beta)
        left_out = fit.left_out(ridge, everything)
        weight = ((y - left_out) * plain).sum().div(plain.square().sum().clamp(min=1e-12)).clamp(min=0)
        scores = left_out + weight * plain
        if (error := float((y - scores).square().mean())) < best:
            tensors = {"landmarks": features[landmarks], "values": fit.weights(ridge), "text": text, "means": means,
                       "weight": weight, "beta": torch.tensor(beta, dtype=torch.double)}  # fmt: skip
            best, found = error, (tensors, scores)
    assert found is not None
    return found


def threshold(scores: Tensor, truth: Tensor, promise: float | None = None) -> float:
    """The score [images] from which on a class is named: that with the best F1, or the lowest with this precision.

    Infinite if the promise cannot be kept: the class is never named then.
    """
    scores, order = scores.sort(descending=True)
    hits, named = truth[order].cumsum(0), torch.arange(1, len(scores) + 1)
    below = torch.cat([scores[1:], scores[-1:] - 1])
    quality = 2 * hits / (named + hits[-1]) if promise is None else named * (hits >= promise * named)
    quality = quality.double().masked_fill(scores == below, 0)  # equal scores are named together
    place = int(quality.argmax())
    return float(scores[place] + below[place]) / 2 if quality[place] > 0 else math.inf


def average_precision(scores: Tensor, truth: Tensor) -> float:
    """The mean precision at each image of a class, in %, by scores [images]; nan without such images."""
    scores, order = scores.sort(descending=True)
    hits = truth[order].cumsum(0)
    last = torch.searchsorted(-scores.contiguous(), -scores.contiguous(), right=True)  # named with those of its score
    return 100 * float((hits[last - 1] / last)[truth[order]].mean())


def measured(scores: Tensor, named: Tensor, truth: Tensor, classes: Sequence[str]) -> tuple[Table, str]:
    """Precision, recall, F1 and average precision of each class, and a line with mAP, micro and macro F1."""
    table, f1s, averages = Table(["class", "images", "precision", "recall", "F1", "AP"]), [], []
    for name, score, yes, true in zip(classes, scores.T, named.T, truth.T, strict=True):
        hits, said, there = int((yes & true).sum()), int(yes.sum()), int(true.sum())
        f1s.append(200 * hits / max(1, said + there))
        averages.append(average_precision(score, true))
        percent = (100 * hits / count if count else None for count in (said, there))
        table.add(name, there, *percent, f1s[-1], averages[-1])
    known = [value for value in averages if value == value]
    micro = 200 * int((named & truth).sum()) / max(1, int(named.sum() + truth.sum()))
    mean = f"{sum(known) / len(known):.1f}" if known else "-"
    line = f"{counted(len(truth), 'image')}: mAP {mean}, micro F1 {micro:.1f}, macro F1 {sum(f1s) / len(f1s):.1f}"
    return table, line


def fit_several(
    data: LabelledSets, source: ImageSource, template: str = TEMPLATE, promise: float | None = None
) -> tuple[Several, Tensor, Tensor]:
    """The model of all images but those for testing, their scores left out, and their targets."""
    check_template(template)
    rows = (~data.test).nonzero()[:, 0].tolist()
    own = LabelledSets([data.examples[i] for i in rows], [data.labels[i] for i in rows], data.test[rows])
    classes = tuple(sorted(frozenset[str]().union(*own.labels)))
    if not classes:
        raise DearError("No image to fit has a label: give some of each class.")
    targets = own.targets(classes)
    counts = targets.sum(0)
    if few := [name for name, count in zip(classes, counts.tolist(), strict=True) if count < 2]:
        raise DearError(f"{few[0]!r} has one image, so no threshold can be checked: label a second one.")
    if every := [name for name, count in zip(classes, counts.tolist(), strict=True) if count == len(rows)]:
        raise DearError(f"Every image is {every[0]!r}: add images without it, or leave it out.")
    kind = find_method(ZERO_SHOT)
    text_of = kind(source.backbone, kind.Config())
    text_of.set_classes(classes, template)
    text = F.normalize(text_of.encode_text(text_of.classes).double().cpu(), dim=1)
    model = Several({}, classes, source.backbone)
    tensors, scores = fit_scores(model.encode(own.examples, source), targets, text)
    cuts = [threshold(score, true, promise) for score, true in zip(scores.T, targets.T, strict=True)]
    model.tensors = {**tensors, "thresholds": torch.tensor(cuts).double()}
    return model, scores, targets
