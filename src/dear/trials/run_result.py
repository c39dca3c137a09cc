"""The result of a run: the trained method beside zero-shot and the best method without training, on test images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct, to_builtins
from torch import Tensor

from dear.core.metrics import harmonic_mean, unique_names
from dear.data.dataset import Example
from dear.methods.registry import ZERO_SHOT
from dear.trials.leaderboard import Leaderboard, leaderboard, verdict
from dear.trials.mistakes import Mistake, largest_losses
from dear.trials.outcome import ALL, BASE, NOVEL, Outcome
from dear.trials.trial import Trial

_WORST = 6  # classes that are named
GUESSING = "This accuracy is not above chance: someone who guesses could reach it."


class PartResult(Struct, frozen=True):
    """Results on one set of classes: all, base or novel. The trained method is the reference of the leaderboard."""

    part: str
    board: Leaderboard
    verdict: str
    mistakes: tuple[Mistake, ...]

    @property
    def outcome(self) -> Outcome:
        """The outcome of the trained method."""
        return self.board[self.board.reference]

    def __str__(self) -> str:
        title = [] if self.part == ALL else [f"{self.part} classes:"]
        return "\n".join([*title, self.board.table().text(), self.findings()])

    def findings(self) -> str:
        """The verdict, the worst classes and the most frequent mistakes, in a line each."""
        lines, outcome = [self.verdict] if self.verdict else [], self.outcome
        if outcome.could_be_guessed:
            lines.append(GUESSING)
        per_class = outcome.worst_first()
        worst = [f"{name} {accuracy:.0f}% of {outcome.class_images[name]}" for name, accuracy in per_class[:_WORST]]
        mean = "" if outcome.is_balanced else f", mean {outcome.mean_over_classes:.1f}%"
        lines.append(f"per class{mean}{', worst first' if len(per_class) > 1 else ''}: {', '.join(worst)}"
                     f"{', ...' if len(per_class) > _WORST else ''}")  # fmt: skip
        if outcome.confused:
            pairs = [f"{true} taken for {answer} ({count})" for true, answer, count in outcome.confused[:3]]
            lines.append(f"most frequent mistakes: {', '.join(pairs)}")
        return "\n".join(lines)


@dataclass(frozen=True)
class RunResult:
    """The results on each part of the classes: all, or base and novel."""

    parts: Mapping[str, PartResult]

    def accuracies(self) -> dict[str, float]:
        """{"all": ...}, or base, novel and their harmonic mean, in %."""
        by_part = {name: part.outcome.accuracy for name, part in self.parts.items()}
        return by_part | ({"hm": harmonic_mean(by_part[BASE], by_part[NOVEL])} if NOVEL in by_part else {})

    def to_json(self) -> dict[str, Any]:
        return to_builtins(self.parts)

    def __str__(self) -> str:
        """The table, the verdict, the worst classes and confusions of every part."""
        mean = [f"harmonic mean (hm) of base and novel: {hm:.1f}"] if (hm := self.accuracies().get("hm")) else []
        return "\n\n".join([*map(str, self.parts.values()), *mean])


def run_result(subject: Trial, baselines: Sequence[Trial]) -> RunResult:
    """The trained method beside zero-shot and the best of the other baselines, by accuracy."""
    parts: dict[str, PartResult] = {}
    for part in subject.task.parts:
        logits, outcome = subject.logits(part), subject.outcome(part)
        if logits is None or outcome is None:  # it cannot answer these classes
            continue
        others = [other for trial in baselines if (other := trial.outcome(part))]
        zero_shot = [other for other in others if other.method == ZERO_SHOT]
        simple = [other for other in others if other.method != ZERO_SHOT]
        best = [max(simple, key=lambda other: other.accuracy)] if simple else []
        rows, (examples, classes) = (
            [*zero_shot, *best, outcome],
            (subject.task.examples(part), subject.task.classes(part)),
        )
        parts |= result_of(rows, subject.method, logits, examples, classes).parts
    return RunResult(parts)


def result_of(
    outcomes: Sequence[Outcome], method: str, logits: Tensor, examples: Sequence[Example], classes: Sequence[str]
) -> RunResult:
    """The result of a method, whose logits [images, classes] these are, beside others on the same images."""
    board = leaderboard(outcomes, method)
    losses = largest_losses(logits, examples, unique_names(classes))
    part = board[method].part
    return RunResult({part: PartResult(part, board, verdict(board), losses)})


def accuracy_summary(trials: Sequence[Trial]) -> str:
    """Accuracies of trials on the same task, in a line."""
    lines = []
    for part in trials[0].task.parts:
        outcomes = [outcome for trial in trials if (outcome := trial.outcome(part))]
        if outcomes:
            accuracies = ", ".join(f"{outcome.method} {outcome.accuracy:.1f}%" for outcome in outcomes)
            lines.append(f"{accuracies} of {outcomes[0].images} test images{'' if part == ALL else f', {part}'}")
    return "; ".join(lines)
