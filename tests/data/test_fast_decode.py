"""Pixels of fast decoding against those of OpenCLIP's own transform."""

import json
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

import dear
from dear.cli import main
from dear.core.errors import DearError
from dear.data.dataset import Example, ImageFile
from dear.data.decode import Decoder, open_picture
from dear.gallery import Gallery
from dear.methods.registry import find_method
from dear.training.adapter import save_adapter
from dear.training.config import TrainConfig
from dear.training.images import ImageSource


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """Coarse shapes and some noise, of which reduced decoding must make a mean."""
    rng = np.random.default_rng(seed)
    shapes = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((width, height))
    noisy = np.asarray(shapes) + rng.normal(0, 8, (height, width, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def levels(pixels: torch.Tensor) -> torch.Tensor:
    """Levels from 0 to 255 of pixels that were normalised as `tiny` does it."""
    return (pixels * 0.25 + 0.5) * 255


@settings(max_examples=40)
@given(st.integers(1, 200), st.integers(1, 200), st.integers(0, 9))
def test_no_pixel_is_off_by_more_than_two_levels(width: int, height: int, seed: int) -> None:
    resize, crop = transforms.Resize(32, transforms.InterpolationMode.BICUBIC), transforms.CenterCrop(32)
    usual = transforms.Compose([resize, crop, transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.25,) * 3)])
    picture = photo(width, height, seed)
    exact, fast = usual(picture), Decoder(usual, fast=True)(picture)
    assert exact.shape == fast.shape == (3, 32, 32)
    off = (levels(fast) - levels(exact)).abs()
    assert off.max() < 2.01
    assert off.mean() < 0.5


def test_the_default_is_exact_and_another_transform_has_no_fast_form(tiny) -> None:
    backbone = tiny()
    assert Decoder(backbone.preprocess).transform is backbone.preprocess
    assert Decoder(backbone.preprocess).side is None
    assert Decoder(backbone.preprocess, fast=True).transform is not backbone.preprocess
    other = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])
    assert Decoder(other, fast=True).transform is other
    assert Decoder(other, fast=True).side is None


def test_every_way_to_predict_and_index_decodes_exactly_unless_told(model_folder, role_file, tmp_path, capsys) -> None:
    """A large photo, for which fast decoding gives other features."""
    pytest.importorskip("lancedb")
    photo(900, 600).save(tmp_path / "a.jpg", quality=90)
    model = dear.create(f"local-dir:{model_folder}", classes=["one", "two"], roles=str(role_file), first_layer=2)
    save_adapter(tmp_path / "run", "dear", model.model, model.template)
    command = ["predict", str(tmp_path / "run"), str(tmp_path / "a.jpg"), "--json", "--device", "cpu"]
    expected = json.dumps(dear.load(tmp_path / "run", device="cpu").predict(tmp_path / "a.jpg").to_json())
    for flags, same in (([], True), (["--fast-decode"], False)):
        assert main([*command, *flags]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert ({"path": answer["path"], **json.loads(expected)} == answer) is same
        out = str(tmp_path / f"gallery{same}")
        assert main(["index", *command[1:3], "--device", "cpu", "--out", out, *flags]) == 0
        stored, exact = Gallery.open(out).vectors("cls")[0], model.features([tmp_path / "a.jpg"])["cls"][0].numpy()
        assert (float(np.abs(stored - exact).max()) < 2**-10) is same
        capsys.readouterr()


@pytest.mark.parametrize(
    ("size", "decoded"),
    [((127, 200), (127, 200)), ((128, 201), (64, 101)), ((600, 255), (300, 128)), ((600, 256), (150, 64)),
     ((520, 1030), (65, 129))],
)  # fmt: skip
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
    fast = Decoder(backbone.preprocess, fast=True)(tmp_path / "a.jpg")
    assert (levels(fast) - levels(exact)).abs().mean() < 2
    assert F.cosine_similarity(fast.flatten(), exact.flatten(), dim=0) > 0.999


def test_damage_is_found_however_small_it_is_decoded(tmp_path: Path) -> None:
    photo(900, 600).save(tmp_path / "a.jpg")
    whole = (tmp_path / "a.jpg").read_bytes()
    (tmp_path / "a.jpg").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DearError, match="cannot be read"):
        open_picture(tmp_path / "a.jpg", 32)


def test_training_decodes_photos_at_a_reduced_size_if_it_may(tiny, tmp_path: Path) -> None:
    photo(900, 600).save(tmp_path / "a.jpg")
    backbone, example = tiny(), Example(ImageFile(tmp_path / "a.jpg"), 0)
    model, train = find_method("coop")(backbone, find_method("coop").Config()), TrainConfig(shots=1)
    taken = {
        fast: ImageSource(backbone, workers=0, fast_decode=fast).training([example], model, train, 1).examples[0]
        for fast in (True, False)
    }
    assert taken[False] == example
    assert taken[True] == replace(example, picture=ImageFile(tmp_path / "a.jpg", 32))
