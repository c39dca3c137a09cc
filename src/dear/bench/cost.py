"""What a grid costs, derived: floating-point operations of ViT-B/16, and bytes of the datasets.

Nobody has run these grids on a GPU with this package. The operations are counted; that an A100 does 125 TFLOP/s of them
in bf16 (40% of its peak) is an assumption, the same as in docs/scale.md. Images are decoded faster than that only by
about 11 cores per GPU.
"""

from collections.abc import Sequence

from dear.bench.results import BASE_TO_NOVEL, Cell
from dear.data.known import KNOWN, find_known
from dear.data.known.sources import SOURCES
from dear.methods.registry import METHODS

IMAGE_FLOPS, TEXT_FLOPS = 33e9, 6e9  # of one forward pass: an image at 224 px, a text of 77 tokens
RATE = 125e12  # per second
_BACKWARD = 3  # a training pass costs about three forward passes, if no layer is left out
_IMAGENET_MB = 155_000
_CELL_MB = 0.1


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
    return None if None in flops else sum(f for f in flops if f is not None) / RATE / 3600


def disk_megabytes(cells: Sequence[Cell]) -> float:
    """Datasets, unpacked, and result files. An archive is as large again while it is unpacked."""
    names = {name for cell in cells for name in (cell.dataset, *cell.targets)}
    known = {entry.name for entry in KNOWN for name in names if find_known(name) is entry}
    sizes = [
        _IMAGENET_MB if name == "ImageNet" else sum(archive.megabytes for archive in SOURCES[name].ways[0])
        for name in known
    ]
    return sum(sizes) + _CELL_MB * len(cells)
