"""A gallery in memory ranks by cosine, after the mean is taken off where an encoder asks for it."""

import numpy as np
import pytest
import torch
from PIL import Image

from dear.gallery import MemoryGallery


class Plain:
    """A picture of one color, and an encoder that sees nothing but its mean color."""

    def __init__(self, color: tuple[int, int, int]) -> None:
        self.color = color

    def open(self) -> Image.Image:
        return Image.new("RGB", (4, 4), self.color)


class MeanColor:
    components, centred = ("cls", "color"), ("color",)

    def preprocess(self, picture: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.asarray(picture, np.float32) / 255).permute(2, 0, 1)

    def encode_image(self, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
        means = pixels.mean((2, 3))
        return {"cls": means, "color": means}


@pytest.mark.parametrize("by", ["cls", "color"])
def test_it_ranks_by_cosine(by: str) -> None:
    colors = [tuple(c) for c in np.random.default_rng(0).integers(0, 256, (100, 3)).tolist()]
    gallery = MemoryGallery(MeanColor(), {str(i): Plain(c) for i, c in enumerate(colors)})
    query = (200, 40, 90)
    mean = np.mean(colors, axis=0) if by == "color" else np.zeros(3)

    def cosine(a, b) -> float:
        a, b = np.asarray(a) - mean, np.asarray(b) - mean
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    expected = sorted(range(100), key=lambda i: -cosine(query, colors[i]))[:7]
    hits = gallery.search(Image.new("RGB", (4, 4), query), by, 7)
    assert [hit.path for hit in hits] == [str(i) for i in expected]
    assert hits[0].score == pytest.approx(cosine(query, colors[expected[0]]), abs=1e-3)
    assert gallery.image(hits[0].path).getpixel((0, 0)) == colors[expected[0]]
