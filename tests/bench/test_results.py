"""Results on disk: what is read is what was written, older files among them, and damaged ones are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from dear.bench.results import parse_result, read_result, read_results, with_current_names, write_result
from dear.bench.tables import main_tables
from dear.cli import main
from dear.core.errors import DearError
from hostile import survives
from made_up import ODD, evaluation, grid, parsed, result, write


def test_the_same_cell_twice_counts_once(tmp_path: Path) -> None:
    once = result("few-shot", "a", "dear", 1, {"all": 50.0})
    again = result("few-shot", "a", "dear", 1, {"all": 60.0}) | {"finished": "2026-11-16T01:00:00Z"}
    for results in ([once, again], [again, once]):
        assert [r.evaluations[0].accuracy for r in parsed(*results)] == [60.0]


@pytest.mark.parametrize(
    ("older", "augment"),
    [
        ({"views": 1, "clean_view": False, "fixed_views": 0}, "fresh"),
        ({"views": 4, "clean_view": True, "fixed_views": 0}, "fresh"),  # TAC's
        ({"views": 1, "clean_view": False, "fixed_views": 2}, "fixed:2"),
        ({"fixed_views": 3}, "fixed:3"),  # before there were other views
        ({"views": 0, "clean_view": True, "fixed_views": 0}, "none"),
        ({"views": 0, "clean_view": True, "fixed_views": 2}, "none"),  # no view was there to be fixed
    ],
)
def test_older_settings_of_views_are_augment(older: dict[str, Any], augment: str) -> None:
    own = {"views": 4} if older.get("views") == 4 else {}
    assert with_current_names({"lr": 1, **older}) == {"lr": 1, "augment": augment, **own}
    assert with_current_names({"augment": "none", "views": 4}) == {"augment": "none", "views": 4}  # of today
    assert with_current_names({"lr": 1}) == {"lr": 1}
    scores = {"base": 80.0, "novel": 70.0}
    both = [
        result("base-to-novel", "a", "zero-shot", seed, scores, settings=settings)
        for seed, settings in ((1, older), (2, {"augment": augment, **own}))
    ]
    (table,) = main_tables(parsed(*both)).values()
    assert [(row[1], row[-1]) for row in table.cells()] == [("zero-shot", "2")]  # one row of two seeds


def test_all_results_of_this_repository_load() -> None:
    folders = sorted((Path(__file__).parents[2] / "results").iterdir())
    results = read_results(folders)
    assert {result.cell.protocol for result in results} == {"base-to-novel", "few-shot", "domain"}
    assert len(results) > 400
    assert not any("fixed_views" in result.cell.settings for result in results)


def test_a_result_is_written_as_it_is_read(tmp_path: Path) -> None:
    for value in grid():
        path = write_result(tmp_path, parse_result(value, "x"))
        assert json.loads(path.read_text()) == value
        assert read_result(path) == parse_result(value, "x")


def test_long_names_are_kept_where_short_ones_would_be_the_same() -> None:
    results = parsed(*(result("few-shot", name, "dear", 1, {"all": 50.0}) for name in ("x/pets", "y/pets")))
    assert [r.cell.dataset for r in results] == ["x/pets", "y/pets"]
    (short,) = parsed(result("few-shot", "x/pets/split.json", "dear", 1, {"all": 50.0}))
    assert short.cell.dataset == "pets"


def test_numbers_of_classes_become_names_only_if_they_fit() -> None:
    value = result("few-shot", "a", "zero-shot", 1, {"all": 50.0})
    assert parsed(value)[0].evaluations[0].confused == [(ODD, "b", 7), ("b", ODD, 3)]
    value["evaluations"][0]["confused"] = [[0, 2, 7], [2, 0, 3]]  # a class between them has no images
    assert parsed(value)[0].evaluations[0].confused == [("0", "2", 7), ("2", "0", 3)]


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda v: "{", "cannot be read as JSON"),
        (lambda v: json.dumps([]), "is damaged"),
        (lambda v: json.dumps(v | {"format": 2}), "not a result of this version"),
        (lambda v: json.dumps({k: v[k] for k in v if k != "seconds"}), "missing required field seconds"),
        (lambda v: json.dumps(v | {"evaluations": [evaluation("all", float("nan"))]}), "NaN is not a finite number"),
        (lambda v: json.dumps(v | {"cell": v["cell"] | {"protocol": "guess"}}), "invalid enum value 'guess'"),
    ],
)
def test_a_damaged_file_is_named(damage, sentence: str, tmp_path: Path, capsys) -> None:
    folder = write(tmp_path / "runs", grid()[:2])
    (folder / "cells" / "bad.json").write_text(damage(grid()[0]), encoding="utf-8")
    assert main(["report", str(folder)]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert "bad.json" in error
    assert error.count("\n") == 1


def test_half_written_files_are_passed_over(tmp_path: Path) -> None:
    folder = write(tmp_path / "runs", grid()[:2])
    (folder / "cells" / ".x.json.1.part.json").write_text("{", encoding="utf-8")
    assert len(read_results([folder])) == 2


def test_a_folder_without_cells_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(DearError, match="run `dear bench"):
        read_results([tmp_path / "nothing"])


def test_results_with_any_field_missing_or_of_another_kind() -> None:
    value = grid()[0]
    assert parsed(value)
    assert survives(parsed, value) > 300
