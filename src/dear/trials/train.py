"""`dear train`: from settings to a folder with an adapter, its few-shot lists, its metrics and its test results."""

import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dear.clip import MINI
from dear.core.config import Config
from dear.core.errors import DearError
from dear.core.files import require_folder
from dear.core.lock import only_writer
from dear.core.names import AUTO
from dear.core.progress import phase, reporting_phases
from dear.core.runtime import pick_device, pick_precision, precision_name, use_deterministic_algorithms
from dear.data.check import check_before_training, content_hash, division
from dear.data.dataset import Dataset
from dear.data.few_shot import with_few_shot
from dear.data.resolve import resolve_dataset
from dear.data.splits import OWN_SPLIT, VALIDATED_SPLIT, divide_again
from dear.methods.base import Method
from dear.methods.optional import Telling
from dear.methods.registry import ZERO_SHOT, find_method, recipe_of, require_method, simple_methods, with_overrides
from dear.parallel import processes
from dear.training.adapt import predict_logits
from dear.training.adapter import save_adapter
from dear.training.backbone import choose_backbone
from dear.training.config import NONE, SingleRunConfig, TrainConfig
from dear.training.estimate import RunEstimate
from dear.training.images import ImageSource
from dear.training.run_folder import RunFolder
from dear.trials.outcome import BASE, NOVEL, Unseen
from dear.trials.page import write_results
from dear.trials.run_result import RunResult, accuracy_summary, run_result
from dear.trials.task import Task
from dear.trials.trial import Trial
from dear.trials.unseen import foresee

_FIRST = 32  # training images whose answers are checked before a run counts as finished


def run_settings(
    settings: Mapping[str, Any], published_constants: bool = False
) -> tuple[SingleRunConfig, Config, TrainConfig]:
    """Settings of the run, the method and the training: those given here, on top of the method's published recipe.

    `published_constants`: also use what the method's authors set for this dataset alone. An unknown name is refused.
    """
    run = SingleRunConfig.pick(settings)
    method = find_method(run.method).Config
    check_setting_names(settings, run.method, SingleRunConfig, TrainConfig, method)
    recipe = recipe_of(run.method, constants_of=run.data if published_constants else None)
    complete = with_overrides(recipe, settings)
    return SingleRunConfig.pick(complete), method.pick(complete), TrainConfig.pick(complete)


def check_setting_names(settings: Iterable[str], method: str, *configs: type[Config]) -> None:
    """Refuses a name that is no setting of the configs, and tells the nearest one."""
    names = [name for config in configs for name in config.names()]
    for name in settings:
        if name not in names:
            nearest = get_close_matches(name, names, 1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"choose from {', '.join(names) or 'none'}."
            raise DearError(f"There is no setting {name!r} for {method}: {hint}")


def train_run(
    run: SingleRunConfig,
    method: Config,
    train: TrainConfig,
    out: Path,
    resume: bool = False,
    cache: Path | None = None,
    time_limit: float | None = None,
    data: Dataset | None = None,
) -> RunResult:
    """Trains, compares with zero-shot and the methods without training on the test images, and writes all into `out`.

    `cache`: a folder of cached states, shared by runs. `time_limit`: seconds of the whole run, which then has fewer
    epochs. `data`: a dataset in memory, in place of what --data names. Inside
    `dear.parallel.processes.process_group` all processes do this together, and the first one writes.
    """
    require_folder(cache, "--cache")
    deadline = None if time_limit is None else time.monotonic() + time_limit
    with only_writer(out) if processes.is_rank_zero() else nullcontext(), reporting_phases():
        return _Run(run, method, train, RunFolder(out), resume, cache, deadline, data).train()


class _Run:
    """One run: a trial of the method, kept, beside trials of zero-shot and the methods without training."""

    def __init__(
        self,
        run: SingleRunConfig,
        method: Config,
        train: TrainConfig,
        folder: RunFolder,
        resume: bool,
        cache: Path | None,
        deadline: float | None,
        data: Dataset | None,
    ) -> None:
        device = processes.local_device(pick_device(train.device))
        train = _with_precision(train, folder, resume, device)
        if train.deterministic:
            use_deterministic_algorithms()
        stored = folder.settings() if resume else {}
        if run.model == AUTO and stored:
            run = replace(run, model=stored.get("model", MINI), pretrained=stored.get("pretrained"))
        run, whole = _with_split(run, stored, data)
        choice = choose_backbone(run.model, run.pretrained, [run.data])
        run = replace(run, model=choice.model, pretrained=choice.pretrained)
        self.run, self.config, self.folder, self.deadline = run, train, folder, deadline
        self.settings = {**run.to_json(), **method.to_json(), **train.to_json()}
        if processes.is_rank_zero():
            folder.check_free(self.settings, resume)
        processes.barrier()  # no process reads a folder that is not this run's
        if run.folds and not whole.rule:
            raise DearError(f"{whole.name} has a test split of its own: leave --folds out.")
        everything = (*whole.train, *whole.val, *whole.test)
        self.whole = replace(whole, train=everything, val=(), test=()) if run.folds else whole
        drawn = self._draw(self.whole)
        self.final = drawn.base() if train.classes == BASE else drawn  # what the adapter that is saved has seen
        choice.say()
        require_method(run.method, run.model, run.text_features is not None)
        check_before_training(drawn, train.shots, self.whole, run.folds or 0, self.final)
        self.trial = Trial(run.method, self._task(whole, drawn), method, train)
        backbone = choice.load(device, train.precision, run.text_features)
        self.source = ImageSource(backbone, cache, train.workers, run.fast_decode)
        self.prepared = self.trial.prepare(self.source)  # wrong settings are refused before any work
        self.unseen: Unseen | None = None
        self.cut = self.learned = ""  # the cost of a time limit, and the method's own sentence on its training

    def train(self) -> RunResult:
        subject, rounds = self.trial, self.trial.task.rounds
        start = time.monotonic()
        baselines = self._baselines()
        seconds = (time.monotonic() - start) / len(rounds)  # what a test takes, at most
        for number, one in enumerate(rounds, 1):
            later = len(rounds) - number + bool(self.run.folds)  # trainings after this one
            estimate = RunEstimate(partial(_seconds_after, later, seconds), self._share(later + 1))
            if self.run.folds:
                print(f"fold {number} of {len(rounds)}", flush=True)
                model = self._fit(one.fit, self.folder.fold(number), estimate)
            else:
                model = self._fit(self.final, self.folder.path, estimate)
                self._save(model)
            with phase("testing", has_bar=True):
                subject.measure(model, one, self.source)
        if self.run.folds:
            print("training on all images, for use", flush=True)
            self._save(self._fit(self.final, self.folder.path, RunEstimate(deadline=self.deadline)))
        result = run_result(subject, baselines, self.unseen)
        if processes.is_rank_zero():
            examples = {part: subject.task.examples(part) for part in subject.task.parts}
            write_results(self.folder, result, examples, self._facts())
            self.folder.remove_folds()
        return result

    def _task(self, whole: Dataset, drawn: Dataset) -> Task:
        if not self.run.folds:
            return Task.on_test(drawn, self.config.classes, self.whole)
        return Task.on_folds(
            [self._draw(fold) for fold in whole.folds(self.run.folds)], self.config.classes, self.whole
        )

    def _baselines(self) -> list[Trial]:
        """Zero-shot and the methods without training, fitted and measured like the method itself."""
        own = {name: getattr(self.config, name) for name in ("seed", "device", "workers", "precision")}
        task = replace(self.trial.task, pool=None)
        names = [name for name in (ZERO_SHOT, *simple_methods()) if name != self.run.method]
        trials = [Trial(name, task, train=TrainConfig(**own)) for name in names]
        models = [trial.prepare(self.source) for trial in trials]
        start, measured = time.monotonic(), processes.local_rows(task.measured_images())
        asks = self.trial.kind.before_training is not Method.before_training  # for training images as they are
        clean = [self.prepared.train()] if asks or self.config.augment == NONE or self.run.validate else []
        shown = [*measured, *self.final.train[:_FIRST]]
        self.source.encode(shown, [*models, self.prepared.eval()], "encoding the test images")
        self.source.encode(task.fitted_images(), [*models, *clean], "encoding the training images")
        for trial in trials:
            trial.run(self.source)
        print(f"before training: {accuracy_summary(trials)} ({time.monotonic() - start:.0f} s)", flush=True)
        return trials

    def _share(self, trainings: int) -> float | None:
        """The deadline of this training, if so many share the time that is left."""
        now = time.monotonic()
        return None if self.deadline is None else now + (self.deadline - now) / trainings

    def _draw(self, data: Dataset) -> Dataset:
        if self.run.few_shot:
            return with_few_shot(data, Path(self.run.few_shot))
        return data.few_shot(self.config.shots, self.config.seed)

    def _fit(self, data: Dataset, out: Path, estimate: RunEstimate) -> Method:
        model = self.trial.fit(data, self.source, out, self._write_start, self.run.validate, estimate)
        if estimate.epochs and estimate.epochs[0] < estimate.epochs[1]:
            self.cut = "--time-limit: {} of {} epochs; more may be better".format(*estimate.epochs)
            print(self.cut, flush=True)
        return model

    def _write_start(self) -> None:
        if processes.is_rank_zero():  # a run that could not start leaves no folder
            drawn = {"train": self.final.train, "val": self.final.val}
            self.folder.write_start(self.settings, drawn, content_hash((*self.final.train, *self.final.val)))

    def _save(self, model: Method) -> None:
        names = len(self.trial.task.classes(NOVEL)) if self.config.classes == BASE else None
        with phase("leaving out classes"):
            self.unseen = foresee(self.trial, self.final, self.source, names)
        predict_logits(model, self.final.train[:_FIRST], self.source, "check")  # refuses what is not finite
        if processes.is_rank_zero():
            save_adapter(self.folder.path, self.run.method, model, self.final.template)
            self.learned = model.learned() if isinstance(model, Telling) else ""
            if self.learned:
                print(self.learned, flush=True)

    def _facts(self) -> list[str]:
        backbone = " ".join(filter(None, (self.run.model, self.run.pretrained)))
        lines = division(self.whole, self.final, self.config.shots, self.run.folds or 0)
        return [
            f"{self.run.method} on {backbone}; data: {self.run.data}",
            *lines,
            *filter(None, (self.learned, self.cut)),
        ]


def _seconds_after(later: int, test: float, training: float) -> float:
    """Seconds of a run after a training of `training` seconds: its test, and as many more of both as are `later`."""
    return test + later * (training + test)


def _with_precision(train: TrainConfig, folder: RunFolder, resume: bool, device: torch.device) -> TrainConfig:
    """The settings with the precision that is taken: stored, it stays the same where a run continues elsewhere."""
    name = train.precision
    if name == "auto" and resume:
        name = folder.settings().get("precision", name)
    return replace(train, precision=precision_name(pick_precision(name, device)))


def _with_split(
    run: SingleRunConfig, stored: Mapping[str, Any], data: Dataset | None
) -> tuple[SingleRunConfig, Dataset]:
    """The data, and the settings with the split of your own images: that of the stored run, if it continues."""
    dataset = resolve_dataset(data or run.data, run.template, run.class_names, run.data_root, run.split)
    if not dataset.rule or run.split or run.folds:
        return run, dataset
    split = stored.get("split") or (VALIDATED_SPLIT if run.validate else OWN_SPLIT)
    return replace(run, split=split), divide_again(dataset, split)
