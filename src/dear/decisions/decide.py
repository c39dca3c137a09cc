"""`dear decide`: measures a decision for a finished run on images that its fit has not seen, and writes it there."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dear.clip import MINI
from dear.clip.text_table import TextTable
from dear.core.errors import DearError, warn
from dear.core.files import read_text
from dear.core.metrics import wilson_interval
from dear.core.names import inferences
from dear.data.check import picture_hash
from dear.data.dataset import Dataset, Example, ImageFile
from dear.data.folder import find_images
from dear.data.resolve import resolve_dataset
from dear.data.splits import divide_again
from dear.decisions import thresholds
from dear.decisions.decision import FULL, HELD_OUT, LEFT_OUT, Abstain, Coverage, Decision, Measured, Reject
from dear.methods.base import Method
from dear.methods.closed_forms import ProKeRHead
from dear.methods.registry import METHODS, UNFITTED
from dear.methods.shared.closed_form import ClosedForm
from dear.methods.shared.stacking import classes_alike, stack
from dear.training.adapt import predict_logits
from dear.training.adapter import load_adapter, read_config
from dear.training.images import ImageSource
from dear.training.run_folder import RunFolder
from dear.trials.curve import some_names
from dear.trials.fit import cache_folder
from dear.trials.outcome import labels_of
from dear.trials.task import Task
from dear.trials.trial import Trial

ESTIMATE = "classes"  # in place of a folder of strangers: the classes themselves, each left out in turn
NOUNS = Path(__file__).parent / "assets" / "nouns.txt"
_ALIKE = 0.9  # cosine from which a word means a class


@dataclass(frozen=True)
class DecideConfig:
    """The promises that are asked for; None: not this one."""

    reject: float | None = None
    strangers: str | None = None
    other: tuple[str, ...] = ()
    coverage: float | None = None
    abstain: float | None = None

    def __post_init__(self) -> None:
        for name in ("reject", "coverage", "abstain"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise DearError(f"--{name} is a share between 0 and 1, such as 0.05 or 0.95, not {value:g}.")
        if self.reject is None and (self.strangers is not None or self.other):
            object.__setattr__(self, "reject", 0.05)


@dataclass(frozen=True)
class _Own:
    """Labelled images with logits [images, classes], labels, and class features [images, dim] of the fitted model, or
    none where they were left out by folds."""

    examples: Sequence[Example]
    logits: np.ndarray
    labels: np.ndarray
    features: np.ndarray
    how: str


def decide_run(
    run: Path, asked: DecideConfig, data: str | Dataset | None = None, cache: Path | None = None,
    device: str = "auto", precision: str = "auto",
) -> Decision:  # fmt: skip
    """The decision of the adapter in `run`, which is also written there. `data`: labelled images to measure it on."""
    config, adapter = read_config(run), load_adapter(run, device=device, precision=precision)
    source = ImageSource(adapter.model.backbone, cache_folder(cache))
    method = _Measure(adapter.model, adapter.method, adapter.template, source, RunFolder(run))
    own, temperature = method.own(config, data), 1.0
    if len(own.labels):
        labels = torch.from_numpy(own.labels)
        temperature = 1 / max(1e-3, stack([torch.from_numpy(own.logits)], labels, classes_alike(labels))[0].item())
    elif asked.coverage or asked.abstain or (asked.reject and asked.strangers in (None, ESTIMATE)):
        raise DearError(
            "No class has a second image, so none can be answered by a fit without it and nothing can be promised: "
            "label more images, or give held-out ones with --data."
        )
    own = replace(own, logits=own.logits / temperature)
    words: tuple[tuple[str, ...], np.ndarray | None] = (), None
    reject = coverage = abstain = None
    if asked.reject is not None:
        words = method.words(asked.other, own)
        reject = method.reject(own, asked.reject, asked.strangers, words[1], temperature)
    if asked.coverage is not None:
        coverage = method.coverage(own, asked.coverage, temperature)
    if asked.abstain is not None:
        likely = thresholds.probabilities_of(own.logits)
        right = likely.argmax(1) == own.labels
        abstain = Abstain(asked.abstain, *thresholds.least_sure(likely.max(1), right, asked.abstain))
    images, sha = len(own.labels), config["config_sha256"]
    decision = Decision(sha, own.how, images, temperature, images > 0, reject, coverage, abstain, words[0])
    decision.write(run, words[1])
    return decision


class _Measure:
    """The adapted model with the images of its run."""

    def __init__(self, model: Method, name: str, template: str, source: ImageSource, folder: RunFolder) -> None:
        self.model, self.name, self.template, self.source, self.folder = model, name, template, source, folder
        self.way = inferences(model.components)[0]
        with torch.no_grad():
            self.text = model.encode_text(model.classes).float().cpu().numpy()
        self.tau = float(model.backbone.temperature)

    def logits(self, examples: Sequence[Example], title: str) -> tuple[np.ndarray, np.ndarray]:
        """Logits [images, classes] and class features [images, dim] by the fitted model."""
        features: list[torch.Tensor] = []
        logits = predict_logits(
            self.model, examples, self.source, title, [self.way], lambda rows, _: features.append(rows[:, 0].cpu())
        )
        return logits[self.way].float().cpu().numpy(), torch.cat(features).float().numpy()

    def own(self, config: dict[str, Any], data: str | Dataset | None) -> _Own:
        """The labelled images that the decision is measured on, answered by a fit that has not seen them."""
        drawn = self.folder.few_shot()
        if data is not None:
            held_out: Sequence[Example] = _unseen_images(
                data, self.template, self.model.classes.names, drawn, self.folder.settings()
            )
        else:
            whole = self._data(drawn)
            held_out = whole.val
            if not held_out and (METHODS[self.name].kind != "trained" or self.folder.uses_all_images):
                return self._left_out(whole, config)
            if not held_out:
                raise DearError(f"{self.name} was trained on all labelled images of the run: give others with --data.")
        logits, features = self.logits(held_out, "held-out images")
        return _Own(held_out, logits, labels_of(held_out).numpy(), features, HELD_OUT)

    def _data(self, drawn: dict[str, Any]) -> Dataset:
        """The images that the run has drawn, found again in its data."""
        settings, names = self.folder.settings(), self.model.classes.names
        if "data" not in settings:
            raise DearError(f"{self.folder.path} does not say what it was fitted to: give labelled images with --data.")
        whole = resolve_dataset(settings["data"], self.template, settings.get("class_names"), settings.get("data_root"))
        found = {str(example.picture): example for example in (*whole.train, *whole.val, *whole.test)}
        parts = {part: [found.get(name) for name, _ in drawn.get(part, ())] for part in ("train", "val")}
        if None in (*parts["train"], *parts["val"]) or whole.classes[: len(names)] != names or not parts["train"]:
            raise DearError(f"The data of {self.folder.path} has changed: give labelled images with --data.")
        return replace(whole, classes=names, train=tuple(parts["train"]), val=tuple(parts["val"]), test=())  # type: ignore[arg-type]

    def _left_out(self, data: Dataset, config: dict[str, Any]) -> _Own:
        labels = labels_of(data.train)
        rows = (torch.bincount(labels)[labels] > 1).nonzero()[:, 0]
        if not len(rows):
            nothing = np.zeros((0, len(data.classes)), np.float32)
            return _Own((), nothing, labels[rows].numpy(), nothing, LEFT_OUT)
        kind = type(self.model)
        trial = Trial(self.name, Task.left_out(data), kind.Config(**config["settings"])).run(self.source)
        logits = trial.logits()
        assert logits is not None
        frozen = isinstance(self.model, ClosedForm) or self.name in UNFITTED  # else each fold has other features
        examples = [data.train[row] for row in rows.tolist()]
        features = self.logits(examples, "labelled images")[1] if frozen else np.zeros((len(rows), 0))
        how = HELD_OUT if self.name in UNFITTED else LEFT_OUT  # what is not fitted has seen no image
        return _Own(examples, logits[rows].float().cpu().numpy(), labels[rows].numpy(), features, how)

    def words(self, other: Sequence[str], own: _Own) -> tuple[tuple[str, ...], np.ndarray | None]:
        """Words for strangers and their features: `other`, and common nouns that name no class, if they are known."""
        model = self.model
        unknown = METHODS[self.name].texts_per_image or isinstance(model.backbone.text, TextTable)
        if unknown or not own.features.shape[1] or not model.can_answer(("anything",)):
            if other:
                raise DearError(
                    f"--other needs single words beside the classes, which {self.name} has not: leave it out."
                )
            return (), None
        nouns = [] if model.backbone.identity.model == MINI else read_text(NOUNS).split()
        names = tuple(dict.fromkeys((*other, *nouns)))
        if not names:
            return (), None
        with torch.no_grad():
            words = model.encode_text(model.encode_classes(names, self.template)).float().cpu().numpy()
        keep = [row < len(other) or like < _ALIKE for row, like in enumerate((words @ self.text.T).max(1))]
        return tuple(name for name, kept in zip(names, keep, strict=True) if kept), words[keep]

    def reject(
        self, own: _Own, alpha: float, strangers: str | None, words: np.ndarray | None, temperature: float
    ) -> Reject:
        def scores(logits: np.ndarray, features: np.ndarray, without: Sequence[int] = ()) -> np.ndarray:
            logits, text = np.delete(logits, without, 1), np.delete(self.text, without, 0)
            if words is None:
                return thresholds.score_of(logits)
            return thresholds.score_of(logits, self.tau * features @ text.T, self.tau * features @ words.T)

        mine, left, measured = scores(own.logits, own.features), np.zeros(len(own.labels)), []
        for label in np.unique(own.labels) if len(self.text) > 2 else ():
            rows = own.labels == label
            left[rows] = scores(own.logits[rows], own.features[rows], [label])
        if strangers is None:
            promise, threshold = "own", thresholds.least_accepted(mine, alpha)
        elif strangers == ESTIMATE:
            if len(self.text) < 3:
                raise DearError("Leaving classes out needs three classes or more: give a folder with --strangers.")
            promise, threshold = "estimate", thresholds.above_strangers(left, alpha)
        else:
            logits, features = self.logits(self._strangers(strangers, own.examples), "strangers")
            theirs = scores(logits / temperature, features)
            promise, threshold = "strangers", thresholds.above_strangers(theirs, alpha)
            measured.append(_told(Path(strangers).name, mine, theirs, threshold, np.arange(len(theirs))))
        if len(mine) and len(self.text) > 2:
            measured.append(_told("each class in turn, left out", mine, left, threshold, own.labels))
        refused = 100 * float((mine < threshold).mean()) if len(mine) else 0.0
        return Reject(promise, alpha, threshold, refused, tuple(measured))  # type: ignore[arg-type]

    def _strangers(self, folder: str, own: Sequence[Example]) -> list[Example]:
        """The images of a folder; refuses labelled images of the run."""
        pictures = [ImageFile(file) for file in find_images([folder])]
        files = [Path(name) for name, _ in self.folder.few_shot().get("train", ())]
        labelled = [*(example.picture for example in own), *(ImageFile(file) for file in files if file.is_file())]
        known = {picture_hash(picture) for picture in labelled}
        if same := [str(picture) for picture in pictures if picture_hash(picture) in known]:
            raise DearError(f"{len(same)} strangers are labelled images of the run, such as {same[0]}: take them out.")
        return [Example(picture, 0) for picture in pictures]

    def coverage(self, own: _Own, level: float, temperature: float) -> Coverage:
        probabilities = thresholds.probabilities_of(own.logits)
        threshold = thresholds.least_probability(probabilities[np.arange(len(own.labels)), own.labels], level)
        size = float((probabilities >= threshold).sum(1).mean())
        head = getattr(self.model, "head", None)
        if (
            isinstance(head, ProKeRHead) and own.how == LEFT_OUT and len(head.landmarks) == len(own.labels)
            and (head.mix > 0).all()
        ):  # fmt: skip
            labels = own.labels[(head.landmarks.cpu().numpy() @ own.features.T).argmax(1)]
            rank = math.floor((1 - level) * (len(labels) + 1) + 1e-9) + 1
            least = rank / (len(labels) + 1) - 1e-9  # the p-value next to 1 - level
            return Coverage(level, FULL, least, size, tuple(labels.tolist()))
        how = "split conformal" if own.how == HELD_OUT else "jackknife: measured, not guaranteed"
        return Coverage(level, how, threshold, size)


def _unseen_images(
    data: str | Dataset, template: str, classes: tuple[str, ...], drawn: dict[str, Any], run: dict[str, Any]
) -> list[Example]:
    """Labelled images of the classes that the run has not drawn; those of a test split are left alone."""
    dataset = resolve_dataset(data, template)
    if dataset.rule and run.get("split") and str(data) == run.get("data"):  # the run's own test images
        dataset = replace(divide_again(dataset, run["split"]), rule="")
    if strange := [name for name in dataset.classes if name not in classes]:
        raise DearError(f"--data has classes that the run has not: {', '.join(some_names(strange))}.")
    seen = {name for name, _ in drawn.get("train", ())}
    images = (*dataset.train, *dataset.val, *(dataset.test if dataset.rule else ()))
    numbers = [classes.index(name) for name in dataset.classes]
    examples = [Example(one.picture, numbers[one.label]) for one in images if str(one.picture) not in seen]
    if not examples:
        raise DearError(f"All images of {dataset.name} were trained on: give --data that the run has not seen.")
    present = {example.label for example in examples}
    if lacking := [name for label, name in enumerate(classes) if label not in present]:
        warn(f"the held-out images have none of {', '.join(some_names(lacking))}: no promise holds for these classes")
    return examples


def _told(name: str, own: np.ndarray, others: np.ndarray, threshold: float, units: np.ndarray) -> Measured:
    """How well scores tell strangers; `units` [strangers]: what counts as one in the interval of the share accepted."""
    kinds = np.unique(units)
    share = float(np.mean([(others[units == kind] >= threshold).mean() for kind in kinds]))
    ordered, scores = np.sort(others), own if len(own) else np.full(1, -np.inf)
    ranks = np.searchsorted(ordered, scores, "left") + np.searchsorted(ordered, scores, "right")
    fpr = float((others >= np.quantile(scores, 0.05)).mean())
    interval = wilson_interval(share * len(kinds), len(kinds))
    return Measured(name, len(others), 50 * float(ranks.mean()) / len(others), 100 * fpr, 100 * share, interval)
