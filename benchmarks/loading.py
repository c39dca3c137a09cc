"""How many images a second one core can load at 224 px, for evaluation and for training.

    python benchmarks/loading.py [--images 300] [--rounds 3]

JPEGs of 500 x 375 px (quality 85, about 50 kB: coarse shapes and some noise) in a temporary folder, read from the
page cache on one thread in one process. It is processor time that counts, so that a busy machine changes little; the
best of the rounds. "kept" is the second pass over evaluation images that `evaluation_batches` has decoded before.
The last columns say how many cores it takes to feed a device that eats so many images a second: `--workers` of
`dear train` should be about that.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from dear.backbone import load_backbone
from dear.data.augment import Batches, TrainingData
from dear.data.check import why_unreadable
from dear.data.dataset import Example, ImageFile
from dear.data.loading import evaluation_batches
from dear.tables import Table

DEMANDS = (250, 1000, 4000)


def photo(path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shapes = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize((500, 375))
    noisy = np.asarray(shapes) + rng.normal(0, 8, (375, 500, 3))
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=85)


def rate(work: Callable[[], None], images: int, rounds: int) -> float:
    """Images a second of processor time in the best round."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return images / min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    backbone = load_backbone("ViT-B-16", random_weights=True)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{i}.jpg" for i in range(args.images)]
        for i, file in enumerate(files):
            photo(file, i)
        kilobytes = sum(file.stat().st_size for file in files) / len(files) / 1000
        examples = [Example(ImageFile(file), 0) for file in files]
        training = TrainingData(examples, backbone, Batches([0] * len(examples), 0, 16, False, False), workers=0)

        def again() -> None:
            list(evaluation_batches(examples, backbone.preprocess, "again"))

        work: dict[str, Callable[[], object]] = {
            "check that it can be read": lambda: [why_unreadable(file) for file in files],
            "decode alone": lambda: [e.picture.open() for e in examples],
            "evaluation": lambda: [backbone.preprocess(e.picture.open()) for e in examples],
            "training view": lambda: list(training.epoch(0)),
            "evaluation, kept": again,
        }
        again()  # the first pass, which keeps them
        table = Table(["one core", "images/s", "ms an image", *(f"cores for {d}/s" for d in DEMANDS)])
        for name, function in work.items():
            speed = rate(function, args.images, args.rounds)
            table.add(name, round(speed), 1000 / speed, *(d / speed for d in DEMANDS))
    print(f"{args.images} JPEGs of 500 x 375 px, {kilobytes:.0f} kB each, to 224 px")
    print(table.text())


if __name__ == "__main__":
    main()
