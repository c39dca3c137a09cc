"""Means, spreads, harmonic means, pairs and gaps, against numbers worked out by hand."""

import math
from statistics import fmean

import pytest

from dear.bench.ablations import ablation_results
from dear.bench.chapters import list_missing
from dear.bench.paper import base_to_novel_table, paper_name, transfer_table
from dear.bench.results import Cell, CellResult, Variant
from dear.bench.series import (
    HM,
    Stat,
    average,
    compare_series,
    complete_datasets,
    complete_methods,
    labels,
    missing,
    scores,
    series,
    stat,
)
from dear.core.metrics import harmonic_mean
from made_up import finished, outcome


def result(dataset="signs", method="dear", seed=1, *, protocol="base-to-novel", shots=16, targets=(), variant=None,
         settings=None, split="test", inference="fusion", **accuracy: float) -> CellResult:  # fmt: skip
    cell = Cell(protocol, dataset, method, seed, shots, settings or {}, targets, split, variant)
    return finished(cell, [outcome(name, value, inference) for name, value in accuracy.items()])


def test_mean_and_sample_std() -> None:
    seeds = stat([70.0, 72.0, 77.0])
    assert seeds == Stat(73.0, pytest.approx(math.sqrt((9 + 1 + 16) / 2)), 3)
    assert str(seeds) == "73.0 ± 3.6"
    assert str(stat([70.0])) == "70.0"  # one seed has no std
    assert stat([]) is None


def test_hm_is_that_of_each_seed_then_averaged() -> None:
    (one,) = series([result(seed=1, base=80.0, novel=60.0), result(seed=2, base=60.0, novel=80.0)])
    each = 2 * 80 * 60 / 140
    assert one.stat(HM) == Stat(pytest.approx(each), pytest.approx(0.0), 2)
    assert each < harmonic_mean(70.0, 70.0)  # which is what the mean base and novel would give


def test_no_hm_without_novel() -> None:
    (one,) = series([result(method="linear-probe", inference="plain", base=80.0)])
    assert one.stat(HM) is None
    assert one.stat("novel") is None
    assert str(one.stat("base")) == "80.0"


def test_the_inference_of_each_protocol_is_the_papers() -> None:
    of = result()
    of.outcomes.extend(result(base=80.0).outcomes + result(inference="decoupled", base=70.0).outcomes)
    assert scores(of) == {"base": 80.0}
    transfer = result(protocol="domain", inference="fusion", signs=60.0, sketch=40.0, targets=("sketch",))
    transfer.outcomes.extend(result(inference="decoupled", signs=61.0, sketch=50.0).outcomes)
    assert scores(transfer) == {"signs": 61.0, "sketch": 50.0, "targets": 50.0}
    assert scores(transfer, "fusion")["targets"] == 40.0


def test_targets_are_only_averaged_when_all_are_there() -> None:
    assert "targets" not in scores(result(protocol="domain", targets=("a", "b"), a=50.0))


def test_average_is_over_datasets_for_each_seed_then_over_seeds() -> None:
    all_series = series([
        result("a", seed=1, base=80.0, novel=60.0), result("a", seed=2, base=90.0, novel=70.0),
        result("b", seed=1, base=60.0, novel=50.0), result("b", seed=2, base=50.0, novel=40.0),
        result("b", seed=3, base=10.0, novel=10.0),  # a has no such seed
    ])  # fmt: skip
    assert average(all_series, ["a", "b"], "base") == Stat(70.0, 0.0, 2)
    hms = [harmonic_mean(70, 55), harmonic_mean(70, 55)]
    assert average(all_series, ["a", "b"], HM) == Stat(pytest.approx(fmean(hms)), pytest.approx(0.0), 2)
    assert average(all_series, ["a", "c"], "base") is None


def test_only_complete_datasets_and_methods_count() -> None:
    results = [
        result(d, m, base=80.0, novel=60.0) for d in "abc" for m in ("dear", "tip-adapter") if (d, m) != ("b", "dear")
    ]
    results += [result(d, "linear-probe", base=70.0) for d in "abc"]  # it never has novel, and hinders nobody
    assert complete_datasets(series(results)) == ["a", "c"]
    assert complete_methods(series(results)) == ["tip-adapter", "linear-probe"]
    results.append(result("b", "dear", base=80.0))
    assert complete_methods(series(results)) == ["tip-adapter", "linear-probe"]  # dear has no novel there
    results.append(result("b", "dear", seed=2, base=80.0, novel=60.0))
    assert complete_methods(series(results)) == ["dear", "tip-adapter", "linear-probe"]


def test_differences_are_paired_by_dataset_and_seed() -> None:
    default = series(
        [result(d, seed=s, base=b, novel=b) for d, s, b in [("a", 1, 70.0), ("a", 2, 72.0), ("b", 1, 40.0)]]
    )
    changed = series([result(d, seed=s, base=b, novel=b) for d, s, b in
                      [("a", 1, 69.0), ("a", 2, 70.0), ("b", 1, 43.0), ("b", 2, 99.0)]])  # fmt: skip
    comparison = compare_series(changed, default, HM)
    assert comparison.pairs == 3
    assert comparison.difference == pytest.approx((-1.5 + 3) / 2)  # of the datasets
    assert comparison.low < comparison.difference < comparison.high
    assert compare_series(changed, [], HM) is None


@pytest.mark.parametrize("own_default", [True, False])
def test_an_ablation_is_compared_with_its_default(own_default: bool) -> None:
    default = Variant("masks", "DeAR", default=True) if own_default else None
    changed = Variant("masks", "all mixed", "DeAR")
    other = result(seed=1, base=10.0, novel=10.0, settings={"lr": 9, "masks": "role"})  # a default of another run
    results = [
        result(seed=s, base=70.0 + s, novel=70.0 + s, settings={"lr": 1, "masks": "role"}, variant=default)
        for s in (1, 2)
    ]
    results += [
        result(seed=s, base=60.0, novel=60.0, settings={"lr": 1, "masks": "none"}, variant=changed) for s in (1, 2)
    ]
    (study,) = ablation_results([other, *results])
    assert list(study.rows) == ["DeAR", "all mixed"]
    assert study.is_default("DeAR")
    comparison = study.comparisons["all mixed"]
    assert (comparison.difference, comparison.pairs) == (pytest.approx(-11.5), 2)
    assert study.comparisons["DeAR"] is None


def test_numeric_values_stand_in_their_order() -> None:
    results = [
        result(base=10.0, variant=Variant("beta", value, default=value == "0.9")) for value in ("0.9", "10", "0.3")
    ]
    assert list(ablation_results(results)[0].rows) == ["0.3", "0.9", "10"]


def test_dear_answers_the_ablation_of_inference_itself() -> None:
    of = result(base=80.0, novel=80.0)
    of.outcomes.extend(result(inference="decoupled", base=78.0, novel=90.0).outcomes)
    (study,) = ablation_results([of])
    assert study.name == "inference"
    assert {value: f"{c.difference:+.1f}" for value, c in study.comparisons.items() if c} == {
        "decoupled": "+3.6",  # 83.6 - 80
        "fusion, novel decoupled": "+4.7",  # 84.7 - 80
    }


def test_cells_with_other_settings_are_named_not_averaged() -> None:
    results = [result(seed=1, base=80.0, settings={"lr": 0.1}), result(seed=1, base=60.0, settings={"lr": 0.2})]
    results += [result("other", seed=1, base=50.0, settings={"lr": 0.1}), result(method="zero-shot", base=40.0)]
    means = {(s.dataset, s.label): float(s.stat("base") or 0) for s in series(results)}
    assert means == {
        ("signs", "dear (lr 0.1)"): 80.0,
        ("signs", "dear (lr 0.2)"): 60.0,
        ("other", "dear (lr 0.1)"): 50.0,  # the same name on every dataset
        ("signs", "zero-shot"): 40.0,
    }


def test_settings_that_go_with_the_dataset_need_no_name() -> None:
    assert (
        labels([result("a", settings={"template": "x {}"}), result("b", settings={"template": "y {}"})]) == ["dear"] * 2
    )


def test_several_backbones_are_always_named() -> None:
    names = labels([result(settings={"model": "mini"}), result(method="zero-shot", settings={"model": "ViT-B-16"})])
    assert names == ["dear (model mini)", "zero-shot (model ViT-B-16)"]


def test_shots_are_columns_in_few_shot_and_names_elsewhere() -> None:
    few = [result(protocol="few-shot", shots=n, **{"all": 50.0 + n}) for n in (1, 16)]
    (one,) = series(few, by_shots=True)
    assert one.scores == {1: {"1": 51.0, "16": 66.0}}
    assert labels([result(shots=4), result(shots=16)]) == ["dear (shots 4)", "dear (shots 16)"]


def test_missing_is_what_the_grid_implies() -> None:
    results = [result(d, m, s) for d in ("a", "b") for m in ("dear", "tip-adapter") for s in (1, 2)]
    del results[5]
    assert missing(results) == [("b", "dear", 2, 16)]
    few = [result("a", "dear", protocol="few-shot", shots=n) for n in (1, 2, 4)] + [
        result("a", "x", protocol="few-shot", shots=1)
    ]
    few.append(result("a", "zero-shot", protocol="few-shot", shots=4))  # shots mean nothing to it
    assert missing(few) == [("a", "x", 1, 2), ("a", "x", 1, 4)]
    assert list_missing(few) == ["x, 2, 4 shots: a (seed 1)"]


def test_places_with_equal_seeds_are_named_together() -> None:
    lacks = [("a", "y", 1), *((d, "y", s) for d in ("b", "c") for s in (2, 3))]
    places = [(d, m, s) for d in ("a", "b", "c") for m in ("x", "y") for s in (1, 2, 3)]
    kept = [result(*place, split="held-out") for place in places if place not in lacks]
    assert list_missing(kept) == ["y, 16 shots, held-out images: a (seed 1), b, c (seeds 2, 3)"]


@pytest.mark.parametrize(
    ("name", "paper"),
    [
        ("eurosat", "EuroSAT"), ("/data/EuroSAT", "EuroSAT"), ("data/oxford_flowers/", "Flowers102"),
        ("caltech-101", "Caltech101"), ("DTD", "DTD"), ("Oxford_Pets", "OxfordPets"), ("imagenet-rendition", "R"),
        ("pets", None), ("world:textures", None), ("", None),
    ],
)  # fmt: skip
def test_names_of_the_papers_datasets(name: str, paper: str | None) -> None:
    assert paper_name(name) == paper


def test_the_papers_hm_is_computed_not_copied() -> None:
    table = base_to_novel_table(["world:signs", "caltech-101"])
    rows = {(row[0], row[1]): row[2:] for row in table.cells()}
    assert rows["Caltech101", "DeAR"] == ["99.00", "95.80", "97.37"]  # 96.95 is printed
    assert len(rows) == 13  # every method, and no average of one dataset
    assert base_to_novel_table(["world:signs"]) is None


def test_the_papers_average_is_that_of_the_datasets_that_occur() -> None:
    table = base_to_novel_table(["dtd", "eurosat"])
    rows = {(row[0], row[1]): row[2:] for row in table.cells()}
    assert rows["Average", "DeAR"] == ["90.45", "81.75", f"{harmonic_mean(90.45, 81.75):.2f}"]


def test_the_papers_transfer_is_from_imagenet() -> None:
    table = transfer_table("cross-dataset", "imagenet", ["dtd", "my own", "eurosat"])
    assert table.header == ["method", "ImageNet (source)", "DTD", "EuroSAT", "average of these"]
    assert table.cells()[-1] == ["DeAR", "71.50", "45.40", "53.50", "49.45"]
    assert transfer_table("cross-dataset", "dtd", ["eurosat"]) is None
