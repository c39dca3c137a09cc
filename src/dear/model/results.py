"""Was the training worth it? The adapted model beside zero-shot and simple methods, on the same test images."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from dear.core.errors import DearError
from dear.core.metrics import accuracy, harmonic_mean, interval_text, is_above_chance, mcnemar, unique_names
from dear.core.names import inferences
from dear.core.table import Table
from dear.core.words import counted
from dear.data.dataset import Dataset, Example
from dear.methods.base import Method
from dear.methods.registry import ZERO_SHOT
from dear.model.evaluation import Evaluation, Measured, evaluation_of, measured
from dear.training.adapt import predict_logits
from dear.training.images import ImageSource

ALL = "all"
WORTH_IT, WITHIN_NOISE, WORSE = "worth it", "within noise", "worse"
_MOST_MISTAKES = 24
_WORST = 6  # classes that are named


@dataclass(frozen=True)
class Row(Measured):
    """One method on the test images."""

    method: str


@dataclass(frozen=True)
class Verdict:
    """The adapted model against another method, image by image (McNemar's exact test)."""

    against: str
    only_this: int  # images that only the adapted model has right
    only_other: int
    p: float
    verdict: str  # worth it, within noise, worse


@dataclass(frozen=True)
class Mistake:
    """A test image with a large loss: `place` in the list of test images, classes, and the answer's probability."""

    place: int
    image: str
    true: str
    answer: str
    probability: float
    loss: float


@dataclass(frozen=True)
class PartResult:
    """Results on one set of classes: all, base or novel. Rows: zero-shot, the best simple method, the adapted model."""

    part: str
    rows: tuple[Row, ...]
    verdicts: tuple[Verdict, ...]
    sentence: str
    above_chance: bool
    evaluation: Evaluation
    largest_losses: tuple[Mistake, ...]

    @property
    def could_be_guessed(self) -> bool:
        """Of one class every answer is right, and nothing is said."""
        return not self.above_chance and len(self.evaluation.per_class) > 1

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        lines = [] if self.part == ALL else [f"{self.part} classes:"]
        lines += [results_table(self.rows).text(), *([self.sentence] if self.sentence else [])]
        if self.could_be_guessed:
            lines.append("This accuracy is not above chance: someone who guesses could reach it.")
        per_class = sorted(self.evaluation.per_class.items(), key=lambda item: item[1].accuracy)
        worst = [f"{name} {own.accuracy:.0f}% of {own.images}" for name, own in per_class[:_WORST]]
        mean = "" if self.evaluation.is_balanced else f", mean {self.evaluation.mean_over_classes:.1f}%"
        lines.append(f"per class{mean}{', worst first' if len(per_class) > 1 else ''}: {', '.join(worst)}"
                     f"{', ...' if len(per_class) > _WORST else ''}")  # fmt: skip
        if self.evaluation.confused:
            pairs = [f"{true} taken for {answer} ({count})" for true, answer, count in self.evaluation.confused[:3]]
            lines.append(f"worst confusions: {', '.join(pairs)}")
        return "\n".join(lines)


@dataclass(frozen=True)
class RunResult:
    """What a run has reached, for each part of the classes: all, or base and novel."""

    parts: Mapping[str, PartResult]

    def accuracies(self) -> dict[str, float]:
        """{"all": ...}, or base, novel and their harmonic mean, in %."""
        found = {name: part.evaluation.accuracy for name, part in self.parts.items()}
        return found | ({"hm": harmonic_mean(found["base"], found["novel"])} if len(found) == 2 else {})

    def __str__(self) -> str:
        """The table, the verdict, the worst classes and confusions of every part."""
        mean = [f"harmonic mean (hm) of base and novel: {hm:.1f}"] if (hm := self.accuracies().get("hm")) else []
        return "\n\n".join([*map(str, self.parts.values()), *mean])


class Scores:
    """Logits of several methods on the same test images, collected over the rounds of a run."""

    def __init__(self) -> None:
        self.examples: dict[str, list[Example]] = {}
        self.classes: dict[str, tuple[str, ...]] = {}
        self._logits: dict[str, dict[str, list[Tensor]]] = {}  # part -> method -> rounds

    def add_images(self, parts: Mapping[str, Dataset]) -> None:
        """The test images of the next round."""
        for name, part in parts.items():
            self.examples.setdefault(name, []).extend(part.test)
            self.classes[name] = part.classes

    def add(self, method: str, model: Method, parts: Mapping[str, Dataset], source: ImageSource) -> None:
        """A method on the test images of this round; classes that it cannot answer (a linear probe has no novel
        classes) are left out."""
        inference = inferences(model.components)[0]
        for name, part in parts.items():
            if model.can_answer(part.classes):
                model.set_classes(part.classes, part.template)
                logits = predict_logits(model, part.test, source, f"test, {name}", [inference])[inference]
                self._logits.setdefault(name, {}).setdefault(method, []).append(logits)

    def results(self, method: str) -> dict[str, PartResult]:
        return {
            part: part_result(
                part,
                method,
                {name: torch.cat(rounds) for name, rounds in methods.items()},
                self.examples[part],
                self.classes[part],
            )
            for part, methods in self._logits.items()
            if method in methods
        }

    def right(self, method: str, part: str = ALL) -> Tensor:
        """Which test images a method answers rightly, [images]."""
        labels = torch.tensor([example.label for example in self.examples[part]])
        return torch.cat(self._logits[part][method]).argmax(-1) == labels

    def summary(self) -> str:
        """Accuracies so far, in a line."""
        lines = []
        for part, methods in self._logits.items():
            labels = torch.tensor([example.label for example in self.examples[part]])
            found = [f"{name} {accuracy(torch.cat(rounds), labels):.1f}%" for name, rounds in methods.items()]
            lines.append(f"{', '.join(found)} of {len(labels)} test images{'' if part == ALL else f', {part}'}")
        return "; ".join(["before training: " + lines[0], *lines[1:]]) if lines else ""


def parts_of(data: Dataset, classes: str) -> dict[str, Dataset]:
    """{"all": data}; after training on the base classes: base and novel."""
    parts = {"base": data.base(), "novel": data.novel()} if classes == "base" else {ALL: data}
    for name, part in parts.items():
        if not part.test:
            raise DearError(f"There are no test images for {name}: add some, or give a dataset with a test split.")
    return parts


def results_table(rows: Sequence[Row]) -> Table:
    table = Table(["method", "test images", "accuracy (%)", "95% interval"])
    for row in rows:
        table.add(row.method, row.images, row.accuracy, interval_text(row.interval))
    return table


def part_result(
    part: str, method: str, logits: Mapping[str, Tensor], examples: Sequence[Example], classes: Sequence[str]
) -> PartResult:
    """From the logits [images, classes] of every method on the same examples; those of `method` are the subject's."""
    labels = torch.tensor([example.label for example in examples])
    right = {name: scores.argmax(-1) == labels for name, scores in logits.items()}
    simple = [name for name in logits if name not in (method, ZERO_SHOT)]
    best = max(simple, key=lambda name: int(right[name].sum()), default=None)
    others = [name for name in (ZERO_SHOT, best) if name is not None and name != method and name in logits]
    verdicts = tuple(compare(right[method], right[name], name) for name in others)
    rows = tuple(Row(*measured(right[name]), name) for name in (*others, method))
    return PartResult(
        part,
        rows,
        verdicts,
        _sentence(rows, verdicts),
        is_above_chance(int(right[method].sum()), len(labels), len(classes)),
        evaluation_of(logits[method], labels, classes),
        largest_losses(logits[method], examples, unique_names(classes)),
    )


def compare(this: Tensor, other: Tensor, name: str) -> Verdict:
    """Of two methods' right answers [images] on the same images."""
    only_this, only_other = int((this & ~other).sum()), int((other & ~this).sum())
    p = mcnemar(only_this, only_other)
    verdict = WITHIN_NOISE if p >= 0.05 else WORTH_IT if only_this > only_other else WORSE
    return Verdict(name, only_this, only_other, p, verdict)


def largest_losses(logits: Tensor, examples: Sequence[Example], classes: Sequence[str]) -> tuple[Mistake, ...]:
    """The examples that a model is most wrong about, by cross entropy; right answers it is sure of are left out."""
    labels = torch.tensor([example.label for example in examples])
    log_probabilities = logits.double().log_softmax(-1)
    losses = -log_probabilities[torch.arange(len(labels)), labels]
    answers = logits.argmax(-1)
    found = []
    for place in losses.argsort(descending=True)[:_MOST_MISTAKES].tolist():
        answer, label = int(answers[place]), int(labels[place])
        probability = float(log_probabilities[place, answer].exp())
        if answer != label or probability < 0.5:
            image = str(examples[place].picture)
            found.append(Mistake(place, image, classes[label], classes[answer], probability, float(losses[place])))
    return tuple(found)


def _sentence(rows: Sequence[Row], verdicts: Sequence[Verdict]) -> str:
    """Worth it, within noise, or worse: against zero-shot, then against the best simple method."""
    if not verdicts:
        return ""
    this, row_of = rows[-1], {row.method: row for row in rows}
    parts = []
    for number, verdict in enumerate(verdicts):
        other = row_of[verdict.against]
        who, share = other.method, f"{other.accuracy:.1f}%"
        gain = f"{this.accuracy - other.accuracy:+.1f} points"
        counts = f"{counted(verdict.only_this, 'image')} gained, {verdict.only_other} lost, p = {verdict.p:.2g}"
        if number == 0:
            words = {
                WORTH_IT: f"Worth it: {gain} over {who}'s {share}",
                WITHIN_NOISE: f"Within noise: {gain} against {who}'s {share}",
                WORSE: f"Worse: {gain} against {who}'s {share}",
            }
        else:
            words = {
                WORTH_IT: f"Also better than {who}'s {share}, the best without training",
                WITHIN_NOISE: f"But {who} has {share} without training: the difference is within noise"
                if verdicts[0].verdict == WORTH_IT
                else f"Nor does it differ beyond noise from {who}'s {share}, which needs no training",
                WORSE: f"{who} is better, without training: {share}",
            }
        parts.append(f"{words[verdict.verdict]} ({counts}).")
    return " ".join(parts)
