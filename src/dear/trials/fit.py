"""`dear fit`: a model in seconds, the best of the methods that are computed from kept features, by leave-one-out."""

import os
import tempfile
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace as with_fields

from dear.clip import Backbone
from dear.core.config import setting
from dear.core.errors import DearError, reason_of, warn
from dear.core.files import require_folder
from dear.core.lock import only_writer
from dear.core.metrics import interval_text
from dear.core.names import AUTO
from dear.core.progress import reporting_phases
from dear.core.runtime import precision_name, with_fp64
from dear.core.words import counted
from dear.data.check import content_hash, describe_dataset, problems
from dear.data.dataset import Dataset
from dear.data.resolve import name_in_memory, resolve_dataset
from dear.methods.registry import (
    CLOSED_FORMS,
    QUICK,
    UNFITTED,
    ZERO_SHOT,
    methods_for,
    require_method,
)
from dear.methods.shared.closed_form import ClosedForm
from dear.methods.shared.per_class import frozen_features
from dear.training.adapter import Adapter, save_adapter
from dear.training.backbone import choose_backbone
from dear.training.config import TaskConfig, TrainConfig
from dear.training.images import DatasetImages, ImageSource
from dear.training.run_folder import RunFolder
from dear.trials.curve import learning_curve, some_names
from dear.trials.outcome import Outcome, labels_of
from dear.trials.selection import Selection, select
from dear.trials.task import Task
from dear.trials.trial import Trial, uncropped_trial

FITTED = (*UNFITTED, *CLOSED_FORMS, *QUICK)  # what `fit` can take, the simplest first
ALONE = "proker"  # with one image per class nothing can be compared


@dataclass(frozen=True)
class FitConfig(TaskConfig):
    """Method, backbone and data."""

    method: str = setting(AUTO, f"auto: the best one on your images; or one of {', '.join(FITTED)}")


@dataclass(frozen=True)
class FitResult:
    """The fitted model, why it was chosen, and its outcome on test images of the data's own, if there are any."""

    adapter: Adapter
    selection: Selection
    test: Outcome | None
    fitted: frozenset[str]  # names of the images that were fitted to

    def text(self) -> str:
        return "\n".join([str(self.selection), *([] if self.test is None else [_test_line(self.test)])])

    def records(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {**self.selection.to_json(), "test": None if self.test is None else self.test.to_json()}

    __str__ = text


def cache_folder(given: Path | None) -> Path:
    """The cache folder: `given`, or the user's. Refuses one that cannot be written."""
    require_folder(given, "--cache")
    folder = given or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dear"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, ValueError) as error:  # ValueError: of a null character
        raise DearError(
            f"Encoded images cannot be kept in {folder} ({reason_of(error)}): give another folder as --cache."
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
    """Fits `run.method` (or auto) to all labelled images but those of a test split, and writes a run into `out`.

    `cache`: folder for kept states, see `cache_folder`. `data`: a dataset in memory, in place of `run.data`.
    """
    if run.method not in (AUTO, *FITTED):
        names = ", ".join((AUTO, *FITTED))
        raise DearError(f"`fit` has the methods {names}, not {run.method}: `dear train` has the others.")
    folder = None if out is None else RunFolder(out)
    if folder is not None and folder.is_started:
        raise DearError(f"{out} already holds a run: choose another --out.")
    cache = cache_folder(cache)
    dataset = labelled_images(resolve_dataset(data or run.data, run.template, run.class_names, run.data_root))
    with nullcontext() if out is None else only_writer(out), reporting_phases():
        if folder is not None:
            folder.check_free({}, resume=False)
        name = run.data if data is None else name_in_memory(data)
        choice = choose_backbone(run.model, run.pretrained, [name])
        run = replace(run, model=choice.model, pretrained=choice.pretrained)
        if run.method != AUTO:
            require_method(run.method, run.model, run.text_features is not None)
        backbone = choice.load(device, precision, run.text_features)
        choice.say()
        print(_task_text(dataset), flush=True)
        source = ImageSource(backbone, cache)
        trial, selection = choose(dataset, source, run.method, thorough)
        assert trial.model is not None
        trial.model.set_classes(dataset.classes, dataset.template)
        test = None
        if dataset.test:
            tested = Trial(trial.method, Task.on_test(dataset), trial.config, trial.train)
            tested.measure(trial.model, tested.task.rounds[0], source)
            test = tested.outcome()
            trial.model.set_classes(dataset.classes, dataset.template)
        if folder is not None:
            shots = max(Counter(example.label for example in dataset.train).values())
            train = TrainConfig(shots=shots, epochs=0, device=device, precision=precision_name(backbone.precision))
            settings = replace(run, data=name, method=trial.method).to_json() | trial.config.to_json()
            drawn = {"train": dataset.train, "val": ()}
            folder.write_start(settings | train.to_json(), drawn, content_hash(dataset.train))
            folder.write_fit(selection.to_json())
            save_adapter(folder.path, trial.method, trial.model, dataset.template)
            if test is not None:
                folder.write_test({"all": test.accuracy})
    adapter = Adapter(trial.model.eval().requires_grad_(False), trial.method, dataset.classes, dataset.template)
    return FitResult(adapter, selection, test, frozenset(str(example.picture) for example in dataset.train))


def choose(data: Dataset, source: ImageSource, method: str = AUTO, thorough: bool = False) -> tuple[Trial, Selection]:
    """The trial of the best method, or of the given one beside zero-shot, fitted to `data.train`; and why."""
    task, names = Task.left_out(data), _candidates(source.backbone, method, thorough)
    trials = {name: uncropped_trial(name, task) for name in names}
    images = [*task.fitted_images(), *data.test]
    models = [trial.prepare(source) for trial in trials.values()]
    source.encode(images, models, f"encoding {counted(len(images), 'image')}, for all methods")
    labels = labels_of(data.train)
    if len(labels.unique()) == len(labels):
        trial = uncropped_trial(ALONE if method == AUTO else method, task)
        trial.fit(data, source)
        advice = "Label a second image of each class, and methods can be compared."
        return trial, Selection(len(data.classes), None, trial.method, _reason_alone(trial), advice=advice)
    answers = {}
    for name, trial in trials.items():
        logits = trial.run(source).logits()
        assert logits is not None
        answers[name] = logits, trial.measured
    selection = select(answers, labels, data.classes)
    if method != AUTO:
        selection = with_fields(selection, chosen=method, reason=f"{method}, as asked.")
    chosen = trials[selection.chosen]
    selection = _with_curve(selection, trials, data, source)
    if chosen.model is None:  # it was only fitted to folds
        chosen.fit(data, source)
    return chosen, selection


def _candidates(backbone: Backbone, method: str, thorough: bool) -> list[str]:
    """The methods to compare, the simplest first, as far as they work with the backbone."""
    if method != AUTO:
        return list(dict.fromkeys((ZERO_SHOT, method)))
    known = methods_for(backbone.image.tier, backbone.text.tier, not backbone.image.why_no_sum)
    return [name for name in (*UNFITTED, *CLOSED_FORMS, *(QUICK if thorough else ())) if name in known]


def _reason_alone(trial: Trial) -> str:
    """Why this method is taken if no class has two images."""
    reason = f"{trial.method}: with one image per class no method can be checked"
    if not isinstance(trial.model, ClosedForm):
        return f"{reason}."
    is_zero_shot = trial.model.head.mix[1] == 0
    return f"{reason}, and it is zero-shot then." if is_zero_shot else f"{reason}, so its settings are fixed."


def _with_curve(selection: Selection, trials: dict[str, Trial], data: Dataset, source: ImageSource) -> Selection:
    """Adds the learning curve: of the chosen method if it is a closed form, else of the best one."""
    closed = {name: trial.model for name, trial in trials.items() if isinstance(trial.model, ClosedForm)}
    if not closed or selection.board is None:
        return selection
    board, chosen = selection.board, selection.chosen
    name = chosen if chosen in closed else min(closed, key=lambda name: board[name].cross_entropy or 0.0)
    model = closed[name]
    with torch.no_grad():
        features, truth = frozen_features(model, DatasetImages(data, source, model).train())
        features, truth, text = map(with_fp64, (features, truth, model.encode_text(model.classes)))
        curve, advice = learning_curve(model.head, features, truth, text, data.classes)
    if name != chosen:
        advice = f"{advice[:-1]}, both with {name}, the best method in closed form."
    return with_fields(selection, curve=curve, advice=advice)


def labelled_images(dataset: Dataset) -> Dataset:
    """The dataset with all images to fit, but those of a test split of its own; refuses unreadable ones."""
    images = (*dataset.train, *dataset.val, *(dataset.test if dataset.rule else ()))
    dataset = replace(dataset, train=images, val=(), test=() if dataset.rule else dataset.test)
    if not images:
        raise DearError(f"{dataset.name} has no labelled images: give some of each class.")
    findings = problems(dataset, 1)  # every image is used, so only a class without any is too small
    findings.refuse_unreadable()
    if empty := [name for name, _ in findings.small]:
        warn(
            f"{len(empty)} of {len(dataset.classes)} classes have no labelled images, and will hardly ever be answered "
            f"beside the others: {', '.join(some_names(empty))}"
        )
    for line in replace(findings, small=[]).warnings():
        warn(line)
    return dataset


def _task_text(dataset: Dataset) -> str:
    """Describes the classes and how their images are used."""
    images = Counter(example.label for example in dataset.train)
    checked = ", each answered by a fit without it" if max(images.values()) > 1 else ""
    return f"{describe_dataset(dataset)}\nall {len(dataset.train)} labelled images are used{checked}"


def _test_line(test: Outcome) -> str:
    interval = interval_text(test.interval)
    return f"test accuracy: {test.accuracy:.1f}% of {test.images} images that were not fitted ({interval})"
