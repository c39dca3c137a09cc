"""What finding head roles costs: time against plain encoding, and memory against the number of images.

    python benchmarks/roles.py [--rounds 5] [--batch 8]

Time: ViT-B/16 with random weights, the same pixels, one thread; encoding alternates with the analysis (contributions of
the heads in layers 9-12, and their moments). It is CPU time, so that other programs don't count, and the ratio is
between medians. Memory: the whole analysis with a tiny backbone, at 2,000 and 20,000 images, each in its own process.
"""

import argparse
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from dear.clip import load_backbone
from dear.heads.by_phrases import _HeadStatistics, roles_by_phrases
from dear.heads.concepts import WORLD_PHRASES, load_phrases
from dear.heads.contributions import HeadContributions
from dear.heads.pictures import PictureList

SIZES = (2_000, 20_000)


@dataclass(frozen=True)
class Noise:
    """A picture without a file."""

    seed: int

    def open(self) -> Image.Image:
        return Image.fromarray(np.random.default_rng(self.seed).integers(0, 256, (32, 32, 3), dtype=np.uint8))


def noise(count: int) -> PictureList:
    return PictureList("noise", [Noise(i) for i in range(count)], [str(i) for i in range(count)])


@torch.no_grad()
def compare_time(rounds: int, batch: int) -> None:
    backbone = load_backbone("ViT-B-16", random_weights=True)
    pixels = torch.randn(batch, 3, 224, 224)
    contributions = HeadContributions(backbone, 9)
    head_statistics = _HeadStatistics(contributions, noise(batch), "")
    encode_s, analyse_s = [], []
    for number in range(rounds + 1):
        start = time.process_time()
        backbone.image.encode(pixels)
        middle = time.process_time()
        head_statistics.add(list(range(batch)), contributions.coordinates_and_outputs(pixels)[0])
        end = time.process_time()
        if number:  # the first round only warms up
            encode_s.append(middle - start)
            analyse_s.append(end - middle)
    encode, analysis = statistics.median(encode_s), statistics.median(analyse_s)
    print(f"ViT-B/16, {batch} images per batch, {rounds} rounds, 1 thread")
    print(f"encode   {1000 * encode / batch:8.1f} ms per image")
    print(f"analyse  {1000 * analysis / batch:8.1f} ms per image")
    print(f"ratio    {analysis / encode:8.3f} x (aim: at most 1.15)")


def peak_so_far() -> float:
    """Peak memory of this process in MB. Not getrusage: in a child it starts at the parent's memory at the fork."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


def measure_memory(count: int) -> None:
    """Prints the peak before and after the whole analysis of `count` images."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from conftest import tiny_backbone

    backbone = tiny_backbone()
    before = peak_so_far()
    roles_by_phrases(backbone, noise(count), load_phrases(WORLD_PHRASES), first_layer=3)
    print(before, peak_so_far())


def compare_memory() -> None:
    peaks = []
    for count in SIZES:
        command = [sys.executable, __file__, "--measure-memory", str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        before, peak = map(float, done.stdout.split()[-2:])
        peaks.append(peak)
        print(f"peak at {count:6,} images {peak:8.1f} MB, of which {before:.1f} before the analysis")
    print(f"difference {100 * (peaks[1] / peaks[0] - 1):+.2f}% (aim: below 5%)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--measure-memory", type=int, metavar="IMAGES", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)  # on a busy machine, two threads mostly wait for each other
    if args.measure_memory:
        measure_memory(args.measure_memory)
    else:
        compare_time(args.rounds, args.batch)
        compare_memory()


if __name__ == "__main__":
    main()
