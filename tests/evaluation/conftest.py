"""Settings with which whole grids run in seconds."""

from pathlib import Path

import pytest

from dear.methods.config import DearConfig
from dear.training.config import RunConfig, TrainConfig


@pytest.fixture(scope="session")
def small_configs(model_folder: Path, role_file: Path) -> tuple[RunConfig, TrainConfig, DearConfig]:
    return (
        RunConfig(model=f"local-dir:{model_folder}", roles=str(role_file)),
        TrainConfig(shots=2, epochs=2, lr=0.01, workers=0, device="cpu"),
        DearConfig(first_layer=2),
    )
