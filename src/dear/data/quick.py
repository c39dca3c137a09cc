"""A quicker way from a picture to pixels, where the last bit does not matter.

Two things make it quick: a JPEG far larger than the input is decoded at a half, a quarter or an eighth of its size, and
pictures are scaled by PyTorch's kernels for bytes, which differ from Pillow's by one of 255 levels here and there.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Normalize, Resize
from torchvision.transforms import functional as image_functions

from dear.data.opening import open_picture


class FileReader:
    """Pixels [3, height, width] of image files, and of pictures that are open already, for one `transform`.

    `exact`: as the transform makes them, to the last bit; so are those of a transform that is not CLIP's usual one.
    """

    def __init__(self, transform: Callable[[Image.Image], Tensor], exact: bool = False) -> None:
        usual = None if exact else _usual(transform)
        self.side = usual.size if usual else None  # the shorter side that a picture is scaled to
        self.transform = usual or transform

    def read(self, path: str | Path) -> Tensor:
        return self.transform(open_picture(path, self.side))


class _Quick:
    """The shorter side to `size` by bicubic, its centre, normalised: what `usual` does, which enlarges small ones."""

    def __init__(self, size: int, normalize: Normalize, usual: Compose) -> None:
        self.size, self._usual = size, usual
        mean, std = (torch.tensor(values)[:, None, None] for values in (normalize.mean, normalize.std))
        self._scale, self._shift = 1 / (255 * std), -mean / std  # [3, 1, 1]

    def __call__(self, picture: Image.Image) -> Tensor:
        shorter, longer = sorted(picture.size)
        if shorter <= self.size:
            return self._usual(picture)
        long = int(self.size * longer / shorter)
        scaled = (self.size, long) if picture.width > picture.height else (long, self.size)  # height, width
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None]  # not contiguous: the fast kernels' layout
        pixels = F.interpolate(pixels, scaled, mode="bicubic", antialias=True)[0]
        pixels = image_functions.center_crop(pixels, [self.size])
        return pixels.contiguous().float().mul_(self._scale).add_(self._shift)


def _usual(transform: Any) -> _Quick | None:
    """The same as OpenCLIP's usual transform, if it is that."""
    parts = transform.transforms if isinstance(transform, Compose) else []
    match parts:
        case [Resize(size=int(size)) as resize, CenterCrop() as crop, *_, Normalize() as normalize]:
            usual = resize.interpolation is InterpolationMode.BICUBIC and resize.max_size is None
            return _Quick(size, normalize, transform) if usual and tuple(crop.size) == (size, size) else None
    return None
