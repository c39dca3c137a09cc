"""The plan and cost of a grid, said before it runs: cells that cannot differ are run once, cheap ones first.

On this machine the cost is measured by a few images. On an A100 it is derived, as nobody has run these grids on one
with this package: operations of ViT-B/16 are counted; that it does 125 TFLOP/s of them in bf16 (40% of its peak) is an
assumption, the same as in docs/scale.md. Images are decoded faster than that only by about 11 cores per GPU.
"""

import time
from collections import Counter
from collections.abc import Collection, Sequence

import torch
from msgspec.structs import replace

from dear.bench.results import BASE_TO_NOVEL, Cell
from dear.bench.run_cell import Workbench
from dear.core.progress import duration
from dear.core.words import counted
from dear.data.known import KNOWN, find_known
from dear.data.known.sources import SOURCES
from dear.data.splits import COOP_SPLIT
from dear.methods.registry import METHODS, UNFITTED
from dear.training.config import FRESH, TrainConfig, fixed_views, training_length
from dear.trials.outcome import TEST

_PARTS = ("dataset", "method", "seed")  # of a grid
_TIMED = 4  # images
_BACKWARD = 3  # cost of a training step in passes of its images: forward, and about twice as much backward
IMAGE_FLOPS, TEXT_FLOPS = 33e9, 6e9  # of one forward pass: an image at 224 px, a text of 77 tokens
_RATE = 125e12  # per second
_IMAGENET_MB, _CELL_MB = 155_000, 0.1


def constant_key(cell: Cell) -> str | None:
    """Equal for cells with equal results, whatever their seed and shots: of methods that use no labelled image. None:
    there are no others like it."""
    if cell.method not in UNFITTED or cell.split != TEST:  # held-out images depend on the draw
        return None
    return replace(cell, seed=0, shots=0, variant=None).name


class GridPlan:
    """The cells of a grid that can differ, cheap ones first, and `notes` on what was left out."""

    def __init__(self, cells: Sequence[Cell], bench: Workbench) -> None:
        self._bench, self.notes = bench, list[str]()
        self._counts: dict[str, list[int]] = {}  # training images per class of each dataset
        kept: list[Cell] = []
        for name in dict.fromkeys(cell.dataset for cell in cells):
            own = [cell for cell in cells if cell.dataset == name]
            kept += self._without_repeats(own)
        self.cells = sorted(kept, key=self.image_passes)

    def _without_repeats(self, cells: Sequence[Cell]) -> list[Cell]:
        """Cells of one dataset, without numbers of shots that draw no other images than a smaller one."""
        dataset = self._bench.dataset_of(cells[0])
        most = max(self._class_sizes(cells[0]), default=0)
        spare = sorted({cell.shots for cell in cells if cell.shots >= most})[1:] if most else []
        if spare:
            left_out = ", ".join(map(str, spare))
            self.notes.append(f"{dataset.name}: no class has more than {most} training images: no {left_out} shots")
        kept = [cell for cell in cells if cell.shots not in spare]
        if dataset.rule and dataset.rule != COOP_SPLIT:  # CoOp's divided all folders before November 2026
            kept = [replace(cell, settings={**cell.settings, "divided": dataset.rule}) for cell in kept]
        return kept

    def image_passes(self, cell: Cell) -> float:
        """Roughly how many times an image goes through the backbone in a cell."""
        sizes, dataset = self._class_sizes(cell), self._bench.dataset_of(cell)
        if cell.protocol == BASE_TO_NOVEL:
            sizes = sizes[: len(dataset.base().classes)]
        images = sum(min(size, cell.shots) for size in sizes)
        passes = float(images + len(dataset.test))
        if METHODS[cell.method].trained and images:
            train = TrainConfig.pick({**cell.settings, "shots": cell.shots})
            epochs, _ = training_length(train, images, -(-images // train.batch))
            views = epochs * _BACKWARD if train.augment == FRESH else max(1, fixed_views(train.augment))
            passes += images * views
        return passes

    def describe(self, done: Collection[str]) -> str:
        """The plan in a few lines; `done`: names of cells with results."""
        counts = [counted(len({getattr(cell, noun) for cell in self.cells}), noun) for noun in _PARTS]
        counts += [f"shots {', '.join(map(str, sorted({cell.shots for cell in self.cells})))}"]
        keys = [key for cell in self.cells if (key := constant_key(cell))]
        copied = len(keys) - len(set(keys))
        note = f"; {copied} of them are equal to another, and copied" if copied else ""
        missing = [cell for cell in self.cells if cell.name not in done]
        lines = [*self.notes, f"{counted(len(self.cells), 'cell')}: {', '.join(counts)}{note}"]
        if missing:
            cost = duration(self._seconds(missing))
            lines.append(f"to do: {len(missing)}, cheap ones first, very roughly {cost}")
        return "\n".join(lines)

    def _seconds(self, cells: Sequence[Cell]) -> float:
        """Estimated from the time of a few images. Features of frozen CLIP are shared by methods without training."""
        seen, passes = set[str](), 0.0
        for cell in cells:
            if METHODS[cell.method].trained or cell.dataset not in seen:
                passes += self.image_passes(cell)
            if not METHODS[cell.method].trained:
                seen.add(cell.dataset)
        settings = cells[0].settings
        source = self._bench.source(settings["model"], settings["pretrained"], settings.get("text_features"))
        backbone, examples = source.backbone, self._bench.dataset_of(cells[0]).test[:_TIMED]
        if not examples:
            return 0.0
        pixels = torch.stack([backbone.preprocess(example.picture.open()) for example in examples]).to(backbone.device)
        with torch.no_grad():
            backbone.model.encode_image(pixels[:1])  # the first call is slow
            start = time.perf_counter()
            backbone.model.encode_image(pixels).sum().item()
        return passes * (time.perf_counter() - start) / len(examples)

    def _class_sizes(self, cell: Cell) -> list[int]:
        """Training images of each class."""
        if cell.dataset not in self._counts:
            dataset = self._bench.dataset_of(cell)
            counts = Counter(example.label for example in dataset.train)
            self._counts[cell.dataset] = [counts[label] for label in range(len(dataset.classes))]
        return self._counts[cell.dataset]


def cell_flops(cell: Cell) -> float | None:
    """An upper bound: as if every learned weight were in the first layer of both towers. None: an unknown dataset."""
    entry = find_known(cell.dataset)
    tested = [find_known(target) for target in cell.targets]
    if entry is None or None in tested:
        return None
    info, settings = METHODS[cell.method], cell.settings
    classes = -(-entry.class_count // 2) if cell.protocol == BASE_TO_NOVEL else entry.class_count
    test_images = entry.image_counts[2] + sum(target.image_counts[2] for target in tested if target)
    texts = entry.class_count + sum(target.class_count for target in tested if target)
    flops = test_images * IMAGE_FLOPS + texts * TEXT_FLOPS
    images = entry.image_counts[0] if info.transductive else cell.shots * classes
    if not info.trained:
        return flops + images * IMAGE_FLOPS
    passes = settings.get("images_seen") or images * settings["epochs"]
    steps = passes / settings["batch"]
    texts_per_step = classes * (settings["batch"] if info.texts_per_image else 1)
    return flops + _BACKWARD * (passes * IMAGE_FLOPS + steps * texts_per_step * TEXT_FLOPS)


def gpu_hours(cells: Sequence[Cell]) -> float | None:
    """A100 hours of all cells; None if some dataset is unknown."""
    flops = [cell_flops(cell) for cell in cells]
    return None if None in flops else sum(f for f in flops if f is not None) / _RATE / 3600


def disk_megabytes(cells: Sequence[Cell]) -> float:
    """Datasets, unpacked, and result files. An archive is as large again while it is unpacked."""
    names = {name for cell in cells for name in (cell.dataset, *cell.targets)}
    known = {entry.name for entry in KNOWN for name in names if find_known(name) is entry}
    sizes = [
        _IMAGENET_MB if name == "ImageNet" else sum(archive.megabytes for archive in SOURCES[name].ways[0])
        for name in known
    ]
    return sum(sizes) + _CELL_MB * len(cells)
