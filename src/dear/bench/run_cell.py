"""Running one benchmark cell: train, evaluate, and note what it cost and where it ran."""

import os
import platform
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from msgspec import convert
from torch import Tensor

from dear.bench.protocols import ALL, BASE, BASE_TO_NOVEL, DOMAIN, FEW_SHOT, HELD_OUT, NOVEL
from dear.bench.results import Cell, ComponentScores, Evaluation, Result, Seconds
from dear.bench.workbench import Workbench
from dear.core.errors import DearError
from dear.core.metrics import evaluation
from dear.core.runtime import HostRows
from dear.core.version import __version__
from dear.data.dataset import Dataset
from dear.methods.base import Method
from dear.methods.registry import find_method
from dear.training.adapt import adapt, predict_logits
from dear.training.config import TrainConfig
from dear.training.images import ImageSource


def run_cell(cell: Cell, bench: Workbench, work: Path) -> Result:
    """Trains and evaluates: a pure function of the cell. `work` is a folder for checkpoints, from which a killed cell
    continues."""
    _reset_peak_memory()
    dataset = _load(cell, cell.dataset, bench)
    drawn = dataset.few_shot(cell.shots, cell.seed)
    if not drawn.train:
        raise DearError(f"{cell.dataset} has no training images: train on another dataset, and test on this one.")
    bench.check(drawn, cell.shots)
    seen = drawn.base() if cell.protocol == BASE_TO_NOVEL else drawn
    if cell.protocol == DOMAIN:
        _require_same_classes(cell, seen, bench)
    kind = find_method(cell.method)
    train = replace(
        TrainConfig.pick(cell.settings), seed=cell.seed, shots=cell.shots, workers=bench.workers, device=bench.device
    )
    precision = cell.settings.get("precision", "auto").replace("auto", "fp32")  # see `cell_settings`
    source = bench.source(
        cell.settings["model"], cell.settings["pretrained"], cell.settings.get("text_features"), precision
    )
    start = time.perf_counter()
    model = adapt(kind, kind.Config.pick(cell.settings), seen, train, source, work, pool=dataset)
    fitted = time.perf_counter()
    evaluations: list[Evaluation] = []
    components: list[ComponentScores] = []
    for name, data in _evaluation_sets(cell, drawn, bench):
        if not data.test:
            raise DearError(
                f"{cell.dataset} has no {cell.split} images for {name}: add some, or choose another --split."
            )
        if model.can_answer(data.classes):
            measured, scores = _evaluate(model, name, data, source)
            evaluations += measured
            components += scores
    fusion = None
    if len(model.components) > 1:
        fusion = _rounded(dict(zip(model.components, model.fusion_weights().tolist(), strict=True)))
    return Result(
        cell=cell,
        evaluations=evaluations,
        fusion=fusion,
        components=components,
        trained_parameters=sum(parameter.numel() for parameter in model.parameters()),
        seconds=Seconds(round(fitted - start, 4), round(time.perf_counter() - fitted, 4)),
        peak_memory_mb=_peak_memory_mb(),
        versions=_versions(),
        machine=_machine(),
        finished=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def _evaluate(
    model: Method, name: str, data: Dataset, source: ImageSource
) -> tuple[list[Evaluation], list[ComponentScores]]:
    """By each way of inference; and, where a model has several components, by each of them alone."""
    labels = torch.tensor([example.label for example in data.test])
    model.set_classes(data.classes, data.template)
    meter = ComponentMeter(model.components) if len(model.components) > 1 else None
    logits = predict_logits(model, data.test, source, data.name, observer=meter.add if meter else None)
    evaluations = []
    for inference, scores in logits.items():
        right = np.packbits((scores.argmax(-1) == labels).cpu().numpy()).tobytes().hex()
        metrics = evaluation(scores, labels, data.classes)
        evaluations.append(
            convert(_rounded({"name": name, "inference": inference, **metrics, "right": right}), Evaluation)
        )
    return evaluations, [meter.scores(name, labels)] if meter else []


class ComponentMeter:
    """Collects the answers of a model's components and how alike they are, batch by batch.

    Of votes only the class is kept: those of ImageNet's 50,000 test images would take more than a gigabyte.
    """

    def __init__(self, components: Sequence[str]) -> None:
        self.components = tuple(components)
        self._answers, self._cosines = HostRows(), HostRows()  # [images, components], [images, components, components]

    def add(self, features: Tensor, votes: Tensor) -> None:
        """Normalised features [batch, components, dim] and votes [batch, components, classes]."""
        self._answers.add(votes.argmax(-1))
        self._cosines.add(features @ features.mT)

    def scores(self, name: str, labels: Tensor) -> ComponentScores:
        """Of all images added, whose labels these are; CLS is the first component."""
        right, cosines = self._answers.all() == labels[:, None], self._cosines.all().mean(0)
        alone = {component: 100 * right[:, i].double().mean().item() for i, component in enumerate(self.components)}
        pairs = [cosines[i, j].item() for i, j in combinations(range(1, len(self.components)), 2)]
        return ComponentScores(name, _rounded(alone), _rounded(fmean(pairs)) if pairs else None)


def _require_same_classes(cell: Cell, source: Dataset, bench: Workbench) -> None:
    for target in cell.targets:
        other = set(_load(cell, target, bench).classes) - set(source.classes)
        if other:
            raise DearError(
                f"{target} has the class {min(other)!r}, which {cell.dataset} has not: domain is for the same classes "
                "in another style; use cross-dataset."
            )


def _load(cell: Cell, name: str, bench: Workbench) -> Dataset:
    template = cell.settings["template"] if name == cell.dataset else None
    class_names = cell.settings["class_names"] if name == cell.dataset else None
    return bench.dataset(name, template, class_names)


def _evaluation_sets(cell: Cell, drawn: Dataset, bench: Workbench) -> Iterator[tuple[str, Dataset]]:
    """Names and datasets, whose `test` images are evaluated."""
    if cell.split == HELD_OUT:
        dataset, used = _load(cell, cell.dataset, bench), set(drawn.train)
        drawn = replace(drawn, test=tuple(e for e in dataset.train + dataset.val if e not in used))
    if cell.protocol == BASE_TO_NOVEL:
        yield from ((BASE, drawn.base()), (NOVEL, drawn.novel()))
    elif cell.protocol == FEW_SHOT:
        yield ALL, drawn
    else:
        yield cell.dataset, drawn
        for target in cell.targets:
            yield target, _load(cell, target, bench)


def _rounded(value: Any) -> Any:
    """Floats with four decimals: more is noise, and would make the files three times as large."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def _reset_peak_memory() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):  # Linux only: resets the kernel's high-water mark
        Path("/proc/self/clear_refs").write_text("5")


def _peak_memory_mb() -> float | None:
    """Of the GPU if there is one, else of this process."""
    if torch.cuda.is_available():
        return round(torch.cuda.max_memory_allocated() / 2**20, 1)
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return round(int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024, 1)
    return None


def _versions() -> dict[str, str | None]:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    git = None
    with suppress(OSError, subprocess.CalledProcessError):
        git = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return {"dear": __version__, "git": git, "torch": str(torch.__version__), "python": platform.python_version()}


def _machine() -> dict[str, Any]:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"system": platform.system(), "processor": _processor(), "cores": os.cpu_count(), "gpu": gpu}


def _processor() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()
    return platform.machine()
