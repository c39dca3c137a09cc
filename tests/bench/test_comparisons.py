"""Comparisons in reports, over answers whose order is known."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from dear.bench.results import CellResult
from dear.bench.tables import main_tables
from made_up import outcome
from made_up import result as made

HM_TABLE = "Harmonic mean on each dataset, and paired comparison"


def result(method: str, seed: int, base: np.ndarray, novel: np.ndarray, dataset="signs", **facts) -> CellResult:
    return made("base-to-novel", dataset, method, seed, {"base": base, "novel": novel}, **facts)


def few_shot(method: str, shots: int, seed: int, right: np.ndarray) -> CellResult:
    return made("few-shot", "signs", method, seed, {"all": right}, shots=shots)


def answers(rng: np.random.Generator, share: float, images: int = 300) -> np.ndarray:
    return rng.random(images) < share


def rows_of(results: list[CellResult], table: str = HM_TABLE) -> dict[str, dict[str, Any]]:
    return {row["method"]: row for row in main_tables(results)[table].records()}


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
    rows = rows_of(results)
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "zero-shot": "behind", "tip-adapter": "best", "gda": "behind"
    }  # fmt: skip
    by_hand = {}
    for one in results:
        accuracies = {o.part: o.accuracy for o in one.outcomes}
        base, novel = accuracies["base"], accuracies["novel"]
        by_hand.setdefault((one.cell.method, one.cell.dataset), []).append(2 * base * novel / (base + novel))
    for (method, dataset), values in by_hand.items():
        assert rows[method][dataset] == pytest.approx(np.mean(values))
    assert rows["gda"]["y"] is None
    assert rows["gda"]["Average"] is None
    assert rows["gda"]["pairs"] == 2
    assert rows["zero-shot"]["HM - zero-shot"] is None
    assert "**" not in main_tables(results)[HM_TABLE].markdown().split("zero-shot |")[1].split("\n")[0]


def test_a_method_that_shares_no_dataset_with_the_best_is_not_the_best() -> None:
    rng = np.random.default_rng(7)
    places = {"zero-shot": (0.5, "xw"), "gda": (0.7, "xyz"), "prolip": (0.6, "w")}
    results = [
        result(method, 1, answers(rng, share), answers(rng, share), dataset)
        for method, (share, datasets) in places.items()
        for dataset in datasets
    ]
    rows = rows_of(results)
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
    rows = rows_of(results, f"{HM_TABLE}, held-out images")
    (best,) = (name for name, row in rows.items() if row["verdict"] == "best")
    assert best.startswith("gda")
    assert {name: row["pairs"] for name, row in rows.items()} == {best: None, best.replace("gda", "prolip"): 1}


def test_a_method_is_compared_with_zero_shot_of_its_own_backbone() -> None:
    rng = np.random.default_rng(9)
    shares = {("zero-shot", "B"): 0.4, ("zero-shot", "L"): 0.7, ("gda", "B"): 0.6, ("gda", "L"): 0.9}
    results = [
        result(method, 1, answers(rng, share, 3000), answers(rng, share, 3000), settings={"model": model})
        for (method, model), share in shares.items()
    ]
    gained = {name: row["HM - zero-shot"] for name, row in rows_of(results).items()}
    for model in "BL":
        assert gained[f"gda (model {model})"]["difference"] == pytest.approx(20, abs=3)
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
            right = {name: answers(rng, share) for name in ("photo", "art", "sketch")}
            targets = ("art", "sketch")
            if method != "dear":
                results.append(made("domain", "photo", method, seed, right, targets=targets))
                continue
            own = [outcome(name, bits, "decoupled") for name, bits in right.items()]
            none = [outcome(name, np.zeros(300, bool), "fusion") for name in right]  # is right nowhere
            empty = made("domain", "photo", method, seed, {}, targets=targets)
            results.append(replace(empty, outcomes=own + none))
    rows = rows_of(results, "Paired comparison: from photo")
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "zero-shot": "behind", "gda": "best", "dear (decoupled)": "behind", "dear (fusion)": "behind"
    }  # fmt: skip
    by_hand = [np.mean([o.accuracy for o in r.outcomes[1:]]) for r in results if r.cell.method == "gda"]
    assert rows["gda"]["average of targets"] == pytest.approx(np.mean(by_hand))
    assert rows["dear (fusion)"]["average - zero-shot"]["difference"] == pytest.approx(-50, abs=5)
    assert rows["dear (decoupled)"]["average - zero-shot"]["difference"] > 0
