"""What a method must offer to stand in a table, and the methods there are.

A method is a function from a task to a classifier; a classifier answers for any classes it can. To add one, write the
function, and give it a name in METHODS.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from dear.data.dataset import Dataset, Example
from dear.errors import DearError
from dear.evaluation.workbench import Workbench


@dataclass(frozen=True)
class Task:
    """What a method may learn from: the few-shot images of the classes to be trained, and its settings."""

    data: Dataset
    seed: int
    shots: int
    settings: Mapping[str, Any]
    bench: Workbench
    work: Path  # a folder for checkpoints, gone when the cell is finished


class Classifier(Protocol):
    parameters: int  # how many were trained
    fusion: dict[str, float] | None  # weight of each component, where there are several

    def logits(self, data: Dataset, examples: Sequence[Example]) -> dict[str, Tensor]:
        """For each way of inference [images, classes] over the classes of `data`; empty if it can't answer them."""
        ...


Fit = Callable[[Task], Classifier]

BACKBONE_SETTINGS = ("model", "pretrained", "template", "class_names")
"""What every method depends on."""

METHODS = {
    "zero-shot": "dear.evaluation.references:zero_shot",
    "zero-shot-ensemble": "dear.evaluation.references:zero_shot_ensemble",
    "linear-probe": "dear.evaluation.references:linear_probe",
    "tip-adapter": "dear.evaluation.references:tip_adapter",
    "dear": "dear.evaluation.adapted:dear",
}


def find_method(name: str) -> Fit:
    if name not in METHODS:
        raise DearError(f"There is no method {name!r}: choose from {', '.join(METHODS)}.")
    module, _, function = METHODS[name].partition(":")
    return getattr(importlib.import_module(module), function)
