"""TEXTSPAN from second moments against the published form, in one run, for one head of ViT-B/16's size.

    python benchmarks/textspan.py [--rounds 3]

The contributions are synthetic: rank 64 with a falling spectrum and a mean, plus a little noise, in 512 dims.
Both forms start from the same [5000, 512] contributions; accumulating the moments is part of the time.
The ratio is between medians of interleaved rounds, on one thread.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "heads"))
from test_textspan import published_textspan  # the naive form is in the tests only

from dear.heads.textspan import RunningMoments, textspan

IMAGES, DIM, RANK, PHRASES, PICKS, BATCH = 5000, 512, 64, 3500, 20, 250


def synthetic_head(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Contributions [images, dim] and unit texts [phrases, dim], in float32 as from a backbone."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    factors = normal(IMAGES, RANK) * torch.exp(-torch.arange(RANK) / 20)
    data = 0.005 * factors @ normal(RANK, DIM) / RANK**0.5 + 0.005 * normal(DIM) + 1e-6 * normal(IMAGES, DIM)
    return data, torch.nn.functional.normalize(normal(PHRASES, DIM) + normal(DIM), dim=-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)  # on a busy machine, two threads mostly wait for each other
    published_s, accumulate_s, pick_s, same = [], [], [], []
    for seed in range(rounds):
        data, texts = synthetic_head(seed)
        start = time.perf_counter()
        expected, _, _ = published_textspan(data, texts, RANK, PICKS, torch.float32, tie=0.0)
        published_s.append(time.perf_counter() - start)

        start = time.perf_counter()
        moments = RunningMoments([12], 1, DIM)
        for batch in data.split(BATCH):
            moments.update(batch[:, None, None])
        accumulate_s.append(time.perf_counter() - start)
        start = time.perf_counter()
        result = textspan(moments.of(12, 0), texts, RANK, PICKS)
        pick_s.append(time.perf_counter() - start)
        same.append(result.indices == expected)
    ours = [a + p for a, p in zip(accumulate_s, pick_s, strict=True)]
    print(f"{IMAGES} images x {DIM} dims x {PHRASES} phrases x {PICKS} picks, 1 thread")
    print(f"published form   {statistics.median(published_s):8.3f} s")
    print(f"on moments       {statistics.median(ours):8.3f} s")
    print(f"  accumulate     {statistics.median(accumulate_s):8.3f} s")
    print(f"  pick           {statistics.median(pick_s):8.3f} s")
    print(f"ratio            {statistics.median(published_s) / statistics.median(ours):8.1f} x")
    print(f"picks identical  {sum(same)} of {rounds} heads")
    sys.exit(0 if all(same) else 1)


if __name__ == "__main__":
    main()
