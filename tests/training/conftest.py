"""Runs that take seconds, a small DeAR, and what a store of images computes."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dear.clip import Backbone
from dear.core.names import CORE_ATTRIBUTES
from dear.data.resolve import resolve_dataset
from dear.heads.head_role import HeadRole
from dear.heads.role_map import RoleMap
from dear.methods.dear import Dear, DearConfig
from dear.training.store import ImageStore


@pytest.fixture
def train_arguments(model_folder, role_file):
    """Arguments of `dear train` for a run of seconds; more can be added."""

    def arguments(out: Path, *more: str) -> list[str]:
        return [
            "train", "--model", f"local-dir:{model_folder}", "--roles", str(role_file), "--data", "world:colors",
            "--shots", "2", "--epochs", "3", "--batch", "8", "--first-layer", "2", "--lr", "0.01",
            "--method", "dear", "--workers", "0", "--device", "cpu", "--out", str(out), *more,
        ]  # fmt: skip

    return arguments


@pytest.fixture(scope="module", autouse=True)
def _few_pictures():
    """Fewer test pictures per class: drawing them all would take longer than the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dear.data.world.tasks.TEST", 4)
        yield


@pytest.fixture
def model(tiny: Callable[..., Backbone]) -> Dear:
    backbone = tiny()
    roles = [HeadRole("core_attribute", "color"), HeadRole("mixed"), HeadRole("generalization"), HeadRole("mixed")]
    dealt = {(layer, head): roles[(layer + head) % 4] for layer in (3, 4) for head in range(4)}
    torch.manual_seed(0)
    roles_found = RoleMap(backbone.identity.to_json(), (3, 4), 4, CORE_ATTRIBUTES, CORE_ATTRIBUTES, dealt)
    dear = Dear(backbone, DearConfig(first_layer=3), roles_found)
    data = resolve_dataset("world:colors")
    dear.set_classes(data.classes, data.template)
    return dear


@pytest.fixture
def computed(monkeypatch) -> list[torch.Tensor]:
    """The pixels of each batch that a store computes."""
    seen: list[torch.Tensor] = []
    compute = ImageStore._compute
    monkeypatch.setattr(
        ImageStore, "_compute", lambda self, pixels, *a: seen.append(pixels) or compute(self, pixels, *a)
    )
    return seen
