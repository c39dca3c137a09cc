"""A SigLIP-shaped model from the command line: train, predict, explain, roles, index, search, export."""

import json
from pathlib import Path

import pytest

from dear.cli import main
from dear.clip import load
from dear.data.resolve import resolve_dataset
from small_models import WHOLE, WordTokenizer, config_of, save_model, small

pytestmark = pytest.mark.usefixtures("few_pictures")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    """A small SigLIP as an OpenCLIP folder; its tokenizer would come from the hub."""
    model = small("SigLIP", **WHOLE["SigLIP"][0]).model.float()
    config = config_of("SigLIP", **WHOLE["SigLIP"][0]) | {"custom_text": True}
    monkeypatch.setattr(load, "_tokenizer", lambda _: WordTokenizer(20))
    return save_model(tmp_path / "model", config, model, mean=[0.5] * 3, std=[0.5] * 3, resize_mode="squash")


def run(capsys, *arguments: object) -> str:
    code = main([str(argument) for argument in arguments])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    return shown.out


def test_siglip_from_roles_to_export(folder: Path, tmp_path: Path, capsys) -> None:
    model = f"local-dir:{folder}"
    assert "world:colors" in run(capsys, "zero-shot", "--model", model, "--data", "world:colors")
    roles, out = tmp_path / "roles.json", tmp_path / "run"
    run(capsys, "roles", "--model", model, "--limit", 60, "--first-layer", 2, "--out", roles)
    found = json.loads(roles.read_text())
    assert (found["layers"], found["heads"]) == ([2, 3], 4)
    # Random weights give hardly any head a role: set some, so that there are tokens to learn.
    for number, head in enumerate(found["roles"]["3"].values()):
        head |= {"role": "core_attribute", "concept": ("color", "shape")[number % 2]}
    roles.write_text(json.dumps(found))
    for method in ("experts", "dear"):
        run(
            capsys, "train", "--method", method, "--model", model, "--data", "world:colors", "--shots", 2,
            "--epochs", 1, "--roles", roles, "--first-layer", 2, "--out", out / method,
        )  # fmt: skip
    picture = tmp_path / "picture.png"
    resolve_dataset("world:colors").test[0].picture.open().save(picture)
    assert "picture.png" in run(capsys, "predict", out / "experts", picture)
    run(capsys, "explain", out / "experts", picture, "--out", tmp_path / "why.png")
    assert (tmp_path / "why.png").stat().st_size > 10_000
    run(capsys, "index", picture, "--model", model, "--roles", roles, "--out", tmp_path / "gallery")
    hits = run(capsys, "search", tmp_path / "gallery", "--image", picture, "--by", "color")
    assert "picture.png" in hits
    run(capsys, "export", out / "dear", "--onnx", tmp_path / "onnx", "--check", 3)
    assert (tmp_path / "onnx" / "model.onnx").is_file()
