"""As many images and classes as ImageNet has, in small: speed, memory and files as the number of test images grows.

    python benchmarks/full_size.py [--images 10000] [--classes 1000]

Makes JPEGs of 320 x 240 px in a temporary folder, two of each class to train on and the others to test, and runs
dear-mini on a quarter of the test images and on all, each in its own process: evaluation (`zero-shot`, then `dear`,
whose components are measured, too), states in a folder (`--cache`), and a training epoch. Pixels are not kept in
memory, as those of ImageNet would not be. Everything runs on one thread of one process; times are processor times, so
that a busy machine changes little. "growth" compares all images with a quarter.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from dear.core.table import Table


def make(folder: Path, images: int, classes: int) -> None:
    rng = np.random.default_rng(0)
    for number in range(images):
        place = folder / ("train" if number < 2 * classes else "test") / f"class {number % classes:04d}"
        place.mkdir(parents=True, exist_ok=True)
        coarse = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((320, 240), Image.Resampling.BICUBIC).save(place / f"{number}.jpg", quality=85)


def peak_megabytes() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def work(folder: Path, cache: Path, share: float) -> dict[str, float]:
    """Everything on this share of the test images, in this process."""
    import torch

    from dear.bench.run_cell import ComponentMeter
    from dear.clip import load_backbone
    from dear.data import loading
    from dear.data.folder import read_dataset
    from dear.methods.registry import find_method
    from dear.training.adapt import adapt, predict_logits
    from dear.training.config import TrainConfig
    from dear.training.images import ImageSource
    from dear.trials.outcome import outcome_of

    torch.set_num_threads(1)
    loading._CACHE_LIMIT = loading.WORKERS = 0
    figures: dict[str, float] = {}
    data = read_dataset(folder)
    test = data.test[: round(share * len(data.test))]
    labels = torch.tensor([example.label for example in test])
    source = ImageSource(load_backbone("dear-mini"), workers=0)

    def timed(name: str, start: float, images: int) -> None:
        figures[f"{name}, images/s"] = images / (time.process_time() - start)
        figures[f"{name}, peak MB"] = peak_megabytes()

    zero = find_method("zero-shot")(source.backbone, find_method("zero-shot").Config())
    start = time.process_time()
    zero.set_classes(data.classes, data.template)
    with torch.no_grad():
        zero.encode_text(zero.classes)
    figures["texts of all classes, s"] = time.process_time() - start
    start = time.process_time()
    outcome_of(next(iter(predict_logits(zero, test, source, "zero-shot").values())), labels, data.classes)
    timed("evaluation", start, len(test))
    kind = find_method("dear")
    start = time.process_time()
    train = TrainConfig(epochs=1, shots=2, workers=0)
    with tempfile.TemporaryDirectory() as out:
        dear = adapt(kind, kind.Config(), data.few_shot(2, 1), train, source, Path(out))
    timed("training, 1 epoch", start, 2 * len(data.classes))
    meter = ComponentMeter(dear.components)
    start = time.process_time()
    predict_logits(dear, test, source, "dear", observer=meter.add)
    meter.scores("test", labels)
    timed("evaluation of dear", start, len(test))
    for name in ("states written", "states read"):
        stored = ImageSource(source.backbone, cache, workers=0)
        start = time.process_time()
        predict_logits(zero, test, stored, name)
        timed(name, start, len(test))
    files = [path for path in cache.rglob("*") if path.is_file()]
    figures["files of states"] = len(files)
    figures["folders of states"] = len({path.parent for path in files})
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--work", nargs=3, metavar=("DATA", "CACHE", "SHARE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        data, cache, share = args.work
        print(json.dumps(work(Path(data), Path(cache), float(share))))
        return
    with tempfile.TemporaryDirectory() as place:
        make(Path(place) / "data", args.images, args.classes)
        columns = []
        for share in (0.25, 1.0):
            command = [sys.executable, __file__, "--work", f"{place}/data", f"{place}/cache-{share}", str(share)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            columns.append(json.loads(done.stdout.splitlines()[-1]))
    table = Table(["", "a quarter", "all", "growth"])
    for name, first in columns[0].items():
        table.add(name, f"{first:.1f}", f"{columns[1][name]:.1f}", f"{columns[1][name] / first:.2f}x")
    print(table.text())


if __name__ == "__main__":
    main()
