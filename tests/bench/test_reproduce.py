"""dear reproduce: the plan, its cost, a run from end to end, and verdicts against numbers made up for the purpose."""

import math
from statistics import stdev

import pytest
from msgspec.structs import replace

from dear.bench import reproduce
from dear.bench.paper import METHODS_OF_PAPER, compare_with_paper, printed, summary_line
from dear.bench.planning import IMAGE_FLOPS, TEXT_FLOPS, cell_flops, disk_megabytes, gpu_hours
from dear.bench.reproduce import REPRODUCTIONS, find_reproduction, reproduction_cells
from dear.bench.results import Cell, CellResult, write_result
from dear.cli import main
from dear.core.errors import DearError
from dear.data.known import find_known
from dear.methods.registry import METHODS
from dear.trials.paired import LEVEL
from made_up import finished as made
from made_up import outcome

pytestmark = pytest.mark.usefixtures("few_test_pictures")


def cells(name: str, subset: bool = False, methods=()) -> list[Cell]:
    return reproduction_cells(find_reproduction(name), subset, [1, 2, 3], methods, {})


def test_every_method_of_the_paper_is_known():
    assert set(METHODS_OF_PAPER) == set(printed()["base_to_novel"])
    assert set(METHODS_OF_PAPER.values()) <= METHODS.keys()


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("table2", 3 * 11 * 13), ("table3", 3 * 6), ("table4", 3 * 6), ("table5", 3 * 11 * 3), ("table6", 3 * 11 * 3),
        ("figure4", 3 * 11 * (5 * 6 + 1)), ("figure5", 3 * 11 * (5 * 6 + 1)),
    ],
)  # fmt: skip
def test_plans_at_full_size(name, count):
    planned = cells(name)
    assert len({cell.name for cell in planned}) == count
    assert {(cell.settings["model"], cell.settings["pretrained"]) for cell in planned} == {("ViT-B-16", "openai")}
    assert {cell.settings["roles"] for cell in planned if cell.method == "dear"} == {"paper"}
    assert gpu_hours(planned) > 0
    assert disk_megabytes(planned) > 150_000  # ImageNet is in all of them


def test_every_method_that_runs():
    assert {cell.method for cell in cells("table2", methods=list(METHODS))} == METHODS.keys()


def test_the_cost_of_a_cell_by_hand():
    zero, coop = (
        next(c for c in cells("table2") if (c.method, c.dataset) == (m, "DTD")) for m in ("zero-shot", "coop")
    )
    entry = find_known("DTD")
    tested = entry.image_counts[2] * IMAGE_FLOPS + 47 * TEXT_FLOPS
    assert cell_flops(zero) == tested + 16 * 24 * IMAGE_FLOPS
    seen = 16 * 24 * coop.settings["epochs"]
    steps = seen / coop.settings["batch"]
    assert cell_flops(coop) == pytest.approx(tested + 3 * (seen * IMAGE_FLOPS + steps * 24 * TEXT_FLOPS))
    assert cell_flops(cells("table2", subset=True)[0]) is None


@pytest.mark.parametrize("name", ["table 2", "Table2", "fig4", "Figure 4"])
def test_names(name):
    assert find_reproduction(name) is REPRODUCTIONS["table2" if "2" in name else "figure4"]


def test_an_unknown_table():
    with pytest.raises(DearError, match="choose from table1, table2"):
        find_reproduction("table7")


def finished(cell: Cell, base: float, novel: float) -> CellResult:
    """A result with these accuracies on as many images as the dataset has."""
    images = find_known(cell.dataset).image_counts[2]
    return made(cell, [outcome("base", base, "fusion", 1000), outcome("novel", novel, "fusion", images - 1000)])


def verdicts(results) -> dict[tuple[str, str], str]:
    return {(one.dataset, one.number): one.verdict for one in compare_with_paper(results)}


def test_verdicts_follow_the_noise_of_the_seeds():
    paper = printed()["base_to_novel"]["DeAR"]["DTD"]
    own = [c for c in cells("table2") if (c.method, c.dataset) == ("dear", "DTD")]
    spread = (-0.5, 0.0, 0.5)
    same = [finished(c, paper["base"] + s, paper["novel"] + s) for c, s in zip(own, spread, strict=True)]
    assert verdicts(same)["DTD", "base"] == "level"
    noise = 4.303 * stdev(spread) * math.sqrt(2 / 3) + 0.05
    assert noise < LEVEL
    for shift, verdict in (
        (LEVEL - noise - 0.01, "level"), (LEVEL - noise + 0.01, "undecided"), (noise - 0.01, "undecided"),
        (noise + 0.01, "ahead"), (-noise - 0.01, "behind"),
    ):  # fmt: skip
        moved = [finished(c, paper["base"] + s + shift, 50.0) for c, s in zip(own, spread, strict=True)]
        assert verdicts(moved)["DTD", "base"] == verdict
    assert verdicts(same[:1])["DTD", "base"] == "undecided: one seed"
    assert verdicts(same)["Average", "HM"] == "not comparable: 1 of 11 datasets"
    assert summary_line(compare_with_paper(same)) == "of 6 numbers: 3 level, 3 not comparable"


def test_other_images_or_another_backbone_are_not_compared():
    cell = next(c for c in cells("table2") if (c.method, c.dataset) == ("dear", "DTD"))
    fewer = finished(cell, 80.0, 60.0)
    fewer = replace(fewer, outcomes=[outcome(one.part, 80.0, "fusion", 10) for one in fewer.outcomes])
    assert verdicts([fewer])["DTD", "base"] == "not comparable: not the published test images"
    other = finished(replace(cell, settings=cell.settings | {"model": "ViT-L-14"}), 80.0, 60.0)
    assert verdicts([other])["DTD", "base"] == "not comparable: backbone ViT-L-14"


def test_ablations_are_compared_on_the_average_of_eleven():
    results = [finished(c, 85.0 + c.seed, 79.0) for c in cells("table5")]
    found = {(one.method, one.number): one for one in compare_with_paper(results)}
    assert {method for method, _ in found} == {"DeAR", "all mixed", "all generalization"}
    assert found["all mixed", "novel"].paper == 76.98
    assert found["all mixed", "novel"].verdict == "ahead"
    assert found["DeAR", "base"].ours.mean == pytest.approx(87.0)
    assert found["DeAR", "base"].verdict == "undecided"


def test_transfer_is_compared_target_by_target():
    places = {"ImageNet": 50000, "ImageNetV2": 10000, "ImageNet-Sketch": 50889, "ImageNet-A": 7500, "ImageNet-R": 30000}
    results = [
        made(cell, [outcome(name, 60.0 + cell.seed, "decoupled", images) for name, images in places.items()])
        for cell in cells("table4")
        if cell.method == "dear"
    ]
    found = verdicts(results)
    assert set(found) == {(name, "accuracy") for name in ("source_imagenet", "average", "V2", "Sketch", "A", "R")}
    assert found["V2", "accuracy"] == "undecided"
    assert found["Sketch", "accuracy"] == "ahead"


def test_the_subset_runs_to_its_page(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(reproduce, "SUBSET", dict(reproduce.SUBSET) | {"epochs": 1})
    asked = ["reproduce", "table2", "--subset", "--methods", "zero-shot", "coop", "--seeds", "1"]
    assert main([*asked, "--dry-run"]) == 0
    assert main(asked) == 2
    assert "--out DIR" in capsys.readouterr().err
    asked += ["--out", str(tmp_path)]
    assert main(asked) == 0
    out = capsys.readouterr().out
    assert "of 6 numbers: 6 not comparable" in out
    page = (tmp_path / "report" / "results.html").read_text()
    assert "table2, beside the paper" in page
    assert "not comparable: backbone dear-mini" in page
    assert main(asked) == 2
    assert "--resume" in capsys.readouterr().err
    assert main([*asked, "--resume"]) == 0
    assert "2 of 2 cells are done already" in capsys.readouterr().out


def test_results_of_others_are_judged_with_ours(tmp_path, capsys):
    """A file that somebody contributes is a cell of the right name in the folder `cells`."""
    for cell in [c for c in cells("table2") if (c.method, c.dataset) == ("dear", "DTD")]:
        write_result(tmp_path, finished(cell, 83.82, 60.0))
    assert main(["report", str(tmp_path)]) == 0
    assert "83.8" in capsys.readouterr().out


def test_heads(tmp_path, capsys):
    assert main(["reproduce", "table1", "--subset", "--out", str(tmp_path)]) == 0
    assert "L12 H7" in capsys.readouterr().out
    assert "table1, beside the paper" in (tmp_path / "report" / "results.html").read_text()
