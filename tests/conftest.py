"""Fixtures that tests share: small random CLIPs (OpenCLIP's own code), settings of hypothesis, shared data."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before PyTorch comes: two workers share two cores

import itertools
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import open_clip
import pytest
import torch
from hypothesis import HealthCheck, settings
from open_clip.model import CLIP

from dear.cli import main
from dear.clip import Backbone, load, load_backbone, wrap
from dear.core import progress
from dear.data import loading
from small_models import each_role, save_model

# The same examples everywhere, and no verdict that depends on how busy the machine is.
settings.register_profile("dear", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dear")

# Reading a vocabulary takes longer than building a small model.
load._tokenizer = lru_cache(maxsize=8)(load._tokenizer)
_simple_tokenizer = lru_cache(open_clip.SimpleTokenizer)

# Tests of a database or a server leave threads behind, and a process with threads cannot be forked safely.
loading.WORKERS = 0

# No line of progress comes because a machine is slow: a test that wants some sets its own times.
progress._SOON = progress._EVERY = threading.TIMEOUT_MAX

LONGEST = ("test_real_weights.py", "test_on_ray.py", "test_processes.py", "test_runs.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take longest come first, so that no process begins with one when the other is done with all."""
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


def tiny_backbone(
    layers: int = 4, text_layers: int = 4, quick_gelu: bool = False, seed: int = 0, **vision: Any
) -> Backbone:
    """A CLIP that is small enough for fp64 and gradients, with weights far enough from zero to matter."""
    torch.manual_seed(seed)
    vision_cfg = {
        "image_size": 32,
        "patch_size": 8,
        "layers": layers,
        "width": 48,
        "head_width": 12,
        **vision,
    }
    text_cfg = {"context_length": 77, "vocab_size": 49408, "layers": text_layers, "width": 32, "heads": 4}
    model = CLIP(embed_dim=24, vision_cfg=vision_cfg, text_cfg=text_cfg, quick_gelu=quick_gelu)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "token_embedding" in name or "positional" in name:
                parameter.normal_(std=0.5)
            elif "ln_" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.2)
    open_clip.set_model_preprocess_cfg(model, {"size": 32, "mean": (0.5,) * 3, "std": (0.25,) * 3})
    return wrap(model, _simple_tokenizer(), "tiny")


@pytest.fixture
def ticking(monkeypatch) -> None:
    """A clock in place of the machine's, for all that plans by time: it goes on whenever somebody looks at it."""
    clock = SimpleNamespace(monotonic=partial(next, itertools.count(0, 0.05)))
    for user in ("training.estimate", "trials.compare", "trials.train", "trials.trial"):
        monkeypatch.setattr(f"dear.{user}.time", clock)


@pytest.fixture
def tiny() -> Callable[..., Backbone]:
    return tiny_backbone


@pytest.fixture(scope="module")
def few_pictures() -> Iterator[None]:
    """Fewer pictures per class in Attribute World: to draw and encode them all takes longer than most tests."""
    with pytest.MonkeyPatch.context() as patch:
        for split, count in {"TRAIN": 5, "VAL": 2, "TEST": 4}.items():
            patch.setattr(f"dear.data.world.tasks.{split}", count)
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """Weights and photos that are too large for the project, where somebody has them."""
    folder = os.environ.get("DEAR_SHARED")
    if not folder or not Path(folder).is_dir():
        pytest.skip("set DEAR_SHARED to the folder that holds the shared weights and photos")
    return Path(folder)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> Path:
    """A small random CLIP on disk, so that whole commands can run without downloads in seconds."""
    config: dict[str, Any] = {
        "embed_dim": 32,
        "vision_cfg": {"image_size": 32, "patch_size": 8, "layers": 3, "width": 48, "head_width": 12},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "layers": 3, "width": 32, "heads": 4},
    }
    torch.manual_seed(3)
    return save_model(tmp_path_factory.mktemp("model"), config, CLIP(**config))


@pytest.fixture(scope="session")
def role_file(model_folder: Path, tmp_path_factory) -> Path:
    """Roles of its layers 2 and 3, one of each kind."""
    path = tmp_path_factory.mktemp("roles") / "roles.json"
    each_role(load_backbone(f"local-dir:{model_folder}")).save(path)
    return path


@pytest.fixture(scope="module")
def few_test_pictures() -> Iterator[None]:
    """Four test pictures of each class of Attribute World: drawing them all takes longer than most tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dear.data.world.tasks.TEST", 4)
        yield


@pytest.fixture(scope="session")
def train_arguments(model_folder: Path, role_file: Path) -> Callable[..., list[str]]:
    """Arguments of `dear train` for a run of seconds; what is added wins."""

    def arguments(out: Path, *more: str) -> list[str]:
        return [
            "train", "--model", f"local-dir:{model_folder}", "--roles", str(role_file), "--data", "world:colors",
            "--shots", "2", "--epochs", "3", "--batch", "8", "--first-layer", "2", "--lr", "0.01",
            "--method", "dear", "--workers", "0", "--device", "cpu", "--out", str(out), *more,
        ]  # fmt: skip

    return arguments


@pytest.fixture(scope="session")
def finished_run(train_arguments: Callable[..., list[str]], tmp_path_factory) -> Path:
    """A run of DeAR, which nobody may change."""
    out = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dear.data.world.tasks.TEST", 4)
        assert main(train_arguments(out)) == 0
    return out
