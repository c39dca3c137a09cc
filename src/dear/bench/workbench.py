"""What benchmark cells share, and may forget without a change in any result: backbone, datasets, constant states."""

import sys
from functools import cache
from pathlib import Path

from dear.clip import load_backbone
from dear.core.runtime import pick_device
from dear.data.check import problems
from dear.data.dataset import Dataset
from dear.data.resolve import resolve_dataset
from dear.training.images import ImageSource


class Workbench:
    """`states` is a folder where trunk states are kept between cells and runs; None: nothing is kept on disk."""

    def __init__(
        self, states: Path | None = None, data_root: str | None = None, device: str = "auto", workers: int = 2
    ) -> None:
        self.states, self.data_root, self.device, self.workers = states, data_root, device, workers
        self._sources: dict[tuple[str, str | None], ImageSource] = {}
        self._datasets: dict[tuple[str, str | None, str | None], Dataset] = {}
        self.warned: list[str] = []

    def source(self, model: str, pretrained: str | None) -> ImageSource:
        """A backbone, and where its images come from."""
        if (model, pretrained) not in self._sources:
            self._sources.clear()  # one at a time is enough
            backbone = load_backbone(model, pretrained, device=pick_device(self.device))
            self._sources[model, pretrained] = ImageSource(backbone, self.states, self.workers)
        return self._sources[model, pretrained]

    def dataset(self, name: str, template: str | None, class_names: str | None) -> Dataset:
        key = (name, template, class_names)
        if key not in self._datasets:
            self._datasets[key] = resolve_dataset(name, template, class_names, self.data_root)
        return self._datasets[key]

    def check(self, drawn: Dataset, shots: int) -> None:
        """What `dear train` looks for: unreadable images are refused, copies and leaks are told, each once."""
        findings = problems(drawn, shots)
        findings.refuse_unreadable()
        for line in findings.warnings():
            self.warn(f"{drawn.name}: {line}")

    def warn(self, line: str) -> None:
        if line not in self.warned:
            self.warned.append(line)
            print(f"dear: warning: {line}", file=sys.stderr)


@cache
def shared_workbench(states: Path | None, data_root: str | None, device: str, workers: int) -> Workbench:
    """The one of this process, for cells that come to it one by one."""
    return Workbench(states, data_root, device, workers)
