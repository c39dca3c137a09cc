"""A run: from settings to a folder with an adapter, its few-shot lists, its metrics and its test accuracy."""

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from dear.clip import load_backbone
from dear.core.config import Config
from dear.core.errors import DearError
from dear.core.lock import only_writer
from dear.core.metrics import harmonic_mean
from dear.core.runtime import pick_device
from dear.data.check import check_before_training, content_hash
from dear.data.dataset import Dataset
from dear.data.resolve import resolve_dataset
from dear.methods.base import Method
from dear.methods.registry import find_method, recipe_of, with_overrides
from dear.model.adapter import save_adapter
from dear.parallel import processes
from dear.training.adapt import adapt, evaluate, predict_logits
from dear.training.config import RunConfig, TrainConfig
from dear.training.images import ImageSource
from dear.training.run_folder import RunFolder

_FIRST = 32  # training images whose answers are checked before a run counts as finished


def run_settings(
    settings: Mapping[str, Any], published_constants: bool = False
) -> tuple[RunConfig, Config, TrainConfig]:
    """Settings of the run, the method and the training: those given here, on top of the method's published recipe.

    `published_constants`: also use what the method's authors set for this dataset alone. An unknown name is refused.
    """
    run = RunConfig.pick(settings)
    method = find_method(run.method).Config
    check_setting_names(settings, run.method, RunConfig, TrainConfig, method)
    recipe = recipe_of(run.method, constants_of=run.data if published_constants else None)
    complete = with_overrides(recipe, settings)
    return RunConfig.pick(complete), method.pick(complete), TrainConfig.pick(complete)


def check_setting_names(settings: Iterable[str], method: str, *configs: type[Config]) -> None:
    """Refuses a name that is no setting of the configs, and tells the nearest one."""
    names = [name for config in configs for name in config.names()]
    for name in settings:
        if name not in names:
            nearest = get_close_matches(name, names, 1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"choose from {', '.join(names) or 'none'}."
            raise DearError(f"There is no setting {name!r} for {method}: {hint}")


def train_run(
    run: RunConfig,
    method: Config,
    train: TrainConfig,
    out: Path,
    resume: bool = False,
    cache: Path | None = None,
    data: Dataset | None = None,
) -> dict[str, float]:
    """Trains, writes everything into `out`, and returns the test accuracies (%).

    `cache`: a folder of cached states, shared by runs. `data`: a dataset in memory, in place of what --data names.
    Inside `dear.parallel.processes.process_group` all processes do this together, and the first one writes.
    """
    with only_writer(out) if processes.is_rank_zero() else nullcontext():
        return _train(run, method, train, RunFolder(out), resume, cache, data)


def _train(
    run: RunConfig,
    method: Config,
    train: TrainConfig,
    folder: RunFolder,
    resume: bool,
    cache: Path | None,
    data: Dataset | None,
) -> dict[str, float]:
    settings = {**run.to_json(), **method.to_json(), **train.to_json()}
    if processes.is_rank_zero():
        folder.check_free(settings, resume)
    processes.barrier()  # no process reads a folder that is not this run's
    dataset = resolve_dataset(data or run.data, run.template, run.class_names, run.data_root)
    whole, dataset = dataset, dataset.few_shot(train.shots, train.seed)
    check_before_training(dataset, train.shots)
    trained = dataset.base() if train.classes == "base" else dataset
    source = ImageSource(
        load_backbone(
            run.model,
            run.pretrained,
            device=processes.local_device(pick_device(train.device)),
            text_features=run.text_features,
        ),
        cache,
        train.workers,
        run.fast_decode,
    )

    def started() -> None:  # a run that could not start leaves no folder
        if processes.is_rank_zero():
            drawn = {"train": trained.train, "val": trained.val}
            folder.write_start(settings, drawn, content_hash((*trained.train, *trained.val)))

    model = adapt(find_method(run.method), method, trained, train, source, folder.path, started, run.validate, whole)
    predict_logits(model, trained.train[:_FIRST], source, "check")  # a finished run answers: refuses what is not finite
    if processes.is_rank_zero():
        save_adapter(folder.path, run.method, model, trained.template)
    accuracies = test_accuracies(model, dataset, train.classes, source)
    if processes.is_rank_zero():
        folder.write_test(accuracies)
    return accuracies


def test_accuracies(model: Method, dataset: Dataset, classes: str, source: ImageSource) -> dict[str, float]:
    """{"all": ...}, or, after training on the base classes, base, novel and their harmonic mean.

    Classes that a method cannot answer (a linear probe has no novel classes) are left out.
    """
    halves = {"base": dataset.base(), "novel": dataset.novel()} if classes == "base" else {"all": dataset}
    accuracies = {}
    for name, part in halves.items():
        if model.can_answer(part.classes):
            model.set_classes(part.classes, part.template)
            accuracies[name] = evaluate(model, part.test, source, f"test, {name}")
    if len(accuracies) == 2:
        accuracies["hm"] = harmonic_mean(accuracies["base"], accuracies["novel"])
    return accuracies
