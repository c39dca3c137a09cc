"""An exported model is served as its run would be, without PyTorch."""

import math
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

import dear
from dear.cli import main
from dear.core.errors import DearError
from dear.core.files import read_json, write_json
from dear.data.world.tasks import world_task
from dear.model.export.folder import ExportFolder
from dear.server.api import Service
from dear.server.engines import OnnxEngine, TorchEngine, open_engine
from hostile import survives

WITHOUT_TORCH = """
import sys
from PIL import Image

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchvision", "open_clip", "safetensors", "onnx"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
from dear.cli import main
from dear.server.api import Service
from dear.server.server import Address

open_service, opened = Service.open, []

def answer_one(address, app):
    pixels = opened[0].engine.pixels(Image.new("RGB", (40, 30), "red"))
    print(opened[0].model.answers([pixels], 1, "fusion").result(60)[0].choice)

Service.open = lambda *given: opened.append(open_service(*given)) or opened[0]
Address.serve = answer_one
sys.exit(main(["serve", sys.argv[1], "--port", "0"]))
"""


@pytest.fixture(scope="module")
def engines(exported, exported_run):
    return open_engine(exported), TorchEngine(dear.load(exported_run, device="cpu"))


@pytest.mark.parametrize("inference", ["fusion", "decoupled"])
def test_it_answers_as_the_run_does(engines, inference: str) -> None:
    pictures = [example.picture.open() for example in world_task("colors").test[:120:20]]
    (mine, theirs) = ([engine.pixels(picture) for picture in pictures] for engine in engines)
    onnx, torch = engines
    assert isinstance(onnx, OnnxEngine)
    assert (onnx.classes, onnx.components, onnx.inferences) == (torch.classes, torch.components, torch.inferences)
    assert onnx.features(onnx.forward(mine)) == pytest.approx(torch.features(torch.forward(theirs)).numpy(), abs=1e-4)
    for answer, expected in zip(
        onnx.answers(onnx.forward(mine), 4, inference), torch.answers(torch.forward(theirs), 4, inference), strict=True
    ):
        assert answer.choice == expected.choice
        assert dict(answer.top) == pytest.approx(dict(expected.top), abs=1e-3)
        for a, b in zip(answer.votes, expected.votes, strict=True):
            assert asdict(a) == pytest.approx(asdict(b), abs=1e-3)


def test_pytorch_is_not_needed(exported) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(exported)], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] in read_json(exported / "model.json")["classes"]


def test_requests_it_cannot_answer_are_refused(engines, exported, tmp_path) -> None:
    with pytest.raises(DearError, match="no text side"):
        engines[0].encode_text(["a sign"])
    with pytest.raises(DearError, match="without a gallery"):
        Service.open(exported, tmp_path)


@pytest.fixture
def copied(exported, tmp_path) -> ExportFolder:
    return ExportFolder(shutil.copytree(exported, tmp_path / "copy"))


@pytest.mark.parametrize("wrong", [[], {}, {"format": 1}, {"format": 9}, None])
def test_a_damaged_description_is_refused(copied, wrong) -> None:
    write_json(copied.info, wrong)
    with pytest.raises(DearError, match="export the run again"):
        open_engine(copied.path)


@pytest.mark.parametrize("name", ["model.onnx", "text_features.npy"])
def test_damaged_missing_and_foreign_files_are_refused_by_all(copied, name: str, capsys) -> None:
    file = copied.path / name
    whole = file.read_bytes()
    changes = {"cut": whole[:1000], "flipped": whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:], "longer": whole + b"x"}
    for content in changes.values():
        file.write_bytes(content)
        with pytest.raises(DearError, match="export the run again"):
            open_engine(copied.path)
        assert main(["doctor", str(copied.path)]) == 2
        assert "checksum differs" in capsys.readouterr().out
    file.write_bytes(changes["cut"])
    copied.write_info(read_json(copied.info))  # by somebody who can write checksums
    with pytest.raises(DearError, match=r"is damaged .*: export the run again"):
        open_engine(copied.path)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(DearError, match="not a regular file"):
        open_engine(copied.path)


def test_classes_in_another_order_are_refused(copied) -> None:
    about = read_json(copied.info)
    write_json(copied.info, {**about, "classes": about["classes"][::-1]})
    with pytest.raises(DearError, match="do not belong together"):
        copied.open()


def test_any_change_of_the_description_is_refused_or_answers(copied, monkeypatch) -> None:
    """The checksum fits the changed file; whatever is opened must answer a request."""
    session = copied.open().session  # opening it is most of the time
    monkeypatch.setattr("dear.model.export.folder.open_session", lambda path: session)
    about = read_json(copied.info)
    about["compared"]["models"] = about["compared"]["models"][:1]
    picture = Image.new("RGB", (50, 40), "red")

    def use(changed: Any) -> object:
        if not isinstance(changed, dict):
            write_json(copied.info, changed)
            return copied.open()
        copied.write_info(changed)
        engine = OnnxEngine(copied.path)
        answers = engine.answers(engine.forward([engine.pixels(picture)]), 3, engine.inferences[0])
        assert all(math.isfinite(p) for _, p in answers[0].top)
        return answers

    use(about)
    assert survives(use, about, [None, -1, 0, 10**9, 16000, 0.5, 1e-300, 1e300, "x", [], {"a": 1}]) > 250
    for number in ("1e400", "-1e400", "NaN", "Infinity"):
        for field in ('"temperature": ', '"std": [\n   ', '"fusion_weights": [\n  '):
            copied.write_info(about)
            text = copied.info.read_text()
            start = text.index(field) + len(field)
            copied.info.write_text(text[:start] + number + text[start:].lstrip("-0123456789.e"))
            with pytest.raises(DearError, match="is not a finite number"):
                copied.open()


@pytest.mark.parametrize("odd", ["nan", "infinite", "wide", "short", "flat", "double", "objects"])
def test_text_features_that_no_export_has_are_refused(copied, odd: str) -> None:
    text = np.load(copied.text)
    changed = {
        "nan": np.full_like(text, np.nan), "infinite": text * np.inf, "wide": np.concatenate([text, text], 1),
        "short": text[:-1], "flat": text[0], "double": text.astype(np.float64), "objects": text.astype(object),
    }[odd]  # fmt: skip
    np.save(copied.text, changed)
    copied.write_info(read_json(copied.info))
    with pytest.raises(DearError, match=r"is damaged .*: export the run again"):
        copied.open()
