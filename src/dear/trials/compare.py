"""`dear compare`: methods on one dataset, the same images for all, under a time limit."""

import time
from collections.abc import Sequence

from dear.clip import Backbone
from dear.core.errors import DearError
from dear.data.dataset import Dataset
from dear.methods.registry import COMPARED, METHODS, ZERO_SHOT, methods_for, simple_methods
from dear.training.config import TrainConfig
from dear.training.images import ImageSource
from dear.trials.leaderboard import Leaderboard, leaderboard
from dear.trials.outcome import Outcome, Unseen
from dear.trials.task import Task
from dear.trials.trial import uncropped_trial
from dear.trials.unseen import foresee

DEFAULT_METHODS = (ZERO_SHOT, *simple_methods(), *COMPARED)
_LEAST = 5.0  # seconds: no training starts with less time left


def default_methods(backbone: Backbone) -> list[str]:
    """Zero-shot, the simple methods, and a few trained ones, as far as they work with the backbone."""
    usable = methods_for(backbone.image.tier, backbone.text.tier, not backbone.image.why_no_sum)
    return [name for name in DEFAULT_METHODS if name in usable]


def compare_methods(
    dataset: Dataset, source: ImageSource, methods: Sequence[str], train: TrainConfig, time_limit: float
) -> tuple[Leaderboard, list[str], Unseen]:
    """A leaderboard on the test images, the methods for which there was no time, and what the advised one is expected
    to get on classes without images.

    `dataset`: after the few-shot draw. Methods without training come first; trained ones share the time that is left,
    and have fewer epochs than their recipes if need be. Of `train` the seed, shots, device and workers are used.
    """
    if not methods:
        raise DearError("There are no methods to compare: name some.")
    deadline = time.monotonic() + time_limit
    task, own = Task.on_test(dataset, pool=dataset), ("seed", "shots", "device", "workers")
    trials = [uncropped_trial(name, task, **{name: getattr(train, name) for name in own}) for name in methods]
    trials.sort(key=lambda trial: METHODS[trial.method].trained)
    # now, so that it does not count as the time of the first method
    source.encode([*dataset.train, *dataset.val, *dataset.test], [trial.prepare(source) for trial in trials])
    outcomes: list[Outcome] = []
    skipped = []
    for number, trial in enumerate(trials):
        start = time.monotonic()
        left = deadline - start
        if METHODS[trial.method].trained and left < _LEAST:
            skipped.append(trial.method)
            continue
        outcome = trial.run(source, start + left / (len(trials) - number)).outcome()
        if outcome is not None:
            outcomes.append(outcome)
            print(f"{trial.method}: {outcome.accuracy:.1f}% ({trial.seconds:.0f} s)", flush=True)
        trial.answers.clear()
    if not outcomes:
        raise DearError(f"There was no time for {', '.join(skipped)}: raise --time-limit.")
    board = leaderboard(outcomes)
    (advised,) = (trial for trial in trials if trial.method == board.advised().method)
    return board, skipped, foresee(advised, dataset, source)
