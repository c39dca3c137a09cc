"""A run: from settings to a folder with an adapter, its few-shot lists, its metrics and its test accuracy."""

from pathlib import Path
from typing import Any

import torch

from dear.adapter import save_adapter
from dear.backbone import load_backbone
from dear.data.check import check_before_training
from dear.data.dataset import Dataset, Example, ImageFile
from dear.data.loading import evaluation_batches
from dear.data.resolve import resolve_dataset
from dear.errors import DearError
from dear.evaluation.metrics import accuracy, harmonic_mean
from dear.files import read_json, write_json
from dear.methods.config import DearConfig
from dear.methods.dear import Dear
from dear.runtime import pick_device, seed_everything
from dear.training.config import RunConfig, TrainConfig
from dear.training.loop import fit
from dear.training.roles import pick_roles
from dear.training.states import training_data


def train_run(
    run: RunConfig,
    method: DearConfig,
    train: TrainConfig,
    out: Path,
    resume: bool = False,
    states: Path | None = None,
) -> dict[str, float]:
    """Trains, writes everything into `out`, and returns the test accuracies (%). `states`: where fixed views live."""
    config = {**run.to_json(), **method.to_json(), **train.to_json()}
    _check_folder(out, config, resume)
    dataset = resolve_dataset(run.data, run.template, run.class_names, run.data_root)
    dataset = dataset.few_shot(train.shots, train.seed)
    check_before_training(dataset, train.shots)
    trained = dataset.base() if train.classes == "base" else dataset
    backbone = load_backbone(run.model, run.pretrained, device=pick_device(train.device))
    seed_everything(train.seed)
    model = Dear(backbone, pick_roles(run, train.seed), method)
    write_json(out / "config.json", config)  # only now: what could not start leaves no folder behind
    write_json(out / "few_shot.json", {"train": _listed(trained.train), "val": _listed(trained.val)})
    model.set_prompts(trained.prompts)
    data = training_data(trained.train, backbone, model.first_layer, train, states)
    validate = (lambda: evaluate(model, trained.val, "validation")) if run.validate and trained.val else None
    fit(model, data, train, out, validate)
    save_adapter(out, model, trained.classes, trained.template)
    result = test_accuracies(model, dataset, train.classes)
    write_json(out / "test.json", result)
    return result


def test_accuracies(model: Dear, dataset: Dataset, classes: str) -> dict[str, float]:
    """{"all": ...}, or, after training on the base classes, base, novel and their harmonic mean."""
    if classes == "all":
        model.set_prompts(dataset.prompts)
        return {"all": evaluate(model, dataset.test, "test")}
    result = {}
    for name, half in (("base", dataset.base()), ("novel", dataset.novel())):
        model.set_prompts(half.prompts)
        result[name] = evaluate(model, half.test, f"test, {name}")
    return {**result, "hm": harmonic_mean(result["base"], result["novel"])}


@torch.no_grad()
def evaluate(model: Dear, examples: tuple[Example, ...], title: str, inference: str = "fusion") -> float:
    """Accuracy (%) over examples of the classes last given to `set_prompts`."""
    if not examples:
        raise DearError(f"There are no images for {title}: add some, or give a dataset with a test split.")
    backbone, text = model.backbone, model.text_features()
    scores, labels = [], []
    for pixels, label in evaluation_batches(examples, backbone.preprocess, title):
        features = model.image_features(model.trunk(pixels.to(backbone.device)))
        scores.append(model.logits(features, text, inference).cpu())
        labels.append(label)
    return accuracy(torch.cat(scores), torch.cat(labels))


def _check_folder(out: Path, config: dict[str, Any], resume: bool) -> None:
    """A folder holds one run: nothing is overwritten, and a run goes on only with its own settings."""
    stored = out / "config.json"
    if not stored.exists():
        if out.exists() and any(out.iterdir()):
            raise DearError(f"{out} is not empty and holds no run: choose another --out.")
        return
    if not resume:
        raise DearError(f"{out} already holds a run: add --resume to go on with it, or choose another --out.")
    before = read_json(stored)
    if changed := sorted(key for key in config.keys() | before.keys() if config.get(key) != before.get(key)):
        raise DearError(
            f"{out} was started with other settings ({', '.join(changed)}): use the same, or another --out."
        )


def _listed(examples: tuple[Example, ...]) -> list[list[Any]]:
    """What was drawn, so that anyone can see it: [path or scene, label]."""
    return [[str(e.picture.path if isinstance(e.picture, ImageFile) else e.picture), e.label] for e in examples]
