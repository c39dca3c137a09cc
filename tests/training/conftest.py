"""Arguments of runs that take seconds."""

from pathlib import Path

import pytest


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
