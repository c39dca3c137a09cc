"""A text table takes the place of a text tower: zero-shot equals the tower's, and methods work or are refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import dear
from dear.bench.grid import cell_settings, plan
from dear.bench.series import labels
from dear.cli import main
from dear.clip import load_backbone
from dear.clip.text_table import TextTable
from dear.core.errors import DearError
from dear.data.prompts import fill
from dear.data.resolve import resolve_dataset
from dear.methods.registry import METHODS, find_method, methods_for
from made_up import parsed, result

pytestmark = pytest.mark.usefixtures("few_pictures")
NEED_A_TEXT_TOWER = {
    "zero-shot-ensemble", "coop", "cocoop", "kgcoop", "prograd", "tcp", "atprompt", "textrefiner", "ivlp", "maple",
    "maple-atprompt", "promptsrc", "mmrl", "mmrlpp", "tac", "skipt",
}  # fmt: skip


@pytest.fixture(scope="module")
def vectors(model_folder: Path) -> dict[str, np.ndarray]:
    """The tower's own vector of each class, so that both must answer alike."""
    data, text = resolve_dataset("world:colors"), load_backbone(f"local-dir:{model_folder}").text
    features = text.encode([fill(data.template, name) for name in data.classes]).detach().numpy()
    return dict(zip(data.classes, features, strict=True))


def write(vectors: dict[str, np.ndarray], path: Path) -> Path:
    if path.suffix == ".json":
        path.write_text(json.dumps({name: row.tolist() for name, row in vectors.items()}))
    elif path.suffix == ".npz":
        np.savez(path, **vectors)
    elif path.suffix == ".safetensors":
        save_file({name: np.ascontiguousarray(row) for name, row in vectors.items()}, path)
    else:
        np.save(path, np.stack(list(vectors.values())))
        path.with_suffix(".json").write_text(json.dumps(list(vectors)))
    return path


@pytest.mark.parametrize("ending", ["json", "npz", "safetensors", "npy"])
def test_every_form_holds_the_same_table(vectors, tmp_path: Path, ending: str) -> None:
    table, expected = (TextTable.read(write(vectors, tmp_path / f"table.{kind}")) for kind in (ending, "npy"))
    names = list(vectors)[::-1]
    torch.testing.assert_close(table.encode(names), expected.encode(names))
    torch.testing.assert_close(table.encode([names[0].upper().replace(" ", "_")])[0], expected.encode(names)[0])
    table.save(tmp_path / "saved.safetensors")
    assert TextTable.of_adapter(tmp_path / "saved.safetensors").sha256 == table.sha256


def test_a_name_that_occurs_twice_keeps_both_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "two.npy", np.eye(3, dtype=np.float32))
    (tmp_path / "two.json").write_text('["crane", "dog", "crane"]')
    table = TextTable.read(tmp_path / "two.npy")
    assert torch.equal(table.encode(["crane", "dog", "crane"]), torch.eye(3))
    assert torch.equal(table.encode(["crane"]), torch.eye(3)[:1])


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("t.txt", "x", "it ends in .txt"),
        ("t.json", "[1]", "no table of names"),
        ("t.json", '{"a": [1, 2], "b": [1]}', "table"),
        ("t.json", '{"a": [0, 0]}', "zero or not finite"),
        ("t.json", '{"a": "b"}', "table"),
        ("t.json", "{}", "one size"),
        ("t.npz", "x", "table"),
        ("t.npy", "x", "does not exist"),
        ("t.safetensors", "x", "table"),
    ],
)
def test_other_files_are_refused_with_the_forms(tmp_path: Path, name: str, content: str, sentence: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DearError, match=sentence):
        TextTable.read(tmp_path / name)


def test_zero_shot_with_the_towers_own_vectors_is_zero_shot(model_folder, vectors, tmp_path: Path, capsys) -> None:
    command = ["zero-shot", "--model", f"local-dir:{model_folder}", "--data", "world:colors"]
    assert main(command) == 0
    tower = capsys.readouterr().out
    assert main([*command, "--text-features", str(write(vectors, tmp_path / "t.npz"))]) == 0
    assert capsys.readouterr().out == tower
    assert main([*command[:-1], "world:shapes", "--text-features", str(tmp_path / "t.npz")]) == 2
    assert "has no vector for" in capsys.readouterr().err


def test_methods_that_need_a_text_tower_name_those_that_do_not(model_folder, role_file, vectors, tmp_path) -> None:
    backbone = load_backbone(f"local-dir:{model_folder}", text_features=write(vectors, tmp_path / "t.json"))
    refused = METHODS.keys() - methods_for("full", "table")
    assert refused == NEED_A_TEXT_TOWER
    assert set(methods_for("full", "full")) == set(METHODS)
    for name in METHODS:
        config = find_method(name).Config.pick({"roles": str(role_file), "first_layer": 2})
        if name not in refused:
            find_method(name)(backbone, config)
        else:
            with pytest.raises(DearError, match=rf"^{name} needs a text tower.*choose --method from zero-shot, "):
                find_method(name)(backbone, config)
    with pytest.raises(DearError, match="have 32 numbers, but the features of dear-mini"):
        load_backbone(text_features=tmp_path / "t.json")


@pytest.mark.parametrize("method", ["dear", "experts", "clip-lora", "2sfs", "clip-svd", "tip-adapter"])
def test_a_run_keeps_its_table(method: str, model_folder, role_file, vectors, tmp_path: Path, capsys) -> None:
    file = write(vectors, tmp_path / "t.npy")
    of_method = ["--roles", str(role_file), "--first-layer", "2"] if method in ("dear", "experts") else []
    command = [
        "train", "--method", method, "--model", f"local-dir:{model_folder}", "--data", "world:colors", "--shots", "2",
        "--out", str(tmp_path / "run"), "--text-features", str(file), *of_method,
        *(["--epochs", "1"] if method != "tip-adapter" else []),
    ]  # fmt: skip
    assert main(command) == 0, capsys.readouterr().err
    file.unlink()
    model = dear.load(tmp_path / "run")
    assert not any(key.startswith("text_") for key in model.model.state_dict())
    data = resolve_dataset("world:colors")
    answer = model.predict(data.test[0].picture.open())
    assert answer.choice in data.classes
    with pytest.raises(DearError, match="has no vector for 'dragon'"):
        dear.load(tmp_path / "run", classes=["dragon"])
    table = tmp_path / "run" / "adapter_text_features.safetensors"
    TextTable(list(vectors), torch.randn(len(vectors), 32), "other").save(table)
    with pytest.raises(DearError, match="another text table"):
        dear.load(tmp_path / "run")


def test_a_cell_is_named_by_the_tables_content(vectors, tmp_path: Path) -> None:
    one, moved = (str(write(vectors, tmp_path / name)) for name in ("one.npz", "moved.npz"))
    changed = str(write({name: row[::-1].copy() for name, row in vectors.items()}, tmp_path / "changed.npz"))

    def name(**settings: str) -> str:
        return plan("few-shot", ["world:colors"], ["zero-shot"], [1], settings, [1])[0].name

    assert name(text_features=one) == name(text_features=moved)
    assert len({name(), name(text_features=one), name(text_features=changed)}) == 3
    assert "text_features" not in cell_settings("zero-shot", "few-shot", {})


def test_reports_tell_rows_with_a_table_apart_but_not_its_files() -> None:
    cells = [
        result("base-to-novel", data, "zero-shot", 1, {"base": 1.0}, settings=table)
        for data in ("one", "two")
        for table in ({}, {"text_features": f"{data}.npy", "text_features_sha256": data})
    ]
    found = labels(parsed(*cells))
    assert found == ["zero-shot (text_features unset)", "zero-shot (text_features table)"] * 2
