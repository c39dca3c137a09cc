"""From settings to an adapted model, and from a model to its logits; used by train, bench and demo."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from dear.clip import load_backbone
from dear.core.config import Config
from dear.core.metrics import accuracy
from dear.core.names import inferences
from dear.core.progress import phase
from dear.core.runtime import HostRows, precision_name, seed_everything
from dear.core.tensors import LOWER_RATE, require_finite
from dear.data.dataset import Dataset, Example
from dear.methods.base import Method
from dear.methods.optional import Student, Tuned
from dear.methods.registry import find_method, recipe_of, with_overrides
from dear.parallel import processes
from dear.training.checkpoint import job_of
from dear.training.config import FRESH, TrainConfig, training_length
from dear.training.estimate import RunEstimate
from dear.training.images import DatasetImages, ImageSource, training_batches
from dear.training.loop import train_epochs
from dear.training.reporters import NOWHERE, reporting


def adapt(
    kind: type[Method],
    config: Config,
    data: Dataset,
    train: TrainConfig,
    source: ImageSource,
    out: Path,
    on_start: Callable[[], None] = lambda: None,
    validate: bool = False,
    pool: Dataset | None = None,
    estimate: RunEstimate | None = None,
) -> Method:
    """A method adapted to the few-shot images and classes of `data`; it resumes from a checkpoint in `out`.

    `pool`: training images of all classes, which transductive methods use without their labels.
    `on_start` is called once all settings are accepted, before training. `estimate`: see `train_epochs`.
    """
    seed_everything(train.seed)
    model = kind(source.backbone, config)
    model.set_classes(data.classes, data.template)
    on_start()
    examples = data.train
    if isinstance(model, Student):
        examples = train_teacher(model, data, pool or data, train, source, out / "teacher")
    steps_per_epoch = len(training_batches(examples, train).of_epoch(0))
    epochs, steps = training_length(train, len(examples), steps_per_epoch)
    if processes.world_size() > 1:
        names = [[example.label, str(example.picture).rpartition("/")[2]] for example in examples]
        processes.require_same(
            job_of(names), "The processes of this run find different images in --data: all need the same."
        )
    cached = estimate is not None and train.augment != FRESH
    with phase("encoding the training images", has_bar=True) if cached else nullcontext():
        views = source.training(examples, model, train, epochs) if epochs else None
    images = DatasetImages(data, source, model)
    model.before_training(images)
    if views is not None and any(p.requires_grad for p in model.parameters()):
        measure = partial(measure_accuracy, model, data.val, source, "validation") if validate and data.val else None
        to = train.report_to if processes.is_rank_zero() else NOWHERE
        with reporting(to, out, {**model.config.to_json(), **train.to_json()}) as report:
            train_epochs(model, views, train, epochs, steps, out, measure, estimate, report)
        source.store.shown(examples)  # refuses a file that changed while the epochs read it
    if isinstance(model, Tuned):
        model.after_training(images)
    return model.eval()


def train_teacher(
    student: Student, data: Dataset, pool: Dataset, train: TrainConfig, source: ImageSource, out: Path
) -> tuple[Example, ...]:
    """Trains the student's teacher on the labelled images of `data`, and sets its logits on all images of `pool`.

    Returns these images, labelled with their rows in the logits: the student gets no true labels.
    """
    choice = student.teacher()
    kind = find_method(choice.method)
    recipe = with_overrides({**recipe_of(choice.method), **choice.recipe}, {"epochs": train.epochs})
    settings = {**train.to_json(), **recipe}
    if choice.backbone:
        like, precision = source.backbone, precision_name(source.backbone.precision)
        backbone = load_backbone(choice.backbone, choice.pretrained, device=like.device, precision=precision)
        source = ImageSource(backbone, source.store.folder, source.workers)
    teacher = adapt(kind, kind.Config.pick(settings), data, TrainConfig.pick(settings), source, out)
    teacher.set_classes(pool.classes, pool.template)
    inference = inferences(teacher.components)[0]
    logits = predict_logits(teacher, pool.train, source, "teacher", [inference])[inference]
    seed_everything(train.seed)  # independent of the teacher's random numbers
    with torch.no_grad():
        student.set_teacher(pool.classes, teacher.encode_text(teacher.classes), logits)
    return tuple(Example(example.picture, row) for row, example in enumerate(pool.train))


@torch.no_grad()
def predict_logits(
    model: Method,
    examples: Sequence[Example],
    source: ImageSource,
    title: str,
    by: Sequence[str] = (),
    observer: Callable[[Tensor, Tensor], None] | None = None,
) -> dict[str, Tensor]:
    """Logits [images, classes] of the current classes, per inference in `by` (default: all).

    `observer` gets features [batch, components, dim] and votes [batch, components, classes] of each batch.
    Each process of a run computes its local images, and gets the logits of all.
    """
    model.eval()
    text = model.encode_text(model.classes)
    rows = {name: HostRows() for name in by or inferences(model.components)}
    for images, _ in source.evaluation(processes.local_rows(examples), model, title):
        features = model.encode_image(model.layer_input(images))
        for name, of_all in rows.items():
            of_all.add(model.logits(features, text, name))
        if observer is not None:
            observer(features, model.votes(features, text))
    logits = {name: processes.gather(of_all.all(), len(examples)) for name, of_all in rows.items()}
    require_finite(logits, "The answer of the adapted model", LOWER_RATE)
    return logits


def measure_accuracy(model: Method, examples: Sequence[Example], source: ImageSource, title: str) -> float:
    """Accuracy (%) on examples of the current classes, by the default inference."""
    inference = inferences(model.components)[0]
    labels = torch.tensor([e.label for e in examples])
    return accuracy(predict_logits(model, examples, source, title, [inference])[inference], labels)
