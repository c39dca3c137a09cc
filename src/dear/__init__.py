"""Adapt a frozen CLIP to your own classes by decomposing the roles of its attention heads."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dear.core.errors import DearError, os_errors_as_dear_errors
from dear.core.version import __version__

if TYPE_CHECKING:
    from dear.data.dataset import Dataset
    from dear.methods.base import Method
    from dear.model.predictor import Predictor
    from dear.trials.outcome import Outcome

__all__ = ["DearError", "__version__", "create", "dataset", "evaluate", "fit", "load", "train"]


def __dir__() -> list[str]:
    return __all__


def train(
    data: Any,
    method: "str | type[Method]" = "head-gains",
    *,
    out: str | Path,
    resume: bool = False,
    published_constants: bool = False,
    cache: str | Path | None = None,
    time_limit: str | None = None,
    **settings: Any,
) -> "Predictor":
    """Adapts a backbone to the classes of `data` from a few images each, as `dear train` does.

    `data`: a folder with one folder of images per class, anything else that --data takes, or data in memory (see
    `dear.dataset`): (images, labels), a DataFrame, a dataset of torch or Hugging Face. The method's published
    recipe applies; `settings` (model, pretrained, shots, epochs, lr, ...: see `dear train --help-all`) override it.
    Everything is written to the folder `out`; the returned model is the one that `dear.load(out)` gives.
    `time_limit`, such as "5m", allows fewer epochs. `method`: a name from `dear methods`, or a class of your own.
    """
    from dear.core.runtime import caller_random_state, pick_device
    from dear.data.resolve import name_in_memory
    from dear.methods.registry import registered
    from dear.parallel.processes import process_group
    from dear.training.estimate import parse_duration
    from dear.trials.train import run_settings, train_run

    with os_errors_as_dear_errors(), caller_random_state():
        settings = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
        in_memory = None if isinstance(data, str | Path) else dataset(data)
        name = str(data) if in_memory is None else name_in_memory(in_memory)
        run, own, training = run_settings({**settings, "data": name, "method": registered(method)}, published_constants)
        limit = None if time_limit is None else parse_duration(time_limit)
        states = None if cache is None else Path(cache)
        with process_group(pick_device(training.device)):
            print(train_run(run, own, training, Path(out), resume, states, limit, in_memory))
    return load(out, device=training.device, precision=training.precision)


def fit(
    data: Any,
    labels: Sequence[Any] | None = None,
    *,
    method: str = "auto",
    out: str | Path | None = None,
    thorough: bool = False,
    cache: str | Path | None = None,
    device: str = "auto",
    precision: str = "auto",
    **settings: Any,
) -> "Predictor":
    """Fits a model in seconds, once the images are encoded: the best of the methods that need no training.

    `data`: a folder with one folder of images per class, or anything that `dear.train` takes; with `labels`, the
    images. All labelled images are used, except those of a test split. Zero-shot and the methods in closed form are
    compared on them, each image left out of its own fit, and the table is printed (`model.comparison`). `thorough`
    also compares trained methods, by cross-validation. `method`: the name of one method to use.
    `out`: a folder for a run, as in `dear.train`. `cache`: folder where encoded images are kept, so that the next fit
    takes seconds (default: the user's cache folder). `precision`: as in `dear.load`. `settings`: model, pretrained,
    template, class_names, ....
    """
    from dear.core.runtime import caller_random_state
    from dear.data.resolve import name_in_memory
    from dear.model.predictor import Predictor
    from dear.trials.fit import FitConfig, fit_run
    from dear.trials.train import check_setting_names

    with os_errors_as_dear_errors(), caller_random_state():
        check_setting_names(settings, "fit", FitConfig)
        settings = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
        in_memory = None if labels is None and isinstance(data, str | Path) else dataset(data, labels)
        name = str(data) if in_memory is None else name_in_memory(in_memory)
        run = FitConfig(**{**settings, "data": name, "method": method})
        folder, kept = (None if place is None else Path(place) for place in (out, cache))
        result = fit_run(run, device, folder, kept, thorough, in_memory, precision)
    print(result)
    return Predictor(result.adapter, result.fitted, result.selection)


def load(
    folder: str | Path,
    classes: Sequence[str] | None = None,
    template: str | None = None,
    device: str = "auto",
    *,
    precision: str = "auto",
    model: str | None = None,
    pretrained: str | None = None,
) -> "Predictor":
    """Loads the adapted model in a folder made by `dear.train` or `dear train`, or hf-hub:ORG/NAME, ready to predict.

    `classes`: novel classes instead of those it was trained on. `precision`: fp32, or on CUDA bf16 and fp16; auto
    takes half precision on CUDA. `model` and `pretrained`: where the backbone is on this machine, if it is not where
    it was in training; a backbone with other weights is refused.
    """
    from dear.clip import load_backbone
    from dear.model.hub import HUB_PREFIX, fetch
    from dear.model.predictor import Predictor
    from dear.training.adapter import load_adapter
    from dear.training.run_folder import RunFolder
    from dear.trials.selection import Selection

    with os_errors_as_dear_errors():
        backbone = load_backbone(model, pretrained, device=device, precision=precision) if model else None
        if str(folder).startswith(HUB_PREFIX):
            folder = fetch(str(folder))
        run, adapter = RunFolder(folder), load_adapter(folder, classes, template, backbone, device, precision)
        return Predictor(adapter, run, run.fit(Selection))


def evaluate(model: "str | Path | Predictor", data: Any, **options: Any) -> "Outcome":
    """Measures a model, or the one in a folder, on labelled images; `options`: see `Predictor.evaluate`.

    `data`: as in `dear.train`.
    """
    with os_errors_as_dear_errors():
        predictor = load(model) if isinstance(model, str | Path) else model
        return predictor.evaluate(data, **options)


def dataset(
    data: Any,
    labels: Sequence[Any] | None = None,
    *,
    image: str | None = None,
    label: str | None = None,
    split: str | None = None,
    classes: Sequence[str] | None = None,
    template: str = "a photo of a {}.",
    root: str | Path = "",
    name: str = "data",
) -> "Dataset":
    """Makes a dataset from data in memory, for use in place of a path: see `dear.data.memory.as_dataset`."""
    from dear.data.memory import as_dataset

    columns = {"image": image, "label": label, "split": split}
    with os_errors_as_dear_errors():
        return as_dataset(data, labels, **columns, classes=classes, template=template, root=root, name=name)


def create(
    model: str = "dear-mini",
    pretrained: str | None = None,
    *,
    classes: Sequence[str],
    method: "str | type[Method]" = "dear",
    template: str = "a photo of a {}.",
    device: str = "auto",
    text_features: str | Path | None = None,
    **settings: Any,
) -> "Predictor":
    """Creates an untrained model. `settings` are those of the method, such as roles="paper".

    `text_features`: a file of class names and their vectors, in place of the text tower.
    """
    from dear.clip import load_backbone
    from dear.data.prompts import check_class_names, check_template
    from dear.methods.registry import find_method, registered
    from dear.model.predictor import Predictor
    from dear.training.adapter import Adapter
    from dear.trials.train import check_setting_names

    names, method = check_class_names(classes), registered(method)
    kind = find_method(method)
    check_template(template)
    check_setting_names(settings, method, kind.Config)
    with os_errors_as_dear_errors():
        backbone = load_backbone(model, pretrained, device=device, text_features=text_features)
        adapted = kind(backbone, kind.Config(**settings))
    if not adapted.can_answer(names):
        raise DearError(f"{method} can only answer classes it was trained on: train it with `dear.train` first.")
    adapted.set_classes(names, template)
    return Predictor(Adapter(adapted.eval().requires_grad_(False), method, names, template))
