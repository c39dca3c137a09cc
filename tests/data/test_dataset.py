"""Few-shot draws and class halves against CoOp's rule; folds; batches of pixels for evaluation."""

import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms.functional import to_tensor

from dear.core.errors import DearError
from dear.data import loading
from dear.data.check import picture_hash
from dear.data.dataset import Dataset, Example, ImageFile
from dear.data.loading import evaluation_batches
from dear.data.splits import stratified_folds

from .conftest import picture


def examples(labels: list[int], split: str) -> tuple[Example, ...]:
    return tuple(Example(ImageFile(Path(f"{split}/{i}.jpg")), label) for i, label in enumerate(labels))


def toy(classes: int, train: list[int], val: list[int]) -> Dataset:
    names = tuple(f"thing {i}" for i in range(classes))
    return Dataset(
        "toy", names, "a photo of a {}.", examples(train, "train"), examples(val, "val"), examples(val, "test")
    )


def coop_draw(dataset: Dataset, shots: int, seed: int) -> tuple[list[Example], list[Example]]:
    """The published rule: the global generator is seeded once, train is drawn before val."""

    def draw(data: tuple[Example, ...], count: int) -> list[Example]:
        items_of = defaultdict(list)
        for item in data:
            items_of[item.label].append(item)
        chosen = []
        for items in items_of.values():
            chosen.extend(random.sample(items, count) if len(items) >= count else items)
        return chosen

    state = random.getstate()
    try:
        random.seed(seed)
        return draw(dataset.train, shots), draw(dataset.val, min(shots, 4))
    finally:
        random.setstate(state)


labels = st.lists(st.integers(0, 4), max_size=60)


@given(labels, labels, st.sampled_from([1, 2, 4, 8, 16]), st.integers(0, 2**32))
def test_few_shot_is_coops_draw(train: list[int], val: list[int], shots: int, seed: int) -> None:
    dataset = toy(5, train, val)
    drawn = dataset.few_shot(shots, seed)
    assert (list(drawn.train), list(drawn.val)) == coop_draw(dataset, shots, seed)
    assert replace(drawn, train=dataset.train, val=dataset.val) == dataset  # nothing else changes


def test_few_shot_depends_on_the_seed_alone() -> None:
    dataset = toy(3, [2, 0, 1] * 20, [1] * 9)
    assert dataset.few_shot(4, 1) == dataset.few_shot(4, 1)
    assert dataset.few_shot(4, 1).train != dataset.few_shot(4, 2).train
    before = random.getstate()
    dataset.few_shot(4, 3)
    assert random.getstate() == before  # the global generator is left alone


@pytest.mark.parametrize(("classes", "of_base"), [(2, 1), (3, 2), (10, 5), (47, 24)])
def test_the_first_half_is_base_and_the_larger_one(classes: int, of_base: int) -> None:
    every = list(range(classes))
    dataset = toy(classes, every * 2, every[::-1])
    base, novel = dataset.base(), dataset.novel()
    assert base.classes == dataset.classes[:of_base]
    assert novel.classes == dataset.classes[of_base:]
    for split in ("train", "val", "test"):
        whole, low, high = (getattr(d, split) for d in (dataset, base, novel))
        assert low == tuple(e for e in whole if e.label < of_base)
        assert high == tuple(Example(e.picture, e.label - of_base) for e in whole if e.label >= of_base)
    assert novel.prompts == [f"a photo of a thing {i}." for i in range(of_base, classes)]


@pytest.mark.parametrize("labels", [[0, 1, 2] * 5, [1] * 7 + [0] * 4, [3], []])
def test_folds_are_the_same_whatever_lies_between_the_images_of_a_class(labels: list[int]) -> None:
    folds = stratified_folds(labels, 3)
    assert len(folds) == len(labels)
    for label in set(labels):
        own = [fold for fold, of in zip(folds, labels, strict=True) if of == label]
        assert own == stratified_folds([label] * len(own), 3)
        assert sorted(own) == sorted(number % 3 for number in range(len(own)))


# --- decoded once, with the same values the second time, and never more than their share in memory -----------------


@pytest.fixture
def files(tmp_path: Path, monkeypatch) -> list[Example]:
    monkeypatch.setattr(loading, "_cache", {})
    return [Example(ImageFile(picture(tmp_path / f"{i}.png", 500 * i)), i % 2) for i in range(5)]


def batches(files, transform=to_tensor, batch: int = 2):
    return list(evaluation_batches(files, transform, "test", batch))


def same(one, other) -> bool:
    return all(torch.equal(a, b) and torch.equal(x, y) for (a, x), (b, y) in zip(one, other, strict=True))


def test_the_second_time_nothing_is_decoded(files, monkeypatch) -> None:
    first = batches(files)
    assert torch.equal(torch.cat([p for p, _ in first])[3], to_tensor(files[3].picture.open()))
    assert torch.cat([labels for _, labels in first]).tolist() == [0, 1, 0, 1, 0]
    decode = ImageFile.open
    with monkeypatch.context() as patch:
        patch.setattr(ImageFile, "open", lambda self: decode(ImageFile(self.path / "nothing")))
        assert same(batches(files), first)
        assert not any(pixels.is_shared() for pixels, _ in batches(files))
        with pytest.raises(DearError, match="cannot be read"):
            batches(files, batch=3)
        with pytest.raises(DearError, match="cannot be read"):
            batches(files[:4])
    Image.new("RGB", (8, 6), "red").save(files[3].picture.path)
    assert not same(batches(files), first), "a replaced file is another picture"


def half(image: Image.Image) -> torch.Tensor:
    return to_tensor(image) / 2


def test_another_transform_is_another_picture(files) -> None:
    assert torch.equal(batches(files, half)[0][0], batches(files)[0][0] / 2)


def test_what_is_too_large_is_not_cached_and_the_oldest_goes_first(files, monkeypatch) -> None:
    size = 3 * 8 * 6 * 4
    monkeypatch.setattr(loading, "_CACHE_LIMIT", 4 * size)
    assert len(batches(files)) == 3
    assert loading._cache == {}
    one, two, three = files[:2], files[2:4], files[4:]
    for part in (one, two, one, three):
        batches(part)
    kept = [[digest for digest, _ in key[0]] for key in loading._cache]
    assert kept == [[picture_hash(example.picture) for example in part] for part in (one, three)]


def test_a_pass_that_was_left_early_is_not_taken_for_a_whole_one(files) -> None:
    next(iter(evaluation_batches(files, to_tensor, "test", 2)))
    assert loading._cache == {}
    assert len(batches(files)) == 3
