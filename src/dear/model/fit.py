"""A model in seconds: the best of the methods that are computed from kept features, by leave-one-out."""

import io
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dear.clip import Backbone, load_backbone
from dear.core.config import setting
from dear.core.errors import DearError
from dear.core.files import require_folder
from dear.core.lock import only_writer
from dear.core.metrics import interval_text, wilson_interval
from dear.core.names import inferences
from dear.core.progress import progress, reporting_phases
from dear.core.runtime import pick_device, precision_name, with_fp64
from dear.data.check import content_hash, describe, problems
from dear.data.dataset import Dataset
from dear.data.resolve import name_in_memory, resolve_dataset
from dear.methods.base import Method
from dear.methods.registry import find_method, methods_for, recipe_of, require_method
from dear.methods.shared.class_index import frozen_features
from dear.methods.shared.closed_form import ClosedForm
from dear.model.adapter import Adapter, save_adapter
from dear.model.comparison import Comparison, compare, learning_curve
from dear.model.predictor import Predictor
from dear.training.adapt import adapt, evaluate, predict_logits
from dear.training.backbone import choose_backbone
from dear.training.config import TaskConfig, TrainConfig
from dear.training.images import DatasetImages, ImageSource, encode
from dear.training.run_folder import RunFolder

AUTO = "auto"
UNFITTED = ("zero-shot", "zero-shot-ensemble")
CLOSED_FORMS = ("ss-text", "gda", "proker")
TRAINED = ("linear-probe", "lp-plus-plus", "clap", "prolip", "head-gains")
"""The simplest first. Those that are trained are compared by cross-validation, if asked, on images as they are."""
METHODS = (*UNFITTED, *CLOSED_FORMS, *TRAINED)
ALONE = "proker"  # with one image per class nothing can be compared
_FOLDS = 5
_NAMED = 5  # classes in a sentence, at most


@dataclass(frozen=True)
class FitConfig(TaskConfig):
    """Method, backbone and data."""

    method: str = setting(AUTO, f"auto: the best one on your images; or one of {', '.join(METHODS)}")


@dataclass(frozen=True)
class FitResult:
    predictor: Predictor
    comparison: Comparison
    test: Mapping[str, float]  # test accuracy (%), if the data has test images of its own
    test_images: int

    def test_line(self) -> str:
        """The accuracy on test images of the data's own, with its interval; empty without any."""
        if not self.test_images:
            return ""
        found = self.test["all"]
        interval = interval_text(wilson_interval(round(found / 100 * self.test_images), self.test_images))
        return f"test accuracy: {found:.1f}% of {self.test_images} images that were not fitted ({interval})"

    def text(self) -> str:
        return "\n".join(filter(None, (str(self.comparison), self.test_line())))

    def records(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {**self.comparison.to_json(), "test": dict(self.test), "test_images": self.test_images}

    __str__ = text


def cache_folder(given: Path | None) -> Path:
    """Where states are kept: in the folder given, or that of all fits of this user; refuses one that is read-only."""
    require_folder(given, "--cache")
    folder = given or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dear"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise DearError(
            f"Encoded images cannot be kept in {folder} ({error.strerror}): give another folder as --cache."
        ) from None
    return folder


def fit_run(
    run: FitConfig,
    device: str = "auto",
    out: Path | None = None,
    cache: Path | None = None,
    thorough: bool = False,
    data: Dataset | None = None,
    precision: str = "auto",
) -> FitResult:
    """Fits `run.method` (or auto) on all labelled images but those of a test split, and writes a run into `out`.

    `cache`: folder for kept states, see `cache_folder`. `data`: a dataset in memory, in place of `run.data`.
    """
    if run.method not in (AUTO, *METHODS):
        names = ", ".join((AUTO, *METHODS))
        raise DearError(f"`fit` has the methods {names}, not {run.method}: `dear train` has the others.")
    folder = None if out is None else RunFolder(out)
    if folder is not None and folder.is_started:
        raise DearError(f"{out} already holds a run: choose another --out.")
    cache = cache_folder(cache)
    dataset = labelled_images(resolve_dataset(data or run.data, run.template, run.class_names, run.data_root))
    with nullcontext() if out is None else only_writer(out), reporting_phases():
        if folder is not None:
            folder.check_free({}, resume=False)
        choice = choose_backbone(run.model, run.pretrained, [run.data if data is None else name_in_memory(data)])
        run = replace(run, model=choice.model, pretrained=choice.pretrained)
        if run.method != AUTO:
            require_method(run.method, run.model, run.text_features is not None)
        backbone = load_backbone(
            run.model,
            run.pretrained,
            device=pick_device(device),
            precision=precision,
            text_features=run.text_features,
        )
        choice.say()
        print(_task(dataset), flush=True)
        source = ImageSource(backbone, cache)
        encode((*dataset.train, *dataset.test), source)
        model, comparison = fit(dataset, backbone, source, run.method, thorough)
        model.set_classes(dataset.classes, dataset.template)
        test = {"all": evaluate(model, dataset.test, source, "test")} if dataset.test else {}
        if folder is not None:
            name = run.data if data is None else name_in_memory(data)
            shots = max(Counter(example.label for example in dataset.train).values())
            train = TrainConfig(shots=shots, epochs=0, device=device, precision=precision_name(backbone.precision))
            settings = replace(run, data=name, method=comparison.chosen).to_json() | model.config.to_json()
            drawn = {"train": dataset.train, "val": ()}
            folder.write_start(settings | train.to_json(), drawn, content_hash(dataset.train))
            folder.write_fit(comparison.to_json())
            save_adapter(folder.path, comparison.chosen, model, dataset.template)
            if test:
                folder.write_test(test)
    adapter = Adapter(model.eval().requires_grad_(False), comparison.chosen, dataset.classes, dataset.template)
    predictor = Predictor(adapter, out)
    predictor.comparison, predictor.fitted = comparison, frozenset(str(example.picture) for example in dataset.train)
    return FitResult(predictor, comparison, test, len(dataset.test))


def labelled_images(dataset: Dataset) -> Dataset:
    """The dataset with all images to fit, but those of a test split of its own; refuses unreadable ones."""
    images = (*dataset.train, *dataset.val, *(dataset.test if dataset.rule else ()))
    dataset = replace(dataset, train=images, val=(), test=() if dataset.rule else dataset.test)
    if not images:
        raise DearError(f"{dataset.name} has no labelled images: give some of each class.")
    findings = problems(dataset, 1)  # every image is used, so only a class without any is too small
    findings.refuse_unreadable()
    if empty := [name for name, _ in findings.small]:
        names = ", ".join(empty[:_NAMED]) + (", ..." if len(empty) > _NAMED else "")
        print(
            f"dear: warning: {len(empty)} of {len(dataset.classes)} classes have no labelled images, and will hardly "
            f"ever be answered beside the others: {names}",
            file=sys.stderr,
        )
    for line in replace(findings, small=[]).warnings():
        print(f"dear: warning: {line}", file=sys.stderr)
    return dataset


def _task(dataset: Dataset) -> str:
    """The classes, and what is done with their images."""
    images = Counter(example.label for example in dataset.train)
    checked = ", each answered by a fit without it" if max(images.values()) > 1 else ""
    return f"{describe(dataset)}\nall {len(dataset.train)} labelled images are used{checked}"


def fit(
    data: Dataset, backbone: Backbone, source: ImageSource, method: str = AUTO, thorough: bool = False
) -> tuple[Method, Comparison]:
    """The best method, or the given one beside zero-shot, fitted to `data.train`; and the comparison."""
    known = methods_for(backbone.image.tier, backbone.text.tier, not backbone.image.why_no_sum)
    every = (*UNFITTED, *CLOSED_FORMS, *(TRAINED if thorough else ()))
    names = [name for name in every if name in known] if method == AUTO else list(dict.fromkeys((UNFITTED[0], method)))
    labels = torch.tensor([example.label for example in data.train])
    if len(labels.unique()) == len(labels):
        chosen = ALONE if method == AUTO else method
        model = _fitted(chosen, data, source)
        advice = "Label a second image of each class, and methods can be compared."
        return model, Comparison(0, len(data.classes), (), chosen, _unchecked(chosen, model), advice=advice)
    models: dict[str, Method] = {}
    logits: dict[str, tuple[Tensor, str]] = {}
    for name in names:
        if name in TRAINED:
            logits[name] = _cross_validated(name, data, source), f"{_FOLDS} folds"
            continue
        models[name] = model = _fitted(name, data, source)
        if isinstance(model, ClosedForm):
            assert model.head.left_out is not None
            logits[name] = model.head.left_out.cpu(), "leave-one-out"
        else:
            logits[name] = _logits(model, data, source), "no fit"
    comparison = compare(logits, labels, data.classes)
    if method != AUTO:
        comparison = replace(comparison, chosen=method, reason=f"{method}, as asked.")
    chosen = comparison.chosen
    comparison = _with_advice(comparison, models, data, source)
    return models[chosen] if chosen in models else _fitted(chosen, data, source), comparison


def _unchecked(name: str, model: Method) -> str:
    """Why this method, if no class has two images."""
    reason = f"{name}: with one image per class no method can be checked"
    if not isinstance(model, ClosedForm):
        return f"{reason}."
    return f"{reason}, and it is zero-shot then." if model.head.mix[1] == 0 else f"{reason}, so its settings are fixed."


def _with_advice(
    comparison: Comparison, models: Mapping[str, Method], data: Dataset, source: ImageSource
) -> Comparison:
    """With the learning curve of the chosen method, or of the best closed form if it is none."""
    losses = {row.method: row.cross_entropy for row in comparison.candidates}
    closed = {name: model for name, model in models.items() if isinstance(model, ClosedForm)}
    if not closed:
        return comparison
    chosen = comparison.chosen
    name = chosen if chosen in closed else min(closed, key=lambda name: losses[name])
    model = closed[name]
    with torch.no_grad():
        features, truth = frozen_features(model, DatasetImages(data, source, model).train())
        features, truth, text = map(with_fp64, (features, truth, model.encode_text()))
        curve, advice = learning_curve(model.head, features, truth, text, data.classes)
    if name != chosen:
        advice = f"{advice[:-1]}, both with {name}, the best method in closed form."
    return replace(comparison, curve=curve, advice=advice)


def _fitted(name: str, data: Dataset, source: ImageSource) -> Method:
    """By the published recipe, on images as they are: their states are kept, random crops would have to be encoded."""
    kind, recipe = find_method(name), {**recipe_of(name), "augment": "none"}
    quiet = redirect_stderr(io.StringIO()) if name in TRAINED else nullcontext()  # hundreds of epochs in a second
    with tempfile.TemporaryDirectory() as out, quiet:  # `out`: for checkpoints
        return adapt(kind, kind.Config.pick(recipe), data, TrainConfig.pick(recipe), source, Path(out))


def _logits(model: Method, data: Dataset, source: ImageSource) -> Tensor:
    inference = inferences(model.components)[0]
    return predict_logits(model, data.train, source, "labelled images", [inference])[inference]


def _cross_validated(name: str, data: Dataset, source: ImageSource) -> Tensor:
    """Logits of each image by a fit on the other folds, [images, classes]."""
    fold, scores = _folds([example.label for example in data.train]), None
    for number in progress(range(_FOLDS), f"{name}, folds", "fold"):
        rest = replace(data, train=tuple(e for e, of in zip(data.train, fold, strict=True) if of != number))
        rows = [row for row, of in enumerate(fold) if of == number]
        if not rows:
            continue
        model = _fitted(name, rest, source)
        part = _logits(model, replace(data, train=tuple(data.train[row] for row in rows)), source)
        scores = torch.zeros(len(fold), part.shape[1]) if scores is None else scores
        scores[rows] = part
    assert scores is not None
    return scores


def _folds(labels: Sequence[int]) -> list[int]:
    """The fold of each image: those of a class are spread evenly."""
    seen: dict[Any, int] = Counter()
    folds = []
    for label in labels:
        folds.append((seen[label] + label) % _FOLDS)
        seen[label] += 1
    return folds
