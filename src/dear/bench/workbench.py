"""What the cells of a benchmark share: the backbone, datasets, and cached states. It changes no result."""

import sys
from functools import cache as memoize
from pathlib import Path

from dear.clip import load_backbone
from dear.core.runtime import pick_device
from dear.data.check import problems
from dear.data.dataset import Dataset
from dear.data.resolve import resolve_dataset
from dear.training.images import ImageSource


class Workbench:
    """Loads backbones and datasets once for many cells.

    `cache`: a folder for constant states of images, shared by cells and runs; None: nothing is cached on disk.
    """

    def __init__(
        self, cache: Path | None = None, data_root: str | None = None, device: str = "auto", workers: int | None = None
    ) -> None:
        self.cache, self.data_root, self.device, self.workers = cache, data_root, device, workers
        self._sources: dict[tuple[str | None, ...], ImageSource] = {}
        self._datasets: dict[tuple[str, str | None, str | None], Dataset] = {}
        self.warnings: list[str] = []

    def source(
        self, model: str, pretrained: str | None, text_features: str | None = None, precision: str = "fp32"
    ) -> ImageSource:
        """A backbone and its images."""
        key = (model, pretrained, text_features, precision)
        if key not in self._sources:
            self._sources.clear()  # one at a time is enough
            device = pick_device(self.device)
            backbone = load_backbone(model, pretrained, device=device, precision=precision, text_features=text_features)
            self._sources[key] = ImageSource(backbone, self.cache, self.workers)
        return self._sources[key]

    def dataset(self, name: str, template: str | None, class_names: str | None) -> Dataset:
        key = (name, template, class_names)
        if key not in self._datasets:
            self._datasets[key] = resolve_dataset(name, template, class_names, self.data_root)
        return self._datasets[key]

    def check(self, drawn: Dataset, shots: int) -> None:
        """The checks of `dear train`: refuses unreadable images, warns of copies and leaks, once each."""
        findings = problems(drawn, shots)
        findings.refuse_unreadable()
        for line in findings.warnings():
            self.warn(f"{drawn.name}: {line}")

    def warn(self, line: str) -> None:
        if line not in self.warnings:
            self.warnings.append(line)
            print(f"dear: warning: {line}", file=sys.stderr)


@memoize
def shared_workbench(cache: Path | None, data_root: str | None, device: str, workers: int | None) -> Workbench:
    """The workbench of this process, for cells that arrive one by one."""
    return Workbench(cache, data_root, device, workers)
