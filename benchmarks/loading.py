"""Images per second that one core loads at 224 px: for evaluation, for training, and with fast decoding.

    python benchmarks/loading.py [--images 100] [--rounds 3]

JPEGs (quality 85: coarse shapes and some noise) of 500 x 375 px, and a fortieth as many of 4000 x 3000 px, in a
temporary folder, read from the page cache on one thread in one process. Times are processor times, so that a busy
machine changes little; the best of the rounds counts. "fast" is `--fast-decode` of `dear index` and `dear predict`, and
the default of `dear train` (`dear.data.decode`); "gain" compares with exact decoding in the same run. "cached" is the
second pass over evaluation images that `evaluation_batches` has decoded before. The last columns give the number of
cores that feed a device of so many images per second: `--workers` of `dear train` should be about that.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from dear.clip import load_backbone
from dear.core.table import Table
from dear.data.augment import Batches, FreshViews
from dear.data.dataset import Example, ImageFile
from dear.data.decode import Decoder, why_unreadable
from dear.data.loading import evaluation_batches

DEMANDS = (250, 1000, 4000)


def photo(path: Path, seed: int, width: int, height: int) -> None:
    rng = np.random.default_rng(seed)
    shapes = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize((width, height))
    noisy = np.asarray(shapes) + rng.normal(0, 8, (height, width, 3))
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=85)


def rate(work: Callable[[], None], images: int, rounds: int) -> float:
    """Images per second of processor time in the best round."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return images / min(times)


def measure(folder: Path, images: int, rounds: int, width: int, height: int) -> None:
    backbone = load_backbone("ViT-B-16", random_weights=True)
    folder.mkdir()
    files = [folder / f"{i}.jpg" for i in range(images)]
    for i, file in enumerate(files):
        photo(file, i, width, height)
    kilobytes = sum(file.stat().st_size for file in files) / len(files) / 1000
    whole = [Example(ImageFile(file), 0) for file in files]
    reduced = [Example(ImageFile(file, 224), 0) for file in files]
    exact, fast = (Decoder(backbone.preprocess, fast) for fast in (False, True))

    def epoch(examples: list[Example]) -> Callable[[], object]:
        data = FreshViews(examples, backbone, Batches([0] * images, 0, 16, False, False), workers=0)
        return lambda: list(data.epoch(0))

    def again() -> None:
        list(evaluation_batches(whole, backbone.preprocess, "again"))

    again()  # the first pass, which fills the cache
    work: dict[str, tuple[Callable[[], object], str]] = {  # (function, row to compare with)
        "check readability": (lambda: [why_unreadable(ImageFile(file, side=1)) for file in files], ""),
        "decode alone": (lambda: [e.picture.open() for e in whole], ""),
        "evaluation": (lambda: [exact(file) for file in files], ""),
        "evaluation, fast": (lambda: [fast(file) for file in files], "evaluation"),
        "training view": (epoch(whole), ""),
        "training view, fast": (epoch(reduced), "training view"),
        "evaluation, cached": (again, "evaluation"),
    }
    table = Table(["one core", "images/s", "ms per image", "gain", *(f"cores for {d}/s" for d in DEMANDS)])
    speeds: dict[str, float] = {}
    for name, (function, beside) in work.items():
        speeds[name] = speed = rate(function, images, rounds)
        gain = f"{speed / speeds[beside]:.1f}x" if beside else ""
        table.add(name, round(speed), 1000 / speed, gain, *(d / speed for d in DEMANDS))
    print(f"{images} JPEGs of {width} x {height} px, {kilobytes:.0f} kB each, to 224 px")
    print(table.text(), end="\n\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder) / "small", args.images, args.rounds, 500, 375)
        measure(Path(folder) / "large", max(1, args.images // 40), args.rounds, 4000, 3000)


if __name__ == "__main__":
    main()
