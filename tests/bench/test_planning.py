"""Plans of grids: cells that are left out, copied and run first."""

from pathlib import Path

from PIL import Image

from dear.bench.grid import plan, run_cells
from dear.bench.planning import GridPlan, constant_key
from dear.bench.run_cell import Workbench, run_cell


def photos(folder: Path, each: int) -> str:
    for color in ("red", "green"):
        for i in range(each):
            path = folder / color / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (24, 24), color).save(path)
    return str(folder)


def test_shots_that_no_class_has_are_left_out_and_cheap_cells_come_first(small, tmp_path: Path) -> None:
    data = photos(tmp_path / "photos", 8)  # six of them to train on
    cells = plan("few-shot", [data], ["dear", "zero-shot", "tip-adapter"], [1, 2], small, shots=[1, 2, 4, 8, 16])
    grid = GridPlan(cells, Workbench(device="cpu", workers=0))
    assert sorted({cell.shots for cell in grid.cells}) == [1, 2, 4, 8]
    assert all(cell.settings["divided"] == "75/0/25" for cell in grid.cells)
    trained = [cell.method == "dear" for cell in grid.cells]
    assert trained == sorted(trained)
    text = grid.describe(set())
    assert "no class has more than 6 training images: no 16 shots" in text
    assert "24 cells: 1 dataset, 3 methods, 2 seeds, shots 1, 2, 4, 8; 7 of them are equal to another" in text


def test_a_copy_equals_what_would_have_been_measured(small, tmp_path: Path) -> None:
    data = photos(tmp_path / "photos", 8)
    bench = Workbench(device="cpu", workers=0)
    cells = plan("few-shot", [data], ["zero-shot", "tip-adapter"], [1, 2], small, shots=[1, 2])
    assert len({constant_key(cell) for cell in cells if cell.method == "zero-shot"}) == 1
    assert {constant_key(cell) for cell in cells if cell.method == "tip-adapter"} == {None}
    results = run_cells(cells, tmp_path / "out", bench)
    assert [result.cell for result in results] == cells
    for cell, result in zip(cells, results, strict=True):
        again = run_cell(cell, bench, tmp_path / "work")
        assert again.outcomes == result.outcomes
    held_out = plan("few-shot", [data], ["zero-shot"], [1], small, shots=[1], split="held-out")
    assert constant_key(held_out[0]) is None  # its images depend on the draw
