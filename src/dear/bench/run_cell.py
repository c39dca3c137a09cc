"""Running one benchmark cell: a trial, what it cost, and where it ran; and the workbench that cells share."""

import json
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from msgspec import convert, to_builtins
from msgspec.structs import replace as with_fields
from torch import Tensor

from dear.bench.results import BASE_TO_NOVEL, DOMAIN, FEW_SHOT, Cell, CellResult, ComponentScores, Seconds
from dear.clip import load_backbone
from dear.core.errors import DearError, warn
from dear.core.runtime import HostRows
from dear.core.version import __version__
from dear.data.check import problems
from dear.data.dataset import Dataset
from dear.data.resolve import resolve_dataset
from dear.methods.base import Method
from dear.methods.registry import find_method
from dear.training.config import NONE, TrainConfig
from dear.training.images import ImageSource
from dear.training.shown import Stage
from dear.trials.outcome import ALL, BASE, HELD_OUT, NOVEL, Outcome, labels_of
from dear.trials.task import Round, Task
from dear.trials.trial import Trial


class Workbench:
    """Backbone, datasets and cached states, loaded once for many cells. They change no result.

    `cache`: a folder for constant states of images, shared by cells and runs; None: nothing is cached on disk.
    """

    def __init__(
        self, cache: Path | None = None, data_root: str | None = None, device: str = "auto", workers: int | None = None
    ) -> None:
        self.cache, self.data_root, self.device, self.workers = cache, data_root, device, workers
        self.cells: Sequence[Cell] = ()  # of the grid
        self._sources: dict[tuple[str | None, ...], ImageSource] = {}
        self._stages: dict[tuple[str, str], tuple[Stage, bool]] = {}
        self._datasets: dict[tuple[str, str | None, str | None], Dataset] = {}
        self.warnings: list[str] = []

    def source(
        self, model: str, pretrained: str | None, text_features: str | None = None, precision: str = "fp32"
    ) -> ImageSource:
        """A backbone and its images."""
        key = (model, pretrained, text_features, precision)
        if key not in self._sources:
            self._sources.clear()  # one at a time is enough
            self._stages.clear()
            backbone = load_backbone(
                model, pretrained, device=self.device, precision=precision, text_features=text_features
            )
            self._sources[key] = ImageSource(backbone, self.cache, self.workers)
        return self._sources[key]

    def dataset_of(self, cell: Cell, target: str | None = None) -> Dataset:
        """The dataset of a cell, or one of its targets."""
        name = target or cell.dataset
        template, class_names = (cell.settings[key] if target is None else None for key in ("template", "class_names"))
        key = (name, template, class_names)
        if key not in self._datasets:
            self._datasets[key] = resolve_dataset(name, template, class_names, self.data_root)
        return self._datasets[key]

    def encode(self, cell: Cell, task: Task, source: ImageSource) -> None:
        """Encodes the images of a cell for all methods that the grid has on this dataset, in one pass."""
        needs = []
        for other in (cell, *self.cells):
            if (other.dataset, _backbone_of(other)) == (cell.dataset, _backbone_of(cell)):
                with suppress(DearError):  # settings that do not work are refused when their own cell runs
                    needs.append(self._need(other, source))
        source.encode(task.measured_images(), [stage for stage, _ in needs], "encoding the test images")
        source.encode(task.fitted_images(), [stage for stage, clean in needs if clean], "encoding the training images")

    def _need(self, cell: Cell, source: ImageSource) -> tuple[Stage, bool]:
        """The stage at which a method begins, and whether it reads training images as they are."""
        key = cell.method, json.dumps(cell.settings, sort_keys=True)
        if key not in self._stages:
            kind = find_method(cell.method)
            asks = kind.before_training is not Method.before_training or cell.settings.get("augment") == NONE
            self._stages[key] = Stage.of(kind(source.backbone, kind.Config.pick(cell.settings)).eval()), asks
        return self._stages[key]

    def check(self, drawn: Dataset, shots: int) -> None:
        """The checks of `dear train`: refuses unreadable images, warns of copies and leaks, once each."""
        findings = problems(drawn, shots)
        findings.refuse_unreadable()
        for line in findings.warnings():
            self.warn(f"{drawn.name}: {line}")

    def warn(self, line: str) -> None:
        if line not in self.warnings:
            self.warnings.append(line)
            warn(line)


@cache
def shared_workbench(cache: Path | None, data_root: str | None, device: str, workers: int | None) -> Workbench:
    """The workbench of this process, for cells that arrive one by one."""
    return Workbench(cache, data_root, device, workers)


def run_cell(cell: Cell, bench: Workbench, work: Path) -> CellResult:
    """Trains and evaluates: a pure function of the cell. `work` is a folder for checkpoints, from which a killed cell
    continues."""
    _reset_peak_memory()
    dataset = bench.dataset_of(cell)
    drawn = dataset.few_shot(cell.shots, cell.seed)
    if not drawn.train:
        raise DearError(f"{cell.dataset} has no training images: train on another dataset, and test on this one.")
    bench.check(drawn, cell.shots)
    seen = drawn.base() if cell.protocol == BASE_TO_NOVEL else drawn
    if cell.protocol == DOMAIN:
        _require_same_classes(cell, seen, bench)
    parts = _measured_parts(cell, drawn, bench)
    train = replace(
        TrainConfig.pick(cell.settings), seed=cell.seed, shots=cell.shots, workers=bench.workers, device=bench.device
    )
    source = bench.source(*_backbone_of(cell))
    task = Task((Round(seen, parts),), cell.split, dataset)
    trial = Trial(cell.method, task, find_method(cell.method).Config.pick(cell.settings), train)
    bench.encode(cell, task, source)  # not counted: it is for several methods
    start = time.perf_counter()
    model = trial.fit(seen, source, work)
    fitted = time.perf_counter()
    measured = [_measure(trial, model, name, source) for name in parts]
    fusion = None
    if len(model.components) > 1:
        fusion = _rounded(dict(zip(model.components, model.fusion_weights().tolist(), strict=True)))
    return CellResult(
        cell=cell,
        outcomes=[outcome for outcomes, _ in measured for outcome in outcomes],
        fusion=fusion,
        components=[scores for _, scores in measured if scores is not None],
        trained_parameters=sum(parameter.numel() for parameter in model.parameters()),
        seconds=Seconds(round(fitted - start, 4), round(time.perf_counter() - fitted, 4)),
        peak_memory_mb=_peak_memory_mb(),
        versions=_software(),
        machine=_machine(),
        finished=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def _backbone_of(cell: Cell) -> tuple[str, str | None, str | None, str]:
    """Model, pretrained tag, text table and precision of a cell."""
    settings = cell.settings
    precision = settings.get("precision", "auto").replace("auto", "fp32")  # see `cell_settings`
    return settings["model"], settings["pretrained"], settings.get("text_features"), precision


def _measure(
    trial: Trial, model: Method, part: str, source: ImageSource
) -> tuple[list[Outcome], ComponentScores | None]:
    """The outcomes on a part, by each way of inference; and the scores of each component, if there are several."""
    fitted_to, parts = trial.task.rounds[0]
    meter = ComponentMeter(model.components) if len(model.components) > 1 else None
    observe = None if meter is None else lambda _, features, votes: meter.add(features, votes)
    trial.measure(model, Round(fitted_to, {part: parts[part]}), source, every=True, observe=observe)
    outcomes = [_of_cell(outcome) for outcome in trial.outcomes()]
    trial.answers.clear()  # those to ImageNet's 50,000 test images take 200 MB for each inference
    return outcomes, meter.scores(part, labels_of(parts[part].test)) if meter and outcomes else None


def _of_cell(outcome: Outcome) -> Outcome:
    """The outcome, rounded, without what the cell itself says."""
    outcome = with_fields(outcome, method="", seconds=None, epochs=None)
    return convert(_rounded(to_builtins(outcome)), Outcome)


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
        """Scores over all images added, whose labels these are; CLS is the first component."""
        right, cosines = self._answers.all() == labels[:, None], self._cosines.all().mean(0)
        alone = {component: 100 * right[:, i].double().mean().item() for i, component in enumerate(self.components)}
        pairs = [cosines[i, j].item() for i, j in combinations(range(1, len(self.components)), 2)]
        return ComponentScores(name, _rounded(alone), _rounded(fmean(pairs)) if pairs else None)


def _require_same_classes(cell: Cell, source: Dataset, bench: Workbench) -> None:
    for target in cell.targets:
        other = set(bench.dataset_of(cell, target).classes) - set(source.classes)
        if other:
            raise DearError(
                f"{target} has the class {min(other)!r}, which {cell.dataset} has not: domain is for the same classes "
                "in another style; use cross-dataset."
            )


def _measured_parts(cell: Cell, drawn: Dataset, bench: Workbench) -> dict[str, Dataset]:
    """Datasets by the name of the part; their `test` images are measured."""
    if cell.split == HELD_OUT:
        dataset, used = bench.dataset_of(cell), set(drawn.train)
        drawn = replace(drawn, test=tuple(e for e in dataset.train + dataset.val if e not in used))
    if cell.protocol == BASE_TO_NOVEL:
        parts = {BASE: drawn.base(), NOVEL: drawn.novel()}
    elif cell.protocol == FEW_SHOT:
        parts = {ALL: drawn}
    else:
        parts = {cell.dataset: drawn} | {target: bench.dataset_of(cell, target) for target in cell.targets}
    for name, data in parts.items():
        if not data.test:
            raise DearError(
                f"{cell.dataset} has no {cell.split} images for {name}: add some, or choose another --split."
            )
    return parts


def _rounded(value: Any) -> Any:
    """Floats with four decimals: more is noise, and would make the files three times as large."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def _reset_peak_memory() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):  # Linux only: resets the kernel's high-water mark
        Path("/proc/self/clear_refs").write_text("5")


def _peak_memory_mb() -> float | None:
    """The peak memory of the GPU if there is one, else of this process."""
    if torch.cuda.is_available():
        return round(torch.cuda.max_memory_allocated() / 2**20, 1)
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return round(int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024, 1)
    return None


def _software() -> dict[str, str | None]:
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
