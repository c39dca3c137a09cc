"""An exported model is served as its run would be, without PyTorch."""

import shutil
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

import dear
from dear.core.errors import DearError
from dear.core.files import read_json, write_json
from dear.data.world.tasks import world_task
from dear.model.export.folder import ExportFolder
from dear.server.api import Service
from dear.server.engines import OnnxEngine, TorchEngine, open_engine
from hostile import survives

WITHOUT_TORCH = """
import io, sys
from pathlib import Path
from PIL import Image

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchvision", "open_clip", "safetensors", "onnx"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
from dear.server.api import Service
from dear.server.server import make_app

service = Service.open(Path(sys.argv[1]), None)
make_app(service, None)
pixels = service.engine.pixels(Image.new("RGB", (40, 30), "red"))
print(service.model.answers([pixels], 1, "fusion").result(60)[0].choice)
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
        [sys.executable, "-c", WITHOUT_TORCH, str(exported)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in read_json(exported / "model.json")["classes"]


def test_requests_it_cannot_answer_are_refused(engines, exported, tmp_path) -> None:
    with pytest.raises(DearError, match="no text side"):
        engines[0].encode_text(["a sign"])
    with pytest.raises(DearError, match="without a gallery"):
        Service.open(exported, tmp_path)


@pytest.mark.parametrize("wrong", [[], {}, {"format": 1}, {"format": 9}, None])
def test_a_damaged_export_is_refused(exported, tmp_path, wrong) -> None:
    write_json(tmp_path / "model.json", wrong)
    with pytest.raises(DearError, match="export the run again"):
        open_engine(tmp_path)
    about = read_json(exported / "model.json")
    write_json(tmp_path / "model.json", about)
    (tmp_path / "model.onnx").write_bytes((exported / "model.onnx").read_bytes()[:1000])
    (tmp_path / "text_features.npy").write_bytes((exported / "text_features.npy").read_bytes())
    with pytest.raises(DearError, match="damaged"):
        open_engine(tmp_path)


def test_any_change_of_the_description_is_read_or_refused(exported, tmp_path) -> None:
    shutil.copy(exported / "text_features.npy", tmp_path)
    about = read_json(exported / "model.json")
    about["compared"]["models"] = about["compared"]["models"][:1]

    def use(changed: Any) -> object:
        write_json(tmp_path / "model.json", changed)
        folder = ExportFolder(tmp_path)
        return folder.read_text(folder.read())

    use(about)
    assert survives(use, about, [None, -1, 10**9, 0.5, "x", [], {"a": 1}]) > 150
