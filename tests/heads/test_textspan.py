"""TEXTSPAN on moments must pick what the published algorithm picks from all the raw contributions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dear.core.errors import DearError
from dear.heads.textspan import RunningMoments, TextSpan, textspan


def published_textspan(data, texts, rank, picks, dtype=torch.float64, tie=1e-9):
    """The published algorithm on raw data [n, d], texts [p, d]: picks, their std, their share of variance."""
    data, texts = torch.as_tensor(data, dtype=dtype), torch.as_tensor(texts, dtype=dtype)
    _, _, right = torch.linalg.svd(data, full_matrices=False)
    right = right[:rank]
    texts = texts @ right.T @ torch.linalg.inv(right @ right.T) @ right
    data = data - data.mean(0)
    total = data.square().sum()
    chosen, stds, shares = [], [], []
    for _ in range(picks):
        std = (data @ texts.T).std(0)
        if not std.max() > 0:
            break  # the published code would go on with 0 / 0
        best = int((std >= std.max() * (1 - tie)).nonzero()[0])  # tie = 0: the plain argmax, as published
        text = texts[best]
        along = data @ text / (text @ text)
        chosen.append(best)
        stds.append(float(std[best]))
        shares.append(float(along.square().sum() * (text @ text) / total))
        data = data - along[:, None] * text
        texts = texts - (texts @ text / (text @ text))[:, None] * text
    return chosen, stds, shares


def streamed(data, texts, rank, picks, batch=7) -> TextSpan:
    moments = RunningMoments([1], 1, data.shape[1])
    for chunk in torch.as_tensor(data).split(batch):
        moments.update(chunk[:, None, None])
    return textspan(moments.of(1, 0), torch.as_tensor(texts), rank, picks)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def assert_as_published(data, texts, rank, picks):
    """The same picks as far as there are any, and where we stop the published form has only rounding left."""
    ours = streamed(data, texts, rank, picks)
    picked, stds, shares = published_textspan(data, texts, rank, picks)
    count = len(ours.indices)
    assert ours.indices == picked[:count]
    np.testing.assert_allclose(ours.variance, shares[:count], rtol=1e-5, atol=1e-12)
    noise = 1e-5 * np.sqrt(np.square(data).sum(1).mean())
    assert all(std < noise for std in stds[count:])
    return ours


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 120),
    dim=st.integers(2, 24),
    rank=st.integers(1, 24),
    offset=st.sampled_from([0.0, 1.0, 30.0]),
)
def test_picks_of_random_data_are_those_of_the_published_algorithm(seed, n, dim, rank, offset):
    rng = np.random.default_rng(seed)
    data = rng.normal(size=(n, dim)) * rng.exponential(size=dim) + offset * rng.normal(size=dim)
    assert_as_published(data, unit(rng.normal(size=(40, dim))), min(rank, dim), picks=12)


@pytest.mark.parametrize("seed", range(3))
def test_picks_of_data_shaped_like_a_clip_head(seed):
    """64 numbers in 512 dimensions with a steep spectrum, a large mean, and noise that the rank cuts off."""
    rng = np.random.default_rng(seed)
    spectrum = np.exp(-np.arange(64) / 12)
    data = (rng.normal(size=(400, 64)) * spectrum) @ rng.normal(size=(64, 512)) * 0.01
    data += 0.05 * rng.normal(size=512) + 1e-5 * rng.normal(size=data.shape)
    texts = unit(rng.normal(size=(600, 512)) + 1.5 * rng.normal(size=512))  # CLIP's texts share a direction
    assert len(assert_as_published(data.astype(np.float32), texts, 64, picks=20).indices) == 20


def test_finds_the_planted_texts_in_order_of_variance():
    texts = np.eye(6)
    data = np.random.default_rng(0).normal(size=(500, 3)) @ np.eye(6)[[4, 1, 2]] * [0, 2, 1, 0, 3, 0]
    result = streamed(data, texts, rank=6, picks=6)
    assert result.indices == [4, 1, 2]  # nothing varies along the others: fewer picks, not invented ones
    assert sum(result.variance) == pytest.approx(1)


@pytest.mark.parametrize("seed", range(8))
def test_duplicates_are_ties_and_the_first_one_wins(seed):
    rng = np.random.default_rng(seed)
    texts = unit(rng.normal(size=(9, 8)))
    result = assert_as_published(rng.normal(size=(50, 8)), np.repeat(texts, 3, axis=0), rank=6, picks=9)
    assert all(index % 3 == 0 for index in result.indices)
    assert len(result.indices) == 6  # six dimensions are spanned by six texts; a seventh can add nothing


@pytest.mark.parametrize("seed", range(8))
def test_rank_deficient_data_keep_to_their_own_span(seed):
    """The published code depends on arbitrary null vectors if the rank is above the data's; ours does not."""
    rng = np.random.default_rng(seed)
    data = rng.normal(size=(60, 5)) @ rng.normal(size=(5, 16))
    texts = unit(rng.normal(size=(30, 16)))
    assert streamed(data, texts, rank=12, picks=8) == assert_as_published(data, texts, rank=5, picks=8)


def test_texts_outside_the_span_are_never_picked():
    rng = np.random.default_rng(0)
    data = np.concatenate([rng.normal(size=(40, 3)), np.zeros((40, 5))], axis=1)
    texts = np.concatenate([np.eye(8)[3:], unit(np.pad(rng.normal(size=(4, 3)), ((0, 0), (0, 5))))])
    assert set(assert_as_published(data, texts, rank=3, picks=6).indices) <= {5, 6, 7, 8}


def test_an_orthonormal_change_of_coordinates_changes_nothing():
    """So a caller may feed the few coordinates of a head's span instead of whole contributions."""
    rng = np.random.default_rng(3)
    basis, _ = np.linalg.qr(rng.normal(size=(32, 9)))
    factors, texts = rng.normal(size=(50, 9)), unit(rng.normal(size=(40, 32)))
    small, large = streamed(factors, texts @ basis, 8, 8), streamed(factors @ basis.T, texts, 8, 8)
    assert small.indices == large.indices
    assert small.variance == pytest.approx(large.variance)


@pytest.mark.parametrize("count", [1, 5])
def test_a_head_that_always_writes_the_same_has_no_phrases(count):
    assert streamed(np.full((count, 4), 0.3), np.eye(4), 4, 2) == TextSpan([], [])
    assert streamed(np.zeros((count, 4)), np.eye(4), 4, 2) == TextSpan([], [])


def test_moments_are_those_of_each_head_whatever_the_batches_and_survive_a_restart():
    x = torch.randn(23, 2, 3, 5)
    moments = RunningMoments([9, 10], 3, 5)
    moments.update(x[:10])
    resumed = RunningMoments([9, 10], 3, 5)
    resumed.load_state_dict({name: tensor.clone() for name, tensor in moments.state_dict().items()})
    resumed.update(x[10:])
    head, raw = resumed.of(10, 2), x[:, 1, 2].double()
    assert head.count == 23
    torch.testing.assert_close(head.total, raw.sum(0))
    torch.testing.assert_close(head.outer, raw.T @ raw)
    with pytest.raises(DearError, match="other layers"):
        RunningMoments([8, 9], 3, 5).load_state_dict(moments.state_dict())


def test_a_bad_batch_is_refused_whole():
    moments = RunningMoments([1], 1, 4)
    with pytest.raises(DearError, match="not finite"):
        moments.update(torch.tensor([[[[1.0, float("nan"), 0, 0]]]]))
    assert moments.count == 0
    assert not moments.outer.any()
    with pytest.raises(ValueError, match="do not fit"):
        moments.update(torch.zeros(2, 1, 1, 5))


def test_too_few_phrases_or_images_are_refused():
    with pytest.raises(DearError, match="more phrases"):
        streamed(np.ones((3, 4)), np.eye(4), rank=4, picks=5)
    with pytest.raises(DearError, match="no image"):
        textspan(RunningMoments([1], 1, 4).of(1, 0), torch.eye(4), rank=4, picks=1)
