"""Files that the code before the redesign (commit d8e20ef) wrote load and answer as they did then."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dear
from dear.cli import main
from dear.heads.role_map import RoleMap
from dear.model.adapter import CONFIG, component_names, read_config
from dear.training.run_folder import RunFolder

FILES = Path(__file__).parent / "files"
ATTRIBUTES = ["color", "shape", "texture", "object", "location"]
COMPONENTS = {
    "dear": ["cls", *ATTRIBUTES],
    "experts": ["cls", *ATTRIBUTES, "rest"],
    "tip-adapter": ["cls"],
    "linear-probe": ["cls"],
}


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def numbers(answer: dict[str, Any]) -> np.ndarray:
    votes = [vote[key] for vote in answer["votes"] for key in ("weight", "probability", "for_answer", "lead")]
    return np.array([answer["probability"], *(probability for _, probability in answer["top"]), *votes])


@pytest.mark.parametrize("method", COMPONENTS)
def test_adapters_answer_as_recorded(method: str) -> None:
    model = dear.load(FILES / f"old-{method}", device="cpu")
    recorded = rows(FILES / f"predict-{method}.jsonl")
    assert list(model.model.components) == COMPONENTS[method]
    answers = model.predict([FILES / row["path"] for row in recorded])
    for answer, expected in zip(answers, recorded, strict=True):
        actual = json.loads(json.dumps(answer.to_json()))
        assert [vote["component"] for vote in actual["votes"]] == COMPONENTS[method]
        assert [vote["choice"] for vote in actual["votes"]] == [vote["choice"] for vote in expected["votes"]]
        assert [name for name, _ in actual["top"]] == [name for name, _ in expected["top"]]
        np.testing.assert_allclose(numbers(actual), numbers(expected), rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", COMPONENTS)
def test_runs_are_read(method: str) -> None:
    run = RunFolder(FILES / f"old-{method}")
    assert run.is_finished
    assert run.settings()["data"] == "world:colors"
    assert 0 <= run.test()["all"] <= 100
    trained = method in ("dear", "experts")
    assert [len(record["fusion"]) for record in run.history()] == [len(COMPONENTS[method])] * trained


def test_component_names_are_guessed_where_an_adapter_has_none() -> None:
    """Right for dear; for experts, whose own names only the model knows, saving it again stores them."""
    config = read_config(FILES / "old-dear")
    assert "components" not in config
    assert list(component_names(config)) == COMPONENTS["dear"]


def test_an_old_adapter_is_saved_as_a_new_one(tmp_path: Path) -> None:
    model = dear.load(FILES / "old-experts", device="cpu")
    model.save(tmp_path / "new")
    config = json.loads((tmp_path / "new" / CONFIG).read_text())
    assert config["components"] == COMPONENTS["experts"]
    assert "facts" not in config
    picture = FILES / "pics" / "0.png"
    assert dear.load(tmp_path / "new", device="cpu").predict(picture) == model.predict(picture)


def test_a_gallery_is_searched_as_recorded(tmp_path: Path, capsys) -> None:
    pytest.importorskip("lancedb")
    shutil.copytree(FILES / "gallery", tmp_path / "gallery")
    assert main(["search", str(tmp_path / "gallery"), "--text", "something red", "--by", "color", "--json"]) == 0
    hits = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    recorded = rows(FILES / "search.jsonl")
    assert [(hit["rank"], hit["path"], hit["label"]) for hit in hits] == [
        (hit["rank"], hit["path"], hit["label"]) for hit in recorded
    ]
    np.testing.assert_allclose([hit["score"] for hit in hits], [hit["score"] for hit in recorded], rtol=0, atol=1e-5)


def test_results_are_reported(tmp_path: Path, capsys) -> None:
    assert main(["report", str(FILES / "benchmark"), "--out", str(tmp_path / "report"), "--json"]) == 0
    table = json.loads(capsys.readouterr().out)["Base to novel"]
    reported = {row["method"]: (row["base"]["mean"], row["novel"]["mean"]) for row in table}
    recorded = {}
    for file in (FILES / "benchmark" / "cells").iterdir():
        value = json.loads(file.read_text())
        base, novel = (evaluation["accuracy"] for evaluation in value["evaluations"][:2])
        recorded[value["cell"]["method"]] = (base, novel)
    assert reported == recorded
    assert recorded.keys() == {"dear", "zero-shot"}


def test_a_role_map_loads() -> None:
    file = FILES / "rolemap_dear-mini.json"
    assert RoleMap.load(file).to_json() == json.loads(file.read_text())
