"""A trial: a method with settings, fitted to one part of a task and measured on another."""

import io
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dear.core.config import Config
from dear.core.errors import DearError
from dear.core.names import inferences
from dear.core.progress import progress
from dear.data.dataset import Dataset
from dear.data.splits import stratified_folds
from dear.methods.base import Method
from dear.methods.registry import METHODS, UNFITTED, find_method, recipe_of
from dear.methods.shared.closed_form import ClosedForm
from dear.methods.shared.per_class import PerClass
from dear.training.adapt import adapt, predict_logits
from dear.training.config import NONE, TrainConfig
from dear.training.estimate import RunEstimate
from dear.training.images import ImageSource
from dear.trials.outcome import ALL, FOLDS, LEAVE_ONE_OUT, LEFT_OUT, NO_FIT, Outcome, labels_of, outcome_of
from dear.trials.task import Round, Task

_FOLDS = 5
Observer = Callable[[str, Tensor, Tensor], None]
"""Gets the part, features [batch, components, dim] and votes [batch, components, classes] of each batch."""


class Trial:
    """A method with settings on a task. `run` fits and measures it; `outcomes` says how well it answered.

    Without `config` and `train`, the method's published recipe applies. After a run, `model` is the fitted method
    (None: it was only fitted to folds), `seconds` the time to fit it, `epochs` those trained and those of its settings.
    """

    def __init__(self, method: str, task: Task, config: Config | None = None, train: TrainConfig | None = None) -> None:
        recipe = recipe_of(method)
        self.method, self.task, self.kind = method, task, find_method(method)
        self.config = config or self.kind.Config.pick(recipe)
        self.train = train or TrainConfig.pick(recipe)
        self.measured = task.measured
        self.model: Method | None = None
        self.seconds: float | None = None
        self.epochs: tuple[int, int] | None = None
        self.answers: dict[tuple[str, str], list[Tensor]] = {}
        """Logits [images, classes] by part and inference, in the order of the task's rounds."""

    def prepare(self, source: ImageSource) -> Method:
        """The method before its fit: settings that do not suit the backbone are refused before any work."""
        method = self.kind(source.backbone, self.config)
        if not METHODS[self.method].package:
            _check_shapes(method, self.method, self.task.rounds[0].fit)
        return method

    def run(self, source: ImageSource, deadline: float | None = None) -> "Trial":
        """Fits and measures every round, with fewer epochs than the settings if the deadline asks for it."""
        if self.measured == LEFT_OUT:
            self._run_left_out(source)
            return self
        for one in self.task.rounds:
            self.measure(self.fit(one.fit, source, estimate=RunEstimate(deadline=deadline)), one, source)
        return self

    def fit(
        self,
        data: Dataset,
        source: ImageSource,
        out: Path | None = None,
        on_start: Callable[[], None] = lambda: None,
        validate: bool = False,
        estimate: RunEstimate | None = None,
    ) -> Method:
        """The method fitted to the training images of `data`. `out`: folder for checkpoints (None: none are kept)."""
        estimate = estimate or RunEstimate()
        with tempfile.TemporaryDirectory(prefix="dear-trial-") as work:
            start = time.monotonic()
            self.model = adapt(
                self.kind, self.config, data, self.train, source, out or Path(work), on_start, validate,
                self.task.pool, estimate,
            )  # fmt: skip
        self.seconds, self.epochs = time.monotonic() - start, estimate.epochs
        return self.model

    def measure(
        self, model: Method, one: Round, source: ImageSource, every: bool = False, observe: Observer | None = None
    ) -> None:
        """Adds the answers on the parts of a round; `every`: by every way of inference, not only the usual one.

        A part whose classes the method cannot answer is left out: a linear probe knows no novel classes.
        """
        ways = inferences(model.components) if every else inferences(model.components)[:1]
        for name, part in one.parts.items():
            if not model.can_answer(part.classes):
                continue
            model.set_classes(part.classes, part.template)
            observer = None if observe is None else lambda features, votes, name=name: observe(name, features, votes)
            title = f"{self.measured} images" if name == ALL else f"{self.measured} images, {name}"
            for way, logits in predict_logits(model, part.test, source, title, ways, observer).items():
                self.answers.setdefault((name, way), []).append(logits)

    def logits(self, part: str = ALL) -> Tensor | None:
        """Logits [images, classes] by the usual inference, over all rounds; None: it cannot answer these classes."""
        return next((torch.cat(rounds) for (name, _), rounds in self.answers.items() if name == part), None)

    def outcomes(self) -> list[Outcome]:
        """One for each part and inference that was measured."""
        return [
            outcome_of(
                torch.cat(rounds), labels_of(self.task.examples(part)), self.task.classes(part), part=part,
                inference=inference, measured=self.measured, method=self.method, seconds=self.seconds,
                epochs=self.epochs,
            )
            for (part, inference), rounds in self.answers.items()
        ]  # fmt: skip

    def outcome(self, part: str = ALL) -> Outcome | None:
        """The outcome by the usual inference."""
        return next((outcome for outcome in self.outcomes() if outcome.part == part), None)

    def _run_left_out(self, source: ImageSource) -> None:
        """Answers the labelled images: by exact leave-one-out, by folds, or by a method that needs no fit."""
        (one,) = self.task.rounds
        if self.method not in UNFITTED and not issubclass(self.kind, ClosedForm):
            self.measured = f"{_FOLDS} {FOLDS}"
            self.answers[ALL, ""] = [self._answers_by_folds(one.fit, source)]
            return
        model = self.fit(one.fit, source)
        if isinstance(model, ClosedForm):
            assert model.head.left_out is not None
            self.measured, self.answers[ALL, ""] = LEAVE_ONE_OUT, [model.head.left_out.cpu()]
        else:
            self.measured = NO_FIT
            self.measure(model, one, source)

    def _answers_by_folds(self, data: Dataset, source: ImageSource) -> Tensor:
        """Logits [labelled images, classes], each by a fit to the other folds; no fitted model is kept."""
        folds = stratified_folds([example.label for example in data.train], _FOLDS, spread=True)
        answers = torch.zeros(len(folds), len(data.classes))
        for fold in progress(sorted(set(folds)), f"{self.method}, folds", "fold"):
            rest = replace(data, train=tuple(e for e, of in zip(data.train, folds, strict=True) if of != fold))
            rows = [row for row, of in enumerate(folds) if of == fold]
            with redirect_stderr(io.StringIO()):  # hundreds of epochs in a second
                model = self.fit(rest, source)
            model.set_classes(data.classes, data.template)
            inference = inferences(model.components)[0]
            out = [data.train[row] for row in rows]
            answers[rows] = predict_logits(model, out, source, self.method, [inference])[inference].to(answers)
        self.model = None
        return answers


@torch.no_grad()
def _check_shapes(method: Method, name: str, data: Dataset) -> None:
    """Refuses a method of somebody else's that gives features or logits of another shape than the engine expects."""
    if isinstance(method, PerClass):
        return  # it has no classes before its fit

    def expect(member: str, value: Tensor, *shape: int) -> Tensor:
        if value.shape != shape:
            shown = f"{list(value.shape)} in place of {list(shape)}"
            raise DearError(f"{name}.{member} gives {shown}: mend it as docs/tutorials/add-a-method.md shows.")
        return value

    tower, classes, dim = method.backbone.image, len(data.classes), method.backbone.dim
    method.set_classes(data.classes, data.template)
    text = expect("encode_text", method.encode_text(method.classes), classes, dim)
    x = method.layer_input(tower.like.new_zeros(2, 3, *tower.image_size))
    features = expect("encode_image", method.encode_image(x), 2, len(method.components), dim)
    expect("logits", method.logits(features, text), 2, classes)


def uncropped_trial(method: str, task: Task, **train: Any) -> Trial:
    """A trial by the published recipe without random crops: every image passes the tower once for all methods.

    `train`: settings of training that win over the recipe.
    """
    recipe = {**recipe_of(method), **train, "augment": NONE}
    return Trial(method, task, find_method(method).Config.pick(recipe), TrainConfig.pick(recipe))
