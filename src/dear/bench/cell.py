"""A benchmark cell: one method, one dataset, one seed. Its result is a pure function of its fields."""

import hashlib
import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from dear.bench.components import Apart
from dear.bench.result_file import FORMAT
from dear.bench.workbench import Workbench
from dear.core.errors import DearError
from dear.core.metrics import evaluation
from dear.core.version import __version__
from dear.data.dataset import Dataset
from dear.methods.registry import find_method
from dear.training.adapt import adapt, predict_logits
from dear.training.config import TrainConfig

PROTOCOLS = ("base-to-novel", "few-shot", "cross-dataset", "domain")
SPLITS = ("test", "held-out")


@dataclass(frozen=True)
class Cell:
    """`split`: what is measured on; "held-out" are the training and validation images that were not drawn, so that
    settings can be chosen without a look at the test images. `variant` names the row of an ablation, and decides
    nothing.
    """

    protocol: str
    dataset: str
    method: str
    seed: int
    shots: int
    settings: Mapping[str, Any]
    targets: tuple[str, ...] = ()
    split: str = "test"
    variant: Mapping[str, Any] | None = field(default=None, compare=False)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "targets": list(self.targets)}

    @property
    def name(self) -> str:
        """A file name that a reader understands, and a hash of everything that decides the result."""
        decides = {key: value for key, value in self.to_json().items() if key != "variant"}
        digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:10]
        parts = (self.protocol, Path(self.dataset).name, self.method, f"{self.shots}-shots", f"seed-{self.seed}")
        return re.sub(r"[^A-Za-z0-9._-]+", "-", "_".join(parts)) + f"_{digest}"

    def __str__(self) -> str:
        variant = f" ({self.variant['ablation']}: {self.variant['value']})" if self.variant else ""
        return f"{self.method}{variant} on {Path(self.dataset).name}, {self.shots} shots, seed {self.seed}"


def run_cell(cell: Cell, bench: Workbench, work: Path) -> dict[str, Any]:
    """Trains and measures; `work` is a folder for checkpoints, from which a killed cell goes on."""
    _forget_peak_memory()
    whole = _load(cell, cell.dataset, bench)
    drawn = whole.few_shot(cell.shots, cell.seed)
    if not drawn.train:
        raise DearError(f"{cell.dataset} has no training images: train on another dataset, and test on this one.")
    bench.check(drawn, cell.shots)
    trained = drawn.base() if cell.protocol == "base-to-novel" else drawn
    if cell.protocol == "domain":
        _demand_same_classes(cell, trained, bench)
    kind = find_method(cell.method)
    train = replace(
        TrainConfig.pick(cell.settings), seed=cell.seed, shots=cell.shots, workers=bench.workers, device=bench.device
    )
    source = bench.source(cell.settings["model"], cell.settings["pretrained"])
    began = time.perf_counter()
    model = adapt(kind, kind.Config.pick(cell.settings), trained, train, source, work, pool=whole)
    fitted = time.perf_counter()
    evaluations, components = [], []
    several = len(model.components) > 1
    for name, data in _measured_on(cell, drawn, bench):
        if not data.test:
            raise DearError(
                f"{cell.dataset} has no {cell.split} images for {name}: add some, or choose another --split."
            )
        if not model.can_answer(data.classes):
            continue
        labels = torch.tensor([example.label for example in data.test])
        model.set_classes(data.classes, data.template)
        apart = Apart(model.components)
        found = predict_logits(model, data.test, source, data.name, observer=apart.add if several else None)
        for inference, logits in found.items():
            evaluations.append({"name": name, "inference": inference, **evaluation(logits, labels, data.classes)})
        if several:
            components.append({"name": name, **apart.found(labels)})
    fusion = dict(zip(model.components, model.fusion_weights().tolist(), strict=True)) if several else None
    seconds = {"fit": fitted - began, "evaluate": time.perf_counter() - fitted}
    return {
        "format": FORMAT,
        "cell": cell.to_json(),
        "evaluations": _rounded(evaluations),
        "fusion": _rounded(fusion),
        "components": _rounded(components),
        "trained_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seconds": _rounded(seconds),
        "peak_memory_mb": _peak_memory_mb(),
        "versions": _versions(),
        "machine": _machine(),
        "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _demand_same_classes(cell: Cell, trained: Dataset, bench: Workbench) -> None:
    for target in cell.targets:
        other = set(_load(cell, target, bench).classes) - set(trained.classes)
        if other:
            raise DearError(
                f"{target} has the class {min(other)!r}, which {cell.dataset} has not: domain is for the same classes "
                "shown in another way; use cross-dataset."
            )


def _load(cell: Cell, name: str, bench: Workbench) -> Dataset:
    template = cell.settings["template"] if name == cell.dataset else None
    class_names = cell.settings["class_names"] if name == cell.dataset else None
    return bench.dataset(name, template, class_names)


def _measured_on(cell: Cell, drawn: Dataset, bench: Workbench) -> Iterator[tuple[str, Dataset]]:
    """Names and datasets whose `test` is what the cell measures on."""
    if cell.split == "held-out":
        whole, taken = _load(cell, cell.dataset, bench), set(drawn.train)
        drawn = replace(drawn, test=tuple(e for e in whole.train + whole.val if e not in taken))
    if cell.protocol == "base-to-novel":
        yield from (("base", drawn.base()), ("novel", drawn.novel()))
    elif cell.protocol == "few-shot":
        yield "all", drawn
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


def _forget_peak_memory() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):  # Linux only: the kernel starts its high-water mark anew
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
    asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    git = None
    with suppress(OSError, subprocess.CalledProcessError):
        git = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    return {"dear": __version__, "git": git, "torch": torch.__version__, "python": platform.python_version()}


def _machine() -> dict[str, Any]:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"system": platform.system(), "processor": _processor(), "cores": os.cpu_count(), "gpu": gpu}


def _processor() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()
    return platform.machine()
