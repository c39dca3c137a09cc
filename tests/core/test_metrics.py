"""Metrics against counting by hand."""

import math

import pytest
import torch

from dear.core.metrics import (
    calibration_error,
    confusions,
    harmonic_mean,
    reliability,
    wilson_interval,
)


def test_harmonic_mean_recomputes_what_the_paper_misprints() -> None:
    assert round(harmonic_mean(99.0, 95.8), 2) == 97.37  # Caltech101: 96.95 is printed
    assert harmonic_mean(0.0, 0.0) == 0.0


def test_no_mistake_is_no_confusion() -> None:
    assert confusions(torch.tensor([1, 2]), torch.tensor([1, 2])) == []


def test_calibration_error_is_the_gap_of_each_bin() -> None:
    """Ten images at 0.9 of which five are right: 40 points; ten sure and right: none. Half of the images each: 20."""
    sure, unsure = torch.tensor([1.0, 0.0]), torch.tensor([0.9, 0.1])
    logits = torch.stack([sure] * 10 + [unsure] * 10).clamp(min=1e-9).log()
    labels = torch.tensor([0] * 10 + [0] * 5 + [1] * 5)
    assert math.isclose(calibration_error(reliability(logits, labels)), 20.0, abs_tol=1e-3)


def test_an_interval_contains_the_shares_that_a_score_test_does_not_reject() -> None:
    """Its ends are the shares p with |right / images - p| = 1.96 sqrt(p (1 - p) / images)."""
    for right, images in ((0, 3), (2, 2), (29, 30), (7, 10), (250, 1000)):
        low, high = (end / 100 for end in wilson_interval(right, images))
        assert 0 <= low <= right / images <= high <= 1
        for end in (low, high):
            if 0 < end < 1:
                deviation = abs(right / images - end)
                assert deviation == pytest.approx(1.96 * (end * (1 - end) / images) ** 0.5)
    assert wilson_interval(29, 30) == pytest.approx((83.3, 99.4), abs=0.1)
    assert wilson_interval(2, 2)[0] < 40
