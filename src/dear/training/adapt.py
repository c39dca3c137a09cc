"""From settings to an adapted model, and from a model to its answers: the one road of train, bench and demo."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from dear.clip import load_backbone
from dear.core.config import Config
from dear.core.errors import DearError
from dear.core.metrics import accuracy
from dear.core.runtime import seed_everything
from dear.core.tensors import require_finite
from dear.data.dataset import Dataset, Example
from dear.methods.base import Method, Teacher
from dear.methods.registry import find_method, recipe_of, with_given
from dear.parallel import processes
from dear.training.checkpoint import job_of
from dear.training.config import TrainConfig
from dear.training.images import DatasetImages, ImageSource
from dear.training.loop import fit


def adapt(
    kind: type[Method],
    config: Config,
    data: Dataset,
    train: TrainConfig,
    source: ImageSource,
    out: Path,
    started: Callable[[], None] = lambda: None,
    validate: bool = False,
    pool: Dataset | None = None,
) -> Method:
    """A method on the few-shot images and classes of `data`; `out` holds its checkpoint, from which it goes on.

    `pool` has the training images of all classes, of which a transductive method sees all but their labels.

    `started` is called when nothing can be wrong with the settings any more, before the long work.
    """
    seed_everything(train.seed)
    model = kind(source.backbone, config)
    model.set_classes(data.classes, data.template)
    started()
    examples = data.train
    if asked := model.teacher():
        examples = teach(model, asked, data, pool or data, train, source, out / "teacher")
    epochs = train.epochs if train.images_seen is None else max(1, round(train.images_seen / len(examples)))
    if processes.world() > 1:
        seen = [[example.label, str(example.picture).rpartition("/")[2]] for example in examples]
        processes.require_same(
            job_of(seen), "The processes of this run see different images in --data: all need the same."
        )
    views = source.training(examples, model, train) if epochs else None
    shown = DatasetImages(data, source, model.first_layer, views)
    model.look(shown)
    if views is not None and any(p.requires_grad for p in model.parameters()):

        def measure() -> float:
            return evaluate(model, data.val, source, "validation")

        fit(
            model,
            views,
            train,
            epochs,
            out,
            measure if validate and data.val else None,
        )
    model.look_again(shown)
    return model.eval()


def teach(
    model: Method, asked: Teacher, data: Dataset, pool: Dataset, train: TrainConfig, source: ImageSource, out: Path
) -> tuple[Example, ...]:
    """Trains a teacher on the labelled images of `data` and hands its answers on all images of `pool` to the method.

    Returns these images, labelled with the row of their answer: nothing sees what they show.
    """
    kind = find_method(asked.method)
    recipe = with_given({**recipe_of(asked.method), **asked.recipe}, {"epochs": train.epochs})
    settings = {**train.to_json(), **recipe}
    if asked.backbone:
        backbone = load_backbone(asked.backbone, asked.pretrained, device=source.backbone.device)
        source = ImageSource(backbone, source.states, source.workers)
    teacher = adapt(kind, kind.Settings.pick(settings), data, TrainConfig.pick(settings), source, out)
    teacher.set_classes(pool.classes, pool.template)
    found = answers(teacher, pool.train, source, "teacher")[teacher.inferences[0]]
    seed_everything(train.seed)  # whatever the teacher has drawn
    with torch.no_grad():
        model.learn_from(pool.classes, teacher.text_features(), found)
    return tuple(Example(example.picture, row) for row, example in enumerate(pool.train))


@torch.no_grad()
def answers(
    model: Method,
    examples: Sequence[Example],
    source: ImageSource,
    title: str,
    inferences: Sequence[str] = (),
    told: Callable[[Tensor, Tensor], None] | None = None,
) -> dict[str, Tensor]:
    """For each way of inference the logits [images, classes] over the classes last given to `set_classes`.

    `told` gets features [batch, components, dim] and votes [batch, components, classes] of each batch.
    Each process of a run answers its part of the images, and has the answers of all.
    """
    model.eval()
    text = model.text_features()
    found: dict[str, list[Tensor]] = {name: [] for name in inferences or model.inferences}
    for images, _ in source.evaluation(processes.local_rows(examples), model, title):
        features = model.image_features(model.trunk(images))
        for name, parts in found.items():
            parts.append(model.logits(features, text, name).cpu())
        if told is not None:
            told(features, model.votes(features, text))
    logits = {name: processes.gather(torch.cat(parts), len(examples)) for name, parts in found.items()}
    require_finite(logits, "What the adapted model answers")
    return logits


def evaluate(model: Method, examples: Sequence[Example], source: ImageSource, title: str) -> float:
    """Accuracy (%) over examples of the classes last given to `set_classes`, by the usual inference."""
    if not examples:
        raise DearError(f"There are no images for {title}: add some, or give a dataset with a test split.")
    usual = model.inferences[0]
    labels = torch.tensor([e.label for e in examples])
    return accuracy(answers(model, examples, source, title, [usual])[usual], labels)
