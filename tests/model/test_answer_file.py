"""`dear predict --out`: one line per image, whatever happens in between."""

import json
import shutil

import pytest

from dear.cli import main
from dear.data.world.tasks import world_task


@pytest.fixture
def photos(tmp_path):
    for number, example in enumerate(world_task("colors").test[::60]):
        (tmp_path / "photos").mkdir(exist_ok=True)
        example.picture.open().save(tmp_path / "photos" / f"{number}.png")
    return tmp_path / "photos"


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_cut_file_is_completed_and_another_model_is_refused(suffix, photos, finished_run, tmp_path, capsys) -> None:
    out, command = tmp_path / f"answers.{suffix}", ["predict", str(finished_run), str(photos), "--device", "cpu"]
    assert main([*command, "--out", str(out)]) == 0
    whole = out.read_text()
    lines = whole.splitlines()
    assert len(lines) == len(list(photos.iterdir())) + (suffix == "csv")
    for cut in (0, len(lines[0]) + 1, len(whole) // 2, len(whole) - 3):
        out.write_text(whole[:cut])
        assert main([*command, "--out", str(out)]) == 0
        again = out.read_text().splitlines()
        key = ["path", "choice"]
        if suffix == "csv":
            assert again == lines, f"cut after {cut} letters"
        else:  # the last digits depend on the batch
            assert [[json.loads(x)[k] for k in key] for x in again] == [[json.loads(x)[k] for k in key] for x in lines]
    whole = out.read_text()
    capsys.readouterr()
    assert main([*command, "--out", str(out)]) == 0
    assert f"{len(list(photos.iterdir()))} of" in capsys.readouterr().out
    assert main([*command, "--topk", "1", "--out", str(out)]) == 2
    assert "another model or other settings" in capsys.readouterr().err
    assert out.read_text() == whole
    if suffix == "jsonl":
        assert {"path", "choice", "probability", "model"} <= json.loads(lines[0]).keys()
    shutil.copy(photos / "0.png", tmp_path / f"no.{suffix}")
    assert main([*command, "--out", str(tmp_path / f"no.{suffix}")]) == 2
    assert main([*command, "--out", str(tmp_path / "x.txt")]) == 2
