"""Pictures of noise, for tests that need some pictures of some classes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image


def noisy_folders(root: Path, names: Sequence[str], each: int) -> Path:
    """A folder of pictures for each class, `root/NAME/0.png`, ...; the first three classes differ in color."""
    rng = np.random.default_rng(0)
    for number, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for i in range(each):
            pixels = rng.integers(0, 120, (32, 32, 3), dtype=np.uint8)
            pixels[..., number % 3] += 100
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return root
