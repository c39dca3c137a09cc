"""Weights averaged over the epochs: PromptSRC's published gaussian, and identities in its maths."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dear.methods.registry import recipe_of, with_overrides
from dear.training.config import TrainConfig
from dear.training.loop import WeightAverage, epoch_weights


def bell(epochs: int, peak: float, width: float) -> TrainConfig:
    return TrainConfig(epochs=epochs, average="gaussian", average_peak=peak, average_width=width)


def test_the_published_gaussian() -> None:
    """Peak at 15 of 20 epochs, width one: the values of the authors' formula."""
    found = epoch_weights(TrainConfig.pick(recipe_of("promptsrc")), 20)
    assert [round(share, 3) for share in found[12:17]] == [0.054, 0.242, 0.399, 0.242, 0.054]
    assert max(found[:12] + found[17:]) < 0.005


@given(st.integers(1, 60), st.integers(1, 60), st.floats(0.0, 100.0), st.floats(0.01, 100.0))
def test_weights_sum_to_one(epochs: int, nominal: int, peak: float, width: float) -> None:
    found = epoch_weights(bell(nominal, peak, width), epochs)
    assert len(found) == epochs
    assert math.fsum(found) == pytest.approx(1)
    assert min(found) >= 0


def test_a_narrow_gaussian_is_one_epoch_and_a_wide_one_the_mean() -> None:
    assert epoch_weights(bell(6, 4.0, 0.01), 6) == [0, 0, 0, 1, 0, 0]
    assert epoch_weights(bell(5, 3.0, 1e6), 5) == pytest.approx([0.2] * 5)
    assert epoch_weights(TrainConfig(average="uniform"), 5) == [0.2] * 5


@pytest.mark.parametrize("epochs", [4, 5, 40])
def test_in_a_shorter_or_longer_run_the_gaussian_is_scaled(epochs: int) -> None:
    """Peak at three quarters of the run, width a twentieth of it, whether images or epochs are given."""
    recipe = recipe_of("promptsrc")
    expected = [math.exp(-((epoch / epochs - 0.75) ** 2) / (2 * 0.05**2)) for epoch in range(1, epochs + 1)]
    expected = [share / sum(expected) for share in expected]
    by_images = TrainConfig.pick(with_overrides(recipe, {"images_seen": 1000}))
    by_epochs = TrainConfig.pick(with_overrides(recipe, {"epochs": epochs}))
    for config in (by_images, by_epochs):
        assert epoch_weights(config, epochs) == pytest.approx(expected)


def test_explicit_settings_are_not_scaled() -> None:
    recipe = recipe_of("promptsrc")
    assert with_overrides(recipe, {"epochs": 5, "average_peak": 2.0})["average_peak"] == 2.0
    assert with_overrides(recipe, {"epochs": 0})["average_peak"] == 15.0


@pytest.mark.parametrize("average", ["uniform", "gaussian"])
def test_constant_weights_are_their_own_average_and_others_are_weighted(average: str) -> None:
    config = TrainConfig(epochs=4, average=average, average_peak=3.0, average_width=2.0)
    still, moving = nn.Linear(3, 2).double(), nn.Linear(3, 2).double()
    start = moving.weight.detach().clone()
    averages = {model: WeightAverage(model, config, 4) for model in (still, moving)}
    kept = still.weight.detach().clone()
    for epoch in range(4):
        with torch.no_grad():
            moving.weight.copy_(epoch * start)
        for model, running in averages.items():
            running.add(model, epoch)
    for model, running in averages.items():
        running.put_into(model)
    torch.testing.assert_close(still.weight, kept)
    place = sum(epoch * share for epoch, share in enumerate(epoch_weights(config, 4)))
    torch.testing.assert_close(moving.weight, place * start)
