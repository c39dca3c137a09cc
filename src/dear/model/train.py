"""A run: from settings to a folder with an adapter, its few-shot lists, its metrics and its test accuracy."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from dear.clip import load_backbone
from dear.core.config import Config
from dear.core.errors import DearError
from dear.core.files import read_json, write_json
from dear.core.lock import names_in, only_writer
from dear.core.metrics import harmonic_mean
from dear.core.runtime import pick_device
from dear.core.schema import check_shape
from dear.data.check import check_before_training
from dear.data.dataset import Dataset, Example, ImageFile
from dear.data.resolve import resolve_dataset
from dear.methods.base import Method
from dear.methods.registry import find_method
from dear.model.adapter import CONFIG as ADAPTER
from dear.model.adapter import save_adapter
from dear.parallel import processes
from dear.training.adapt import adapt, evaluate
from dear.training.config import RunConfig, TrainConfig
from dear.training.history import METRICS
from dear.training.images import ImageSource
from dear.training.loop import CHECKPOINT, RESUMABLE_WITH_OTHER, TENSORBOARD

_CONFIG, _DRAWN = "config.json", "few_shot.json"


def train_run(
    run: RunConfig,
    method: Config,
    train: TrainConfig,
    out: Path,
    resume: bool = False,
    states: Path | None = None,
) -> dict[str, float]:
    """Trains, writes everything into `out`, and returns the test accuracies (%). `states`: where fixed views live.

    Inside `dear.parallel.processes.process_group` all processes do this together, and the first writes.
    """
    with only_writer(out) if processes.is_first() else nullcontext():
        return _train(run, method, train, out, resume, states)


def _train(
    run: RunConfig, method: Config, train: TrainConfig, out: Path, resume: bool, states: Path | None
) -> dict[str, float]:
    config = {**run.to_json(), **method.to_json(), **train.to_json()}
    if processes.is_first():
        _check_folder(out, config, resume)
    processes.wait()  # nobody looks into a folder that is not this run's
    dataset = resolve_dataset(run.data, run.template, run.class_names, run.data_root)
    whole, dataset = dataset, dataset.few_shot(train.shots, train.seed)
    check_before_training(dataset, train.shots)
    trained = dataset.base() if train.classes == "base" else dataset
    source = ImageSource(
        load_backbone(run.model, run.pretrained, device=processes.own_device(pick_device(train.device))),
        states,
        train.workers,
        run.fast_decode,
    )

    def started() -> None:  # what could not start leaves no folder behind
        if processes.is_first():
            write_json(out / _CONFIG, config)
            write_json(out / _DRAWN, {"train": _listed(trained.train), "val": _listed(trained.val)})

    model = adapt(find_method(run.method), method, trained, train, source, out, started, run.validate, whole)
    if processes.is_first():
        save_adapter(out, run.method, model, trained.template)
    result = test_accuracies(model, dataset, train.classes, source)
    if processes.is_first():
        write_json(out / "test.json", result)
    return result


def test_accuracies(model: Method, dataset: Dataset, classes: str, source: ImageSource) -> dict[str, float]:
    """{"all": ...}, or, after training on the base classes, base, novel and their harmonic mean.

    What a method cannot answer (a linear probe has no novel classes) is left out.
    """
    halves = {"base": dataset.base(), "novel": dataset.novel()} if classes == "base" else {"all": dataset}
    result = {}
    for name, part in halves.items():
        if model.can_answer(part.classes):
            model.set_classes(part.classes, part.template)
            result[name] = evaluate(model, part.test, source, f"test, {name}")
    if len(result) == 2:
        result["hm"] = harmonic_mean(result["base"], result["novel"])
    return result


def _check_folder(out: Path, config: dict[str, Any], resume: bool) -> None:
    """A folder holds one run: nothing is overwritten, and a run goes on only with its own settings.

    What ended before its first epoch left nothing to go on with, and makes room for a better one.
    """
    if not any((out / name).exists() for name in (CHECKPOINT, ADAPTER)):
        if not set(names_in(out)) <= {_CONFIG, _DRAWN, METRICS, TENSORBOARD}:
            raise DearError(f"{out} is not empty and holds no run: choose another --out.")
        return
    if not resume:
        raise DearError(f"{out} already holds a run: add --resume to go on with it, or choose another --out.")
    before = read_json(out / _CONFIG)
    check_shape(before, dict[str, Any], f"{out / _CONFIG}", "train anew into another folder")
    decides = (config.keys() | before.keys()) - set(RESUMABLE_WITH_OTHER)
    if changed := sorted(key for key in decides if config.get(key) != before.get(key)):
        raise DearError(
            f"{out} was started with other settings ({', '.join(changed)}): use the same, or another --out."
        )


def _listed(examples: tuple[Example, ...]) -> list[list[Any]]:
    """What was drawn, so that anyone can see it: [path or scene, label]."""
    return [[str(e.picture.path if isinstance(e.picture, ImageFile) else e.picture), e.label] for e in examples]
