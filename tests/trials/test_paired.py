"""The one comparison: its intervals against other ways to compute them, its verdict against p, and its bootstrap."""

import math
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dear.core.metrics import mcnemar
from dear.trials.paired import (
    AHEAD,
    BEHIND,
    EVEN,
    LEVEL,
    UNDECIDED,
    Comparison,
    compare,
    compare_once,
    compare_values,
    compare_with_printed,
    harmonic_share,
    mcnemar_interval,
    tango_interval,
)

SMALL = [(a, b, n) for n in (1, 2, 5, 9, 14) for a in range(n + 1) for b in range(n + 1 - a)]
Z = stats.norm.ppf(0.975)


def answers_of(only_first: int, only_second: int, both: int, neither: int) -> tuple[np.ndarray, np.ndarray]:
    counts = (only_first, only_second, both, neither)
    return np.repeat([1.0, 0.0, 1.0, 0.0], counts), np.repeat([0.0, 1.0, 1.0, 0.0], counts)


def random_answers(rng: np.random.Generator, share: float, images: int = 300) -> np.ndarray:
    return (rng.random(images) < share).astype(float)


# One draw of one test set


def likelihood(only_first: int, only_second: int, images: int, difference: float, share: np.ndarray) -> np.ndarray:
    """The log-likelihood of shares of images that only the second has right, if the first has so many more."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rest = images - only_first - only_second
        terms = [(only_first, share + difference), (only_second, share), (rest, 1 - 2 * share - difference)]
        return sum(np.where(p >= 0, count * np.log(p) if count else 0.0, -np.inf) for count, p in terms)


@pytest.mark.parametrize(("only_first", "only_second", "images"), [(1, 0, 5), (3, 1, 9), (0, 6, 14), (12, 5, 60)])
def test_tangos_interval_is_where_the_score_test_does_not_reject(only_first, only_second, images) -> None:
    """Brute force: the nuisance share maximises the likelihood on a grid, as Tango's closed form says."""
    differences = np.linspace(-0.999, 0.999, 1999)
    kept = []
    for difference in differences:
        shares = np.linspace(max(0.0, -difference), (1 - difference) / 2, 20001)
        share = shares[np.argmax(likelihood(only_first, only_second, images, difference, shares))]
        variance = images * (2 * share + difference * (1 - difference))
        gap = only_first - only_second - images * difference
        if abs(gap) <= Z * math.sqrt(max(variance, 1e-12)):
            kept.append(difference)
    assert tango_interval(only_first, only_second, images) == pytest.approx((100 * kept[0], 100 * kept[-1]), abs=0.2)


@pytest.mark.parametrize(("only_first", "only_second", "images"), SMALL)
def test_mcnemars_interval_is_clopper_and_pearsons(only_first, only_second, images) -> None:
    found = mcnemar_interval(only_first, only_second, images)
    differing = only_first + only_second
    if not differing:
        assert found == (0.0, 0.0)
        return
    exact = stats.binomtest(only_first, differing).proportion_ci(0.95, "exact")
    expected = [100 * differing / images * (2 * end - 1) for end in (exact.low, exact.high)]
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("only_first", "only_second", "images"), [*SMALL, (30, 12, 400), (9, 8, 9000), (0, 80, 81)])
def test_the_verdict_agrees_with_the_exact_test(only_first, only_second, images) -> None:
    first, second = answers_of(only_first, only_second, 0, images - only_first - only_second)
    comparison = compare_once(first, second)
    differing = only_first + only_second
    exact = stats.binomtest(only_first, differing).pvalue if differing else 1.0
    assert comparison.p == pytest.approx(exact)
    assert comparison.p == mcnemar(only_first, only_second)
    assert (comparison.verdict in (AHEAD, BEHIND)) == (exact < 0.05)
    assert comparison.low <= comparison.difference <= comparison.high
    assert comparison.difference == pytest.approx(100 * (only_first - only_second) / images)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=80))
def test_turned_round_the_comparison_is_the_same(pairs: list[tuple[bool, bool]]) -> None:
    first, second = np.array(pairs, float).T
    one, other = compare_once(first, second), compare_once(second, first)
    assert (one.difference, one.p) == (-other.difference, other.p)
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low), abs=1e-9)
    assert {one.verdict, other.verdict} in ({AHEAD, BEHIND}, {EVEN}, {UNDECIDED})
    assert compare_once(first, second, np.ones(len(first))) == one
    turned = one.turned()
    figures = [(c.difference, c.low, c.high, c.p) for c in (turned, other)]
    assert figures[0] == pytest.approx(figures[1], abs=1e-9)
    assert turned.verdict == other.verdict
    assert "-0.0" not in str(turned.difference)


def test_images_of_little_weight_tell_little() -> None:
    """Two classes, one with ten times as many images: all that is known about the small one decides the width."""
    first, second = answers_of(60, 10, 100, 50)
    even = compare_once(first, second)
    weights = np.where(np.arange(len(first)) % 11 == 0, 6.0, 0.5)
    weighted = compare_once(first, second, weights / weights.mean())
    assert weighted.difference == pytest.approx(100 * np.average(first - second, weights=weights))
    assert weighted.high - weighted.low > 1.3 * (even.high - even.low)


def test_shares_of_answers_are_compared_by_their_mean() -> None:
    rng = np.random.default_rng(0)
    differences = rng.normal(0.1, 0.3, 500)
    comparison = compare_values(differences, np.ones(500))
    interval = stats.norm.interval(0.95, differences.mean(), differences.std(ddof=1) / math.sqrt(500))
    assert (comparison.low, comparison.high) == pytest.approx(100 * np.array(interval), abs=1e-4)
    assert comparison.difference == pytest.approx(100 * differences.mean())


# Words


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.1, 5.0, AHEAD), (-5.0, -0.1, BEHIND), (-1.9, 1.9, EVEN), (0.0, 1.9, EVEN), (-1.0, LEVEL, UNDECIDED),
        (-5.0, 0.0, UNDECIDED), (0.0, 9.0, UNDECIDED), (0.1, 0.2, AHEAD),
    ],
)  # fmt: skip
def test_the_four_words(low: float, high: float, verdict: str) -> None:
    comparison = Comparison((low + high) / 2, low, high, 0.5)
    assert comparison.verdict == verdict
    sentence = comparison.sentence("gda", "zero-shot")
    assert verdict in sentence
    assert f"95% interval {low:+.1f} to {high:+.1f}, p = 0.5" in sentence


# Several draws and test sets


def one_dataset(shares: dict[int, tuple[float, float]], rng: np.random.Generator, images: int = 300):
    """Right answers of two methods by seed, each on base and novel images."""
    return [{s: [random_answers(rng, pair[i], images) for _ in range(2)] for s, pair in shares.items()} for i in (0, 1)]


def test_the_interval_is_that_of_a_bootstrap_written_out() -> None:
    """Two datasets: in a resample, images of a test set are the same for all seeds and both methods."""
    rng = np.random.default_rng(2)
    shares = dict.fromkeys((1, 2, 3), (0.75, 0.70))
    datasets = [one_dataset(shares, rng) for _ in range(2)]
    ours = compare([d[0] for d in datasets], [d[1] for d in datasets], harmonic_share)

    def harmonic(parts: list[np.ndarray], images: list[np.ndarray]) -> float:
        base, novel = (right[chosen].mean() for right, chosen in zip(parts, images, strict=True))
        return 200 * base * novel / (base + novel)

    def resamples() -> Iterator[float]:
        for _ in range(2000):
            of_datasets = []
            for first, second in datasets:
                images = [rng.integers(300, size=300) for _ in range(2)]
                differences = {s: harmonic(first[s], images) - harmonic(second[s], images) for s in shares}
                mean = np.mean(list(differences.values()))
                of_seeds = np.mean([differences[seed] for seed in rng.integers(1, 4, size=3)])
                of_datasets.append(mean + math.sqrt(3 / 2) * (of_seeds - mean))
            yield float(np.mean(of_datasets))

    low, high = np.percentile(list(resamples()), (2.5, 97.5))
    assert (ours.low, ours.high) == pytest.approx((low, high), abs=0.4)  # of random resamples
    whole = [np.arange(300)] * 2
    exact = np.mean([harmonic(d[0][s], whole) - harmonic(d[1][s], whole) for d, s in product(datasets, shares)])
    assert ours.difference == pytest.approx(exact)
    assert (ours.pairs, ours.p) == (6, None)


def test_draws_spread_the_interval_as_their_unbiased_variance_says() -> None:
    """Only draws differ, as all images are alike: those of four draws have a standard error of s / sqrt(4)."""
    shares = (0.5, 0.6, 0.8, 0.9)
    none = {seed: [np.zeros(4000)] for seed in range(4)}
    some = {seed: [(np.arange(4000) % 10 < 10 * share).astype(float)] for seed, share in enumerate(shares)}
    ours = compare([some], [none])
    assert (ours.high - ours.low) / 2 == pytest.approx(1.96 * 100 * np.std(shares, ddof=1) / 2, rel=0.1)


def test_shared_hardness_does_not_widen_the_interval() -> None:
    """Two methods that differ on few images are told apart though each has a wide interval by itself."""
    rng = np.random.default_rng(3)
    base, novel = random_answers(rng, 0.6), random_answers(rng, 0.6)
    better, other = base.copy(), random_answers(rng, 0.6)  # as accurate, on other images
    better[np.flatnonzero(base == 0)[:15]] = 1
    paired, unpaired = (compare([{1: [better, novel]}], [{1: [x, novel]}], harmonic_share) for x in (base, other))
    assert (paired.verdict, unpaired.verdict) == (AHEAD, UNDECIDED)


def test_a_method_is_level_with_itself() -> None:
    (first, _) = one_dataset({1: (0.8, 0.8), 2: (0.7, 0.7)}, np.random.default_rng(1))
    assert compare([first], [first], harmonic_share) == Comparison(0.0, 0.0, 0.0, None, 2)


def test_only_what_both_have_is_compared() -> None:
    rng = np.random.default_rng(4)
    first, second = one_dataset({1: (0.8, 0.7), 2: (0.8, 0.7), 3: (0.8, 0.7)}, rng)
    del second[2]
    second[3] = [right[:200] for right in second[3]]  # other images
    found = compare([first, first], [second, {}])
    assert found.pairs == 1
    assert compare([first], [{}]) is None


def test_held_out_images_of_each_draw_are_its_own() -> None:
    """Independent images of as many seeds tell more than the same ones again and again."""
    rng = np.random.default_rng(5)
    shared, own = random_answers(rng, 0.7, 200), [random_answers(rng, 0.7, 200) for _ in range(5)]
    worse = {seed: [np.zeros(200)] for seed in range(5)}
    same = compare([{seed: [shared] for seed in range(5)}], [worse])
    other = compare([{seed: [own[seed]] for seed in range(5)}], [worse], same_images=False)
    assert other.high - other.low < 0.8 * (same.high - same.low)


def test_seeds_with_other_numbers_of_images_can_be_averaged() -> None:
    rng = np.random.default_rng(6)
    first, second = ({1: [random_answers(rng, s, 50)], 2: [random_answers(rng, s, 90)]} for s in (0.9, 0.1))
    found = compare([first], [second])
    assert (found.pairs, found.verdict) == (2, AHEAD)


# A printed mean


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_a_printed_mean_is_compared_by_students_t(seeds: int) -> None:
    spread, printed = 0.8, 80.0
    half = stats.t.ppf(0.975, seeds - 1) * spread * math.sqrt(1 / seeds + 1 / 3) + 0.05
    found = compare_with_printed(81.0, spread, seeds, printed)
    assert (found.difference, found.low, found.high) == pytest.approx((1.0, 1.0 - half, 1.0 + half), abs=2e-3)
    assert compare_with_printed(81.0, None, 1, printed) is None
