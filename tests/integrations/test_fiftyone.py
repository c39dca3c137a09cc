"""The remote source of models for FiftyOne: its manifest, and labels equal to the answers of the run."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import dear

FOLDER = Path(__file__).parents[2] / "integrations" / "fiftyone_zoo"


def test_the_manifest_declares_one_model_that_the_functions_load() -> None:
    (model,) = json.loads((FOLDER / "manifest.json").read_text(encoding="utf-8"))["models"]
    assert model["base_name"] in (FOLDER / "README.md").read_text(encoding="utf-8")
    assert model["requirements"]["packages"] == ["dear-vlm"]
    source = (FOLDER / "__init__.py").read_text(encoding="utf-8")
    assert all(f"def {name}(model_name: str, model_path: str" in source for name in ("download_model", "load_model"))


@pytest.fixture(params=["as installed", "its two names alone"])
def fiftyone(request, monkeypatch) -> None:
    """FiftyOne itself, which needs a database to be imported; or no more of it than the two functions use."""
    if request.param == "as installed":
        monkeypatch.setenv("FIFTYONE_DO_NOT_TRACK", "true")
        pytest.importorskip("fiftyone", reason="FiftyOne is not installed: pip install fiftyone")
    else:
        for name in ("fiftyone", "fiftyone.core", "fiftyone.core.models"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        sys.modules["fiftyone"].Classification = SimpleNamespace
        sys.modules["fiftyone.core.models"].Model = type("Model", (), {})


def test_a_run_labels_pictures_as_it_answers_them(fiftyone, tmp_path) -> None:
    from fiftyone.core.models import Model

    spec = importlib.util.spec_from_file_location("dear_in_fiftyone", FOLDER / "__init__.py")
    source = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(source)
    source.download_model("dear/run", str(tmp_path / "run.json"))
    assert json.loads((tmp_path / "run.json").read_text())["model"] == "dear/run"
    with pytest.raises(dear.DearError, match="needs a run"):
        source.load_model("dear/run", str(tmp_path / "run.json"))
    run, generator = tmp_path / "run", np.random.default_rng(0)
    dear.create("dear-mini", classes=["red", "green", "blue"], method="zero-shot").save(run)
    model = source.load_model("dear/run", str(tmp_path / "run.json"), run=str(run), device="cpu")
    assert isinstance(model, Model)
    pictures = [generator.integers(0, 256, (40, width, 3), np.uint8) for width in (30, 40, 50)]
    labels = model.predict_all(pictures)
    answers = dear.load(run, device="cpu").predict([Image.fromarray(picture) for picture in pictures])
    assert [(one.label, one.confidence) for one in labels] == [(one.choice, one.probability) for one in answers]
    assert model.predict(pictures[1]).label == answers[1].choice
