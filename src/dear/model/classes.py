"""Classes that come, go or change their name after the fit: each gives a new run, the old one stays as it is."""

from collections.abc import Callable, Sequence
from pathlib import Path

from dear.core.errors import DearError
from dear.core.lock import only_writer
from dear.data.check import content_hash
from dear.data.dataset import Dataset, Example, ImageFile
from dear.data.folder import clean_name, image_files
from dear.data.prompts import check_class_names
from dear.methods.registry import METHODS, find_method
from dear.methods.shared.per_class import PerClass
from dear.training.adapter import Adapter, load_adapter, read_config, save_adapter
from dear.training.config import NONE, TrainConfig
from dear.training.images import ImageSource
from dear.training.run_folder import RunFolder
from dear.trials.fit import cache_folder
from dear.trials.task import Task
from dear.trials.trial import Trial


def add_classes(run: Path, folders: Sequence[Path], out: Path, device: str = "auto") -> tuple[str, ...]:
    """Fits the method of a run again with the images of more classes, a folder each; returns all classes.

    At once for methods that are fitted at once: the run's own images are in the cache. Others must train again.
    """
    config, settings, drawn = read_config(run), RunFolder(run).settings(), RunFolder(run).few_shot()
    method = config["method"]
    if METHODS[method].trained:
        raise DearError(
            f"{method} learns all classes together, so it must train again: put the new folders beside the others, and "
            "use `dear train`. Without images, `dear predict --classes` answers new names at once."
        )
    if METHODS[method].kind == "unfitted":
        raise DearError(f"{method} uses no images: give new names with `dear predict --classes`.")
    images = [Example(ImageFile(Path(name)), label) for name, label in drawn.get("train", ())]
    if missing := [example for example in images if not Path(str(example.picture)).is_file()] or not images:
        where = f"such as {missing[0].picture}" if isinstance(missing, list) else "none is known"
        raise DearError(f"The images that {run} was fitted to are no longer where they were ({where}): fit it again.")
    old = tuple(config["classes"])
    names = check_class_names([*old, *(clean_name(folder.resolve().name) for folder in folders)])
    for label, folder in enumerate(folders, len(old)):
        files = image_files(folder) if folder.is_dir() else []
        if not files:
            raise DearError(f"{folder} has no images: give a folder of images of the new class.")
        images += [Example(ImageFile(file), label) for file in files]
    data = Dataset(settings.get("data", run.name), names, config["template"], tuple(images), (), ())
    backbone = load_adapter(run, device=device).model.backbone
    own = find_method(method).Config(**config["settings"])
    train = TrainConfig(shots=max(1, len(images)), epochs=0, augment=NONE, device=device)
    trial = Trial(method, Task.left_out(data), own, train)
    with only_writer(out):
        model = trial.fit(data, ImageSource(backbone, cache_folder(None)))
        model.set_classes(names, data.template)
        content = content_hash(data.train)
        RunFolder(out).write_start({**settings, "folds": None}, {"train": data.train, "val": ()}, content)
        save_adapter(out, method, model, data.template)
    return names


def remove_classes(run: Path, names: Sequence[str], out: Path) -> tuple[str, ...]:
    """The same model without some classes; scores of the others are the same."""
    return _change(run, out, lambda adapter: _without(adapter, names))


def rename_class(run: Path, old: str, new: str, out: Path) -> tuple[str, ...]:
    """The same model with another name of a class. Its text follows the name; scores of the others are the same."""

    def change(adapter: Adapter) -> tuple[str, ...]:
        _require(adapter, [old])
        names = tuple(new if name == old else name for name in adapter.classes)
        if isinstance(adapter.model, PerClass):
            adapter.model.trained = tuple(new if name == old else name for name in adapter.model.trained)
        return check_class_names(names)

    return _change(run, out, change)


def _change(run: Path, out: Path, change: Callable[[Adapter], tuple[str, ...]]) -> tuple[str, ...]:
    adapter, folder = load_adapter(run, device="cpu", precision="fp32"), RunFolder(run)
    names, model, drawn = change(adapter), adapter.model, folder.few_shot()
    places = {label: names.index(name) for label, name in enumerate(adapter.classes) if name in names}
    if len(names) == len(adapter.classes):
        places = {label: label for label in range(len(names))}
    images = [Example(ImageFile(Path(name)), places[at]) for name, at in drawn.get("train", ()) if at in places]
    with only_writer(out):
        if any(out.glob("*_config.json")):
            raise DearError(f"{out} already holds a run: choose another --out.")
        model.set_classes(names, adapter.template)
        if images:  # so that classes can be added later
            RunFolder(out).write_start(folder.settings(), {"train": images, "val": ()}, drawn["content"])
        save_adapter(out, adapter.method, model, adapter.template)
    return names


def _without(adapter: Adapter, names: Sequence[str]) -> tuple[str, ...]:
    _require(adapter, names)
    rest = tuple(name for name in adapter.classes if name not in names)
    if len(rest) < 2:
        raise DearError("At least two classes must stay: there is nothing to choose between fewer.")
    return rest


def _require(adapter: Adapter, names: Sequence[str]) -> None:
    if unknown := [name for name in names if name not in adapter.classes]:
        raise DearError(f"The run has no class {unknown[0]!r}: it has {', '.join(adapter.classes)}.")
