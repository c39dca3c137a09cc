"""Evaluation images are decoded once, are the same values the second time, and never take more than their share."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.functional import to_tensor

from dear.core.errors import DearError
from dear.data import loading
from dear.data.dataset import Example, ImageFile
from dear.data.loading import evaluation_batches


@pytest.fixture
def examples(tmp_path: Path, monkeypatch) -> list[Example]:
    monkeypatch.setattr(loading, "_cache", {})
    for i in range(5):
        Image.fromarray(np.random.default_rng(i).integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(
            tmp_path / f"{i}.png"
        )
    return [Example(ImageFile(tmp_path / f"{i}.png"), i % 2) for i in range(5)]


def batches(examples, transform=to_tensor, batch: int = 2):
    return list(evaluation_batches(examples, transform, "test", batch))


def same(one, other) -> bool:
    return all(torch.equal(a, b) and torch.equal(x, y) for (a, x), (b, y) in zip(one, other, strict=True))


def test_the_second_time_nothing_is_decoded(examples) -> None:
    first = batches(examples)
    assert torch.equal(torch.cat([p for p, _ in first])[3], to_tensor(examples[3].picture.open()))
    assert torch.cat([labels for _, labels in first]).tolist() == [0, 1, 0, 1, 0]
    for example in examples:
        example.picture.path.unlink()
    assert same(batches(examples), first)
    assert not any(pixels.is_shared() for pixels, _ in batches(examples))
    with pytest.raises(DearError, match="cannot be read"):
        batches(examples, batch=3)
    with pytest.raises(DearError, match="cannot be read"):
        batches(examples[:4])


def half(image: Image.Image) -> torch.Tensor:
    return to_tensor(image) / 2


def test_another_transform_is_another_picture(examples) -> None:
    assert torch.equal(batches(examples, half)[0][0], batches(examples)[0][0] / 2)


def test_what_is_too_large_is_not_cached_and_the_oldest_goes_first(examples, monkeypatch) -> None:
    size = 3 * 8 * 8 * 4
    monkeypatch.setattr(loading, "_CACHE_LIMIT", 4 * size)
    assert len(batches(examples)) == 3
    assert loading._cache == {}
    one, two, three = examples[:2], examples[2:4], examples[4:]
    for part in (one, two, one, three):
        batches(part)
    assert [key[0] for key in loading._cache] == [tuple(one), tuple(three)]


def test_a_pass_that_was_left_early_is_not_taken_for_a_whole_one(examples) -> None:
    next(iter(evaluation_batches(examples, to_tensor, "test", 2)))
    assert loading._cache == {}
    assert len(batches(examples)) == 3
