"""Pixels made quickly against those of OpenCLIP's own transform."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.nn import functional as F
from torchvision import transforms

from dear.data.dataset import ImageFile
from dear.data.opening import open_picture
from dear.data.quick import FileReader


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """Coarse shapes and some noise, of which reduced decoding must make a mean."""
    rng = np.random.default_rng(seed)
    shapes = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((width, height))
    noisy = np.asarray(shapes) + rng.normal(0, 8, (height, width, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def levels(pixels: torch.Tensor) -> torch.Tensor:
    """Of 255, as `tiny` was normalised."""
    return (pixels * 0.25 + 0.5) * 255


@settings(max_examples=40)
@given(st.integers(1, 200), st.integers(1, 200), st.integers(0, 9))
def test_no_pixel_is_off_by_more_than_two_levels(width: int, height: int, seed: int) -> None:
    usual = transforms.Compose(
        [
            transforms.Resize(32, transforms.InterpolationMode.BICUBIC),
            transforms.CenterCrop(32),
            transforms.ToTensor(),
            transforms.Normalize((0.5,) * 3, (0.25,) * 3),
        ]
    )
    picture = photo(width, height, seed)
    exact, quick = usual(picture), FileReader(usual).transform(picture)
    assert exact.shape == quick.shape == (3, 32, 32)
    off = (levels(quick) - levels(exact)).abs()
    assert off.max() < 2.01
    assert off.mean() < 0.5


def test_it_is_the_transform_itself_where_exactness_is_asked_for_or_it_is_another(tiny) -> None:
    backbone = tiny()
    assert FileReader(backbone.preprocess, exact=True).transform is backbone.preprocess
    assert FileReader(backbone.preprocess).transform is not backbone.preprocess
    other = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])
    assert FileReader(other).transform is other
    assert FileReader(other).side is None


@pytest.mark.parametrize(
    ("size", "decoded"),
    [
        ((127, 200), (127, 200)),
        ((128, 201), (64, 101)),
        ((600, 255), (300, 128)),
        ((600, 256), (150, 64)),
        ((520, 1030), (65, 129)),
    ],
)
def test_a_reduced_jpeg_has_twice_the_pixels_that_are_needed(size, decoded, tmp_path: Path) -> None:
    photo(*size).save(tmp_path / "a.jpg")
    assert open_picture(tmp_path / "a.jpg").size == ImageFile(tmp_path / "a.jpg").open().size == size
    assert open_picture(tmp_path / "a.jpg", 32).size == ImageFile(tmp_path / "a.jpg", 32).open().size == decoded
    photo(*size).save(tmp_path / "a.png")
    assert open_picture(tmp_path / "a.png", 32).size == size


def test_a_reduced_jpeg_is_upright_and_looks_the_same(tiny, tmp_path: Path) -> None:
    backbone = tiny()
    turned = Image.Exif()
    turned[0x0112] = 6
    photo(900, 600).save(tmp_path / "a.jpg", exif=turned, quality=90)
    assert open_picture(tmp_path / "a.jpg", 32).size == (75, 113)
    exact = backbone.preprocess(open_picture(tmp_path / "a.jpg"))
    quick = FileReader(backbone.preprocess).read(tmp_path / "a.jpg")
    assert (levels(quick) - levels(exact)).abs().mean() < 2
    assert F.cosine_similarity(quick.flatten(), exact.flatten(), dim=0) > 0.999


def test_damage_is_found_however_small_it_is_decoded(tmp_path: Path) -> None:
    from dear.core.errors import DearError

    photo(900, 600).save(tmp_path / "a.jpg")
    whole = (tmp_path / "a.jpg").read_bytes()
    (tmp_path / "a.jpg").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DearError, match="cannot be read"):
        open_picture(tmp_path / "a.jpg", 32)


def test_training_takes_reduced_photos_unless_exactness_is_asked_for(tiny, tmp_path: Path) -> None:
    from dear.data.dataset import Example
    from dear.methods.registry import find_method
    from dear.training.config import TrainConfig
    from dear.training.images import ImageSource

    photo(900, 600).save(tmp_path / "a.jpg")
    backbone, example = tiny(), Example(ImageFile(tmp_path / "a.jpg"), 0)
    model, train = find_method("coop")(backbone, find_method("coop").Config()), TrainConfig(shots=1)
    taken = {
        exact: ImageSource(backbone, workers=0, exact=exact)
        .training([example], model, train)
        .loader.dataset.examples[0]
        for exact in (True, False)
    }
    assert taken[True] == example
    assert taken[False] == replace(example, picture=ImageFile(tmp_path / "a.jpg", 32))
