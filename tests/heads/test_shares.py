"""Omega squared from streamed sums equals the textbook's loops; chance gives nothing, a planted attribute is found."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageCms

from dear.heads.shares import PICTURE_GROUPS, AttributeMoments, label_numbers, mean_colors


def textbook(x: np.ndarray, labels: np.ndarray) -> float:
    """Omega squared of one head, x [pictures, width], by the formula's own loops."""
    mean = x.mean(0)
    values = sorted(set(labels.tolist()))
    between = within = 0.0
    for value in values:
        group = x[labels == value]
        between += len(group) * ((group.mean(0) - mean) ** 2).sum()
        within += ((group - group.mean(0)) ** 2).sum()
    noise = within / (len(x) - len(values))
    return max(0.0, (between - (len(values) - 1) * noise) / (between + within + noise))


def textbook_regression(x: np.ndarray, z: np.ndarray, sets: np.ndarray) -> float:
    """The same for numbers z [pictures, 2] instead of labels, with a mean of its own for each set of pictures."""
    apart = np.eye(sets.max() + 1)[sets]

    def left(columns: np.ndarray) -> float:
        return ((x - columns @ np.linalg.lstsq(columns, x, rcond=None)[0]) ** 2).sum()

    total, unexplained = left(apart), left(np.hstack([apart, z]))
    noise = unexplained / (len(x) - apart.shape[1] - z.shape[1])
    return max(0.0, (total - unexplained - z.shape[1] * noise) / (total + noise))


def moments(z: torch.Tensor, x: torch.Tensor, nuisance: int = 1) -> AttributeMoments:
    sums = AttributeMoments.empty(z.shape[1], nuisance, *x.shape[1:])
    sums.add(z, x, torch.arange(len(x)) % PICTURE_GROUPS)
    return sums


@given(
    st.integers(0, 10_000), st.integers(2, 6), st.integers(12, 60), st.sampled_from([0.0, 0.3, 2.0]),
    st.sampled_from([0.0, 50.0]),
)  # fmt: skip
def test_labels_as_in_the_textbook(seed, classes, pictures, effect, offset) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (pictures,), generator=generator)
    centers = effect * torch.randn(classes, 2, 3, 4, generator=generator)
    x = offset + centers[labels] + torch.randn(pictures, 2, 3, 4, generator=generator)
    share = moments(label_numbers(labels, classes), x).share()
    for layer in range(2):
        for head in range(3):
            expected = textbook(x[:, layer, head].double().numpy(), labels.numpy())
            assert share[layer, head].item() == pytest.approx(expected, abs=1e-9)


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.02, 0.2]))
def test_colors_as_in_the_textbook_with_sets_apart(seed, effect) -> None:
    rng = np.random.default_rng(seed)
    sets = rng.integers(0, 3, 70)
    z = rng.normal(size=(70, 2)) * 20 + 30 * sets[:, None]
    x = effect * np.einsum("nz,zc->nc", z, rng.normal(size=(2, 5))) + rng.normal(size=(70, 5)) + 9 * sets[:, None]
    numbers = torch.tensor(np.hstack([np.eye(3)[sets], z]))
    share = moments(numbers, torch.tensor(x)[:, None, None], 3).share()
    assert share.item() == pytest.approx(textbook_regression(x, z, sets), abs=1e-9)


@given(st.integers(0, 10_000), st.integers(1, 49))
def test_two_parts_add_up_to_the_whole(seed, cut) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (50,), generator=generator)
    # whole numbers, so that sums are exact whatever their order
    x, z = torch.randint(-99, 99, (50, 2, 2, 3), generator=generator), label_numbers(labels, 4)
    whole = moments(z, x)
    both = moments(z[:cut], x[:cut])
    both.add(z[cut:], x[cut:], torch.arange(cut, 50) % PICTURE_GROUPS)
    assert both.count == whole.count == 50
    for name in ("outer", "cross", "square"):
        assert torch.equal(getattr(both, name), getattr(whole, name))
    # groups can be looked at alone: what is in them is what their pictures give
    first = torch.arange(50) % PICTURE_GROUPS < 5
    assert torch.allclose(whole.share(range(5)), moments(z[first], x[first]).share(), atol=1e-12)


def test_permuted_labels_explain_nothing_and_a_planted_attribute_is_found() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 8
    x = torch.randn(400, 1, 6, 10, generator=generator)
    x[:, 0, 2] += 1.5 * torch.randn(8, 10, generator=generator)[labels]
    share = moments(label_numbers(labels, 8), x).share()[0]
    assert share.argmax() == 2
    assert share[2] > 0.5
    assert share[[0, 1, 3, 4, 5]].max() < 0.01
    shuffled = labels[torch.randperm(400, generator=generator)]
    assert moments(label_numbers(shuffled, 8), x).share().max() < 0.01


def test_what_cannot_be_told_is_zero() -> None:
    labels, x = torch.arange(20) % 2, torch.randn(20, 1, 1, 3)
    constant = torch.full_like(x, 7.1)
    assert moments(label_numbers(labels, 2), constant).share().item() == 0  # the head always writes the same
    assert moments(label_numbers(labels * 0, 2), x).share().item() == 0  # one label only
    assert moments(label_numbers(torch.arange(20), 20), x).share().item() == 0  # as many labels as pictures
    grey = torch.tensor([[1.0, 0.0, 0.0]]).expand(20, 3)
    assert moments(grey, x).share().item() == 0  # no picture has a color


def test_mean_colors_are_cielab() -> None:
    # published values for D65: red, green, blue, white, black
    rgb = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1], [0, 0, 0]])
    lab = torch.tensor([[53.24, 80.09, 67.20], [87.73, -86.18, 83.18], [32.30, 79.19, -107.86], [100, 0, 0], [0, 0, 0]])
    assert torch.allclose(mean_colors(rgb[:, :, None, None].expand(-1, -1, 2, 3)), lab, atol=0.05)
    # the mean is taken in CIELAB; a color profile's own conversion (another white, whole numbers) is near
    noise = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    profiles = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
    to_lab = ImageCms.buildTransform(*profiles, "RGB", "LAB")
    channels = np.asarray(ImageCms.applyTransform(Image.fromarray(noise), to_lab)).reshape(-1, 3)
    expected = [channels[:, 0].mean() * 100 / 255, *channels[:, 1:].astype(np.int8).mean(0)]
    mean_lab = mean_colors(torch.tensor(noise / 255.0).permute(2, 0, 1)[None])[0]
    assert mean_lab.tolist() == pytest.approx(expected, abs=2.5)
