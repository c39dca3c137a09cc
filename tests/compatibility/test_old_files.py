"""Files that the code before the redesign (commit d8e20ef) wrote load and answer as they did then."""

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dear
from dear.cli import main
from dear.core.errors import DearError
from dear.data.resolve import resolve_dataset
from dear.heads.role_map import RoleMap
from dear.model import train
from dear.training.adapter import CONFIG, component_names, read_config
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


def test_a_role_map_loads() -> None:
    file = FILES / "rolemap_dear-mini.json"
    assert RoleMap.load(file).to_json() == json.loads(file.read_text())


def test_an_unfinished_run_continues_as_it_would_have_then(tmp_path: Path, capsys, monkeypatch) -> None:
    """Of commit 5592773, ended after its first epoch. Its settings have the precision "auto", which was fp32 on a CPU,
    and no settings that came later."""
    whole = resolve_dataset("world:colors")
    monkeypatch.setattr(train, "resolve_dataset", lambda *_: replace(whole, test=whole.test[:12]))
    monkeypatch.setattr(train, "simple_methods", list)
    shutil.copytree(FILES / "old-unfinished", tmp_path / "run")
    flags = "--method coop --data world:colors --shots 1 --epochs 2 --warmup-epochs 0 --device cpu --resume --out"
    assert main(["train", *flags.split(), str(tmp_path / "run"), "--lr", "0.1"]) == 2
    assert "other settings (lr)" in capsys.readouterr().err
    assert main(["train", *flags.split(), str(tmp_path / "run")]) == 0
    run = RunFolder(tmp_path / "run")
    assert run.history()[1]["loss"] == pytest.approx(0.016277950257062912, rel=1e-4)  # as commit 5592773 went on
    assert run.settings()["precision"] == "fp32"


@pytest.mark.parametrize(
    ("stored", "asked", "refused"),
    [
        ({"precision": "auto", "device": "cpu"}, "fp32", False),
        ({"precision": "auto", "device": "cpu"}, "bf16", True),
        ({"device": "cpu"}, "fp32", False),
        ({"precision": "auto", "device": "auto"}, "bf16", False),  # it may have been on a GPU
        ({"precision": "fp32", "device": "auto"}, "bf16", True),
    ],
)
def test_a_run_goes_on_in_the_precision_that_it_had(stored, asked: str, refused: bool, tmp_path: Path) -> None:
    for name in ("config.json", "checkpoint.safetensors"):
        shutil.copy(FILES / "old-unfinished" / name, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"method": "coop", **stored}))
    with pytest.raises(DearError, match=r"other settings \(precision\)") if refused else nullcontext():
        RunFolder(tmp_path).check_free({"method": "coop", "precision": asked, "device": "cpu"}, resume=True)
