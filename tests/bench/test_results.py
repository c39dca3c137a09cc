"""Results on disk: what is read is what was written, in files and in studies, and damaged ones are refused."""

import json
from pathlib import Path

import pytest

from dear.bench.results import CELLS, parse_result, read_results, result_path, results_in, write_result
from dear.cli import main
from dear.core.errors import DearError
from hostile import survives
from made_up import grid, json_of, outcome, parsed, result, write


def test_the_same_cell_twice_counts_once() -> None:
    once = result("few-shot", "a", "dear", 1, {"all": 50.0})
    again = result("few-shot", "a", "dear", 1, {"all": 60.0}, finished="2026-11-16T01:00:00Z")
    for results in ([once, again], [again, once]):
        assert [r.outcomes[0].accuracy for r in parsed(*results)] == [60.0]


def test_all_results_of_this_repository_load() -> None:
    folders = sorted((Path(__file__).parents[2] / "results").iterdir())
    results = read_results(folders)
    assert {one.cell.protocol for one in results} == {"base-to-novel", "few-shot", "domain"}
    assert sum(len(results_in(folder)) for folder in folders) == 1178
    for one in results:
        for part in one.outcomes:
            assert 100 * part.answers.mean() == pytest.approx(part.accuracy, abs=1e-4)


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    for value in grid():
        write_result(tmp_path, value)
        path = result_path(tmp_path, value.cell)
        assert json.loads(path.read_text()) == json_of(value)
        assert parse_result(path.read_text(), "x") == value


def test_a_study_is_its_files_one_after_the_other(tmp_path: Path) -> None:
    for value in grid():
        write_result(tmp_path / "files", value)
    files = sorted((tmp_path / "files" / CELLS).iterdir())
    study = tmp_path / "study"
    study.mkdir()
    (study / "cells.jsonl").write_text("".join(path.read_text() for path in files))
    assert results_in(study) == results_in(tmp_path / "files")
    more = result("few-shot", "more\u2028", "dear", 1, {"all": 60.0})
    write_result(study, more)
    assert results_in(study) == [*results_in(tmp_path / "files"), more]


def test_long_names_are_kept_where_short_ones_would_be_the_same() -> None:
    results = parsed(*(result("few-shot", name, "dear", 1, {"all": 50.0}) for name in ("x/pets", "y/pets")))
    assert [r.cell.dataset for r in results] == ["x/pets", "y/pets"]
    (short,) = parsed(result("few-shot", "x/pets/split.json", "dear", 1, {"all": 50.0}))
    assert short.cell.dataset == "pets"


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda v: "{", "is damaged (expecting property name"),
        (lambda v: "", "is damaged (expecting value"),
        (lambda v: json.dumps([]), "is damaged"),
        (lambda v: json.dumps(v | {"format": 1}), "not a result of this version"),
        (lambda v: json.dumps({k: v[k] for k in v if k != "seconds"}), "missing required field seconds"),
        (lambda v: json.dumps(v | {"trained_parameters": float("nan")}), "NaN is not a finite number"),
        (lambda v: json.dumps(v | {"cell": v["cell"] | {"protocol": "guess"}}), "invalid enum value 'guess'"),
    ],
)
@pytest.mark.parametrize("where", ["cells/bad.json", "cells.jsonl, line 3"])
def test_a_damaged_result_is_named(damage, sentence: str, where: str, tmp_path: Path, capsys) -> None:
    folder = write(tmp_path / "runs", grid()[:2])
    text = damage(json_of(grid()[0]))
    if "line" in where:
        with (folder / "cells.jsonl").open("a") as file:
            file.write(f"{text}\n{json.dumps(json_of(grid()[3]))}\n")
    else:
        (folder / CELLS).mkdir()
        (folder / where).write_text(text)
    assert main(["report", str(folder)]) == 2
    error = capsys.readouterr().err
    assert sentence.lower() in error.lower()
    assert f"{folder / where} is" in error
    assert error.count("\n") == 1


def test_half_written_files_are_passed_over(tmp_path: Path) -> None:
    folder = write(tmp_path / "runs", grid()[:2])
    (folder / CELLS).mkdir()
    (folder / CELLS / ".x.json.1.part.json").write_text("{", encoding="utf-8")
    assert len(read_results([folder])) == 2


def test_a_folder_without_cells_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(DearError, match="run `dear bench"):
        read_results([tmp_path / "nothing"])


def test_results_with_any_field_missing_or_of_another_kind() -> None:
    def read(value: object) -> object:
        return parsed(parse_result(json.dumps(value), "x"))

    value = json_of(grid()[0])
    assert read(value)
    assert survives(read, value) > 300


def test_answers_say_which_images_were_right() -> None:
    assert outcome("all", 30.0, images=10).answers.tolist() == [1, 1, 1, 0, 0, 0, 0, 0, 0, 0]
