"""Paired comparisons: against a bootstrap written out, on answers whose order is known, and in the report."""

import numpy as np
import pytest
from msgspec.structs import replace

from dear.bench.paired import Comparison, best_label, compare
from dear.bench.results import Cell, Evaluation, Result, Seconds
from dear.bench.summary import HM, series
from dear.bench.tables import main_tables


def result(
    method: str, seed: int, base: np.ndarray, novel: np.ndarray, dataset="signs", split="test", shots=16, **settings
) -> Result:
    return made(Cell("base-to-novel", dataset, method, seed, shots, settings, (), split, None), base=base, novel=novel)


def few_shot(method: str, shots: int, seed: int, right: np.ndarray) -> Result:
    return made(Cell("few-shot", "signs", method, seed, shots, {}, (), "test", None), all=right)


def made(cell: Cell, **answers: np.ndarray) -> Result:
    evaluations = [
        Evaluation(name, "plain", len(r), 100 * r.mean(), None, None, {}, [], np.packbits(r).tobytes().hex())
        for name, r in answers.items()
    ]
    return Result(
        cell=cell, evaluations=evaluations, fusion=None,
        trained_parameters=0, seconds=Seconds(1.0, 1.0), peak_memory_mb=None, versions={}, machine={}, finished="",
    )  # fmt: skip


def answers(rng: np.random.Generator, share: float, images: int = 300) -> np.ndarray:
    return rng.random(images) < share


def of(results: list[Result], method: str):
    return [s for s in series(results) if s.label == method]


def test_a_method_is_level_with_itself_and_ahead_of_a_worse_one() -> None:
    rng = np.random.default_rng(1)
    results = []
    for seed in (1, 2, 3):
        base, novel = answers(rng, 0.8), answers(rng, 0.7)
        worse = base & answers(rng, 0.9)  # wrong wherever the other is, and on a tenth of the rest
        results += [result("a", seed, base, novel), result("b", seed, worse, novel), result("c", seed, base, novel)]
    assert compare(of(results, "a"), of(results, "c"), HM) == Comparison(0.0, 0.0, 0.0, 3)
    assert compare(of(results, "a"), of(results, "c"), HM).verdict == "level"
    ahead, behind = compare(of(results, "a"), of(results, "b"), HM), compare(of(results, "b"), of(results, "a"), HM)
    assert (ahead.verdict, behind.verdict) == ("ahead", "behind")
    assert ahead.mean == pytest.approx(-behind.mean)
    assert ahead.low < ahead.mean < ahead.high


def test_the_interval_is_that_of_a_bootstrap_written_out() -> None:
    rng = np.random.default_rng(2)
    results = [
        result(method, seed, answers(rng, share), answers(rng, share))
        for method, share in (("a", 0.75), ("b", 0.7))
        for seed in (1, 2, 3)
    ]
    ours = compare(of(results, "a"), of(results, "b"), HM)
    bits = {
        (r.cell.method, r.cell.seed): [np.unpackbits(np.frombuffer(bytes.fromhex(e.right), np.uint8))[:300]
        for e in r.evaluations] for r in results
    }  # fmt: skip
    drawn = []
    for _ in range(3000):
        images = [rng.integers(300, size=300) for _ in range(2)]
        differences = {}
        for seed in (1, 2, 3):
            hms = []
            for method in "ab":
                base, novel = (r[i].mean() for r, i in zip(bits[method, seed], images, strict=True))
                hms.append(200 * base * novel / (base + novel))
            differences[seed] = hms[0] - hms[1]
        mean = np.mean(list(differences.values()))
        of_seeds = np.mean([differences[seed] for seed in rng.integers(1, 4, size=3)])
        drawn.append(mean + np.sqrt(3 / 2) * (of_seeds - mean))
    assert [ours.low, ours.high] == pytest.approx(np.percentile(drawn, (2.5, 97.5)), abs=0.3)


def test_draws_spread_the_interval_as_their_unbiased_variance_says() -> None:
    """On images that are all alike, only draws differ: those of four draws have a standard error of s / sqrt(4)."""
    shares = (0.5, 0.6, 0.8, 0.9)
    none = np.zeros(4000, bool)
    results = [result("none", seed, none | True, none | True) for seed in range(4)]
    for seed, share in enumerate(shares):
        right = np.arange(4000) % 10 < 10 * share
        results.append(result("some", seed, right, right))
    ours = compare(of(results, "some"), of(results, "none"), HM)
    assert (ours.high - ours.low) / 2 == pytest.approx(1.96 * 100 * np.std(shares, ddof=1) / 2, rel=0.1)


def test_shared_hardness_does_not_widen_the_interval() -> None:
    """Two methods that differ on few images are told apart though each has a wide interval by itself."""
    rng = np.random.default_rng(3)
    base, novel = answers(rng, 0.6), answers(rng, 0.6)
    better = base.copy()
    better[np.flatnonzero(~base)[:15]] = True
    other = answers(rng, base.mean())  # as accurate, on other images
    results = [result("better", 1, better, novel), result("same", 1, base, novel), result("other", 1, other, novel)]
    paired, unpaired = (compare(of(results, "better"), of(results, name), HM) for name in ("same", "other"))
    assert paired.verdict == "ahead"
    assert unpaired.verdict == "undecided"


def test_only_common_datasets_and_seeds_count_and_older_files_give_none() -> None:
    rng = np.random.default_rng(4)
    first = [result("a", seed, answers(rng, 0.8), answers(rng, 0.8), dataset) for dataset in "xy" for seed in (1, 2)]
    places = (("y", 1), ("z", 9))
    second = [result("b", seed, answers(rng, 0.8), answers(rng, 0.8), dataset) for dataset, seed in places]
    assert compare(of(first + second, "a"), of(first + second, "b"), HM).pairs == 1
    assert best_label(series(first + second), HM) == "a"
    assert compare(of(first, "a"), [], HM) is None


def test_the_report_has_one_row_per_method() -> None:
    rng = np.random.default_rng(5)
    shares = {"zero-shot": 0.5, "tip-adapter": 0.9, "gda": 0.7}
    results = [
        result(method, seed, answers(rng, share), answers(rng, share), dataset)
        for method, share in shares.items()
        for dataset in ("x", "y")
        for seed in (1, 2)
        if (method, dataset) != ("gda", "y")
    ]
    table = main_tables(results)["Harmonic mean on each dataset, and paired comparison"]
    rows = {row["method"]: row for row in table.records()}
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "zero-shot": "behind", "tip-adapter": "best", "gda": "behind"
    }  # fmt: skip
    by_hand = {}
    for one in results:
        accuracies = {e.name: e.accuracy for e in one.evaluations}
        base, novel = accuracies["base"], accuracies["novel"]
        by_hand.setdefault((one.cell.method, one.cell.dataset), []).append(2 * base * novel / (base + novel))
    for (method, dataset), values in by_hand.items():
        assert rows[method][dataset] == pytest.approx(np.mean(values))
    assert rows["gda"]["y"] is None
    assert rows["gda"]["Average"] is None
    assert rows["gda"]["pairs"] == 2
    assert rows["zero-shot"]["HM - zero-shot"] is None
    assert "**" not in table.markdown().split("zero-shot |")[1].split("\n")[0]


def test_a_method_that_shares_no_dataset_with_the_best_is_not_the_best() -> None:
    rng = np.random.default_rng(7)
    places = {"zero-shot": (0.5, "xw"), "gda": (0.7, "xyz"), "prolip": (0.6, "w")}
    results = [
        result(method, 1, answers(rng, share), answers(rng, share), dataset)
        for method, (share, datasets) in places.items()
        for dataset in datasets
    ]
    table = main_tables(results)["Harmonic mean on each dataset, and paired comparison"]
    rows = {row["method"]: row for row in table.records()}
    assert rows["gda"]["verdict"] == "best"
    assert rows["prolip"]["HM - zero-shot"] is not None
    assert rows["prolip"]["verdict"] is None


def test_held_out_images_of_other_shots_are_not_compared() -> None:
    """They are other images: 8 shots leave more of them than 16."""
    rng = np.random.default_rng(8)
    results = [
        result(method, 1, answers(rng, share, images), answers(rng, share, images), split="held-out", shots=shots)
        for method, share in (("gda", 0.8), ("prolip", 0.6))
        for shots, images in ((8, 200), (16, 100))
    ]
    table = main_tables(results)["Harmonic mean on each dataset, and paired comparison, held-out images"]
    rows = {row["method"]: row for row in table.records()}
    (best,) = (name for name, row in rows.items() if row["verdict"] == "best")
    assert best.startswith("gda")
    assert {name: row["pairs"] for name, row in rows.items()} == {best: None, best.replace("gda", "prolip"): 1}


def test_a_method_is_compared_with_zero_shot_of_its_own_backbone() -> None:
    rng = np.random.default_rng(9)
    shares = {("zero-shot", "B"): 0.4, ("zero-shot", "L"): 0.7, ("gda", "B"): 0.6, ("gda", "L"): 0.9}
    results = [
        result(method, 1, answers(rng, share, 3000), answers(rng, share, 3000), model=model)
        for (method, model), share in shares.items()
    ]
    table = main_tables(results)["Harmonic mean on each dataset, and paired comparison"]
    gained = {row["method"]: row["HM - zero-shot"] for row in table.records()}
    for model in "BL":
        assert float(gained[f"gda (model {model})"].split()[0]) == pytest.approx(20, abs=3)
        assert gained[f"zero-shot (model {model})"] is None


def test_few_shot_results_are_compared_with_the_best_of_as_many_shots() -> None:
    rng = np.random.default_rng(6)
    shares = {("gda", 1): 0.4, ("prolip", 1): 0.7, ("gda", 16): 0.9, ("prolip", 16): 0.7, ("zero-shot", 1): 0.4}
    results = [few_shot(method, shots, seed, answers(rng, share)) for (method, shots), share in shares.items()
               for seed in (1, 2)]  # fmt: skip
    table = main_tables(results)["Paired comparison with the best"]
    rows = {row[0]: row[1:] for row in table.cells()}
    assert rows["prolip"][0] == rows["gda"][1] == "best"
    assert rows["prolip"][1].endswith("behind")
    assert rows["gda"][0].endswith("behind")
    assert rows["zero-shot"][1] == "-"


def test_transfer_is_compared_over_all_targets_by_each_way_of_inference() -> None:
    rng = np.random.default_rng(7)
    shares = {"zero-shot": 0.5, "gda": 0.9, "dear": 0.7}
    results = []
    for method, share in shares.items():
        for seed in (1, 2):
            cell = Cell("domain", "photo", method, seed, 16, {}, ("art", "sketch"), "test", None)
            right = {name: answers(rng, share) for name in ("photo", "art", "sketch")}
            results.append(made(cell, **right))
            if method == "dear":  # its other inference is right nowhere
                none = [replace(e, inference="fusion", right="00" * 38, accuracy=0.0) for e in results[-1].evaluations]
                own = [replace(e, inference="decoupled") for e in results[-1].evaluations]
                results[-1] = replace(results[-1], evaluations=own + none)
    table = main_tables(results)["Paired comparison: from photo"]
    rows = {row["method"]: row for row in table.records()}
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "zero-shot": "behind", "gda": "best", "dear (decoupled)": "behind", "dear (fusion)": "behind"
    }  # fmt: skip
    by_hand = [np.mean([e.accuracy for e in r.evaluations[1:]]) for r in results if r.cell.method == "gda"]
    assert rows["gda"]["average of targets"] == pytest.approx(np.mean(by_hand))
    assert rows["dear (fusion)"]["average - zero-shot"].startswith("-5")
    assert rows["dear (decoupled)"]["average - zero-shot"].startswith("+")
