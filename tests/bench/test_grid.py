"""Grids of cells: pure, resumable, nothing lost, nothing mixed."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dear.bench.grid import plan, run_cells
from dear.bench.results import CELLS, STUDY, Cell, CellResult, results_in
from dear.bench.run_cell import Workbench, run_cell
from dear.cli import main
from dear.core.errors import DearError
from dear.data.resolve import resolve_dataset
from dying import dies_at_a_step

DATA = "world:colors"


pytestmark = pytest.mark.usefixtures("few_test_pictures")


def _bench(cache: Path | None = None) -> Workbench:
    return Workbench(cache, device="cpu", workers=0)


def _measured(result: CellResult) -> list[Any]:
    """The parts that are the same every time; times and memory are not."""
    return [result.cell, result.outcomes, result.fusion, result.components]


def test_long_recipes_are_cut_on_attribute_world_alone():
    def passes(dataset: str, **overrides: Any) -> dict[str, Any]:
        cells = plan("base-to-novel", [dataset], ["coop", "clip-lora", "maple", "dear"], [1], overrides)
        return {cell.method: (cell.settings["epochs"], cell.settings.get("steps_per_shot")) for cell in cells}

    assert passes("world:signs") == {
        "coop": (10, None), "clip-lora": (10, None), "maple": (5, None), "dear": (10, None)
    }  # fmt: skip
    assert passes("photos") == {
        "coop": (200, None), "clip-lora": (10, 500), "maple": (5, None), "dear": (10, None)
    }  # fmt: skip
    assert {at for at, _ in passes("world:signs", epochs=30).values()} == {30}
    assert passes("world:signs", images_seen=400) == passes("photos")


def test_a_cell_is_a_pure_function(small, tmp_path: Path) -> None:
    cell = plan("base-to-novel", [DATA], ["dear"], [1], small)[0]
    one = run_cell(cell, _bench(), tmp_path / "one")
    used = _bench()
    run_cell(replace(cell, seed=2), used, tmp_path / "before")  # a bench that has done other things
    other = run_cell(cell, used, tmp_path / "other")
    assert _measured(one) == _measured(other)
    assert [(o.part, o.inference) for o in one.outcomes] == [
        ("base", "fusion"), ("base", "decoupled"), ("novel", "fusion"), ("novel", "decoupled"),
    ]  # fmt: skip
    assert sum(one.fusion.values()) == pytest.approx(1, abs=1e-3)
    base, novel = one.components
    assert [base.alone["cls"], novel.alone["cls"]] == [o.accuracy for o in one.outcomes[1::2]]
    assert one.outcomes[0].images == len(resolve_dataset(DATA).base().test)
    assert one.peak_memory_mb is None or one.peak_memory_mb > 10


def test_done_cells_are_not_run_again(small, tmp_path: Path, monkeypatch, capsys) -> None:
    cells = plan("few-shot", [DATA], ["zero-shot", "tip-adapter"], [1, 2], small, shots=[1, 2])
    assert len(cells) == 8
    first = run_cells(cells[:3], tmp_path, _bench())
    ran: list[Cell] = []

    def counted(cell: Cell, *rest):
        ran.append(cell)
        return run_cell(cell, *rest)

    monkeypatch.setattr("dear.bench.grid.run_cell", counted)
    every = run_cells(cells, tmp_path, _bench())
    assert ran == [cell for cell in cells[3:] if cell.method != "zero-shot"]  # which is copied: it uses no labels
    assert every[:3] == first
    assert "3 of 8 cells are done already" in capsys.readouterr().out
    assert sorted(p.stem for p in (tmp_path / "cells").iterdir()) == sorted(cell.name for cell in cells)


def test_cells_of_a_study_are_done_too(small, tmp_path: Path, monkeypatch) -> None:
    (cell,) = plan("few-shot", [DATA], ["zero-shot"], [1], small, shots=[1])
    results = run_cells([cell], tmp_path, _bench())
    (file,) = (tmp_path / CELLS).iterdir()
    file.rename(tmp_path / STUDY)
    monkeypatch.setattr("dear.bench.grid.run_cell", None)  # nothing is run
    assert run_cells([cell], tmp_path, _bench()) == results
    changed = replace(cell, settings={**cell.settings, "model": "another"})
    with pytest.raises(DearError, match=r"other settings \(model\)"):
        run_cells([changed], tmp_path, _bench())


def test_other_settings_in_the_same_folder_are_refused(small, tmp_path: Path) -> None:
    run_cells(plan("few-shot", [DATA], ["dear"], [1], small, shots=[1]), tmp_path, _bench())
    changed = plan("few-shot", [DATA], ["dear"], [1], {**small, "lr": 0.02}, shots=[1])
    with pytest.raises(DearError, match=r"other settings \(lr\): choose another --out, or add --other-settings"):
        run_cells(changed, tmp_path, _bench())
    run_cells(changed, tmp_path, _bench(), other_settings=True)
    assert len(list((tmp_path / "cells").iterdir())) == 2


def test_references_do_not_depend_on_the_recipe(small) -> None:
    other = {**small, "lr": 0.5, "epochs": 7, "beta": 0.1}
    names = [[cell.name for cell in plan("few-shot", [DATA], ["tip-adapter"], [1], c)] for c in (small, other)]
    assert names[0] == names[1]


def test_held_out_images_were_neither_drawn_nor_test(small, tmp_path: Path) -> None:
    cell = plan("base-to-novel", [DATA], ["zero-shot"], [1], small, split="held-out")[0]
    outcomes = run_cell(cell, _bench(), tmp_path).outcomes
    data = resolve_dataset(DATA)
    assert {outcome.measured for outcome in outcomes} == {"held-out"}
    assert sum(outcome.images for outcome in outcomes) == len(data.train) + len(data.val) - 2 * len(data.classes)


def test_domain_and_cross_dataset_test_on_their_targets(small, tmp_path: Path) -> None:
    targets = [f"{DATA}:sketch", "world:shapes"]
    methods = ["zero-shot", "linear-probe", "tip-adapter", "dear"]
    bench = _bench()
    for cell in plan("cross-dataset", [DATA], methods, [1], small, targets=targets):
        names = [outcome.part for outcome in run_cell(cell, bench, tmp_path / cell.method).outcomes]
        expected = [DATA, targets[0]] if cell.method == "linear-probe" else [DATA, *targets]
        assert list(dict.fromkeys(names)) == expected


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["few-shot", "--methods", "magic"], "choose from zero-shot"),
        (["domain"], "--targets"),
        (["few-shot", "--targets", "world:shapes"], "belongs to cross-dataset and domain"),
        (["domain", "--targets", "world:shapes", "--split", "held-out"], "leave --split out"),
        (["few-shot", "--seeds", "-1"], "--seeds must be from 0 to"),
        (["few-shot", "--datasets", "nowhere"], "nowhere"),
    ],
)
def test_bad_grids_are_refused(arguments: list[str], says: str, tmp_path: Path, capsys) -> None:
    assert main(["bench", *arguments, "--out", str(tmp_path / "out"), "--workers", "0"]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert len(error.strip().splitlines()) == 1


def test_a_killed_bench_goes_on_and_ends_in_the_same_results(small, tmp_path: Path) -> None:
    arguments = [
        "bench", "few-shot", "--datasets", DATA, "--methods", "zero-shot", "dear", "--seeds", "1", "--shots", "4",
        "--model", small["model"], "--roles", small["roles"], "--first-layer", "2", "--epochs", "3", "--batch", "24",
        "--workers", "0", "--device", "cpu", "--out",
    ]  # fmt: skip
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    dies_at_a_step(3, *arguments, str(killed))  # two steps an epoch
    assert len(list(killed.glob("work/*/checkpoint.safetensors"))) == 1
    assert len(list(killed.glob("cells/*.json"))) == 1  # zero-shot was finished, and is kept
    for out in (killed, whole):
        assert main([*arguments, str(out)]) == 0
    assert not any((killed / "work").iterdir())
    results = [[_measured(result) for result in results_in(out)] for out in (killed, whole)]
    assert results[0] == results[1]
    assert len(results[0]) == 2
