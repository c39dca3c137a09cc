"""Settings with which whole grids run in seconds."""

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def small(model_folder: Path, role_file: Path) -> dict[str, Any]:
    backbone = {"model": f"local-dir:{model_folder}", "roles": str(role_file), "first_layer": 2}
    return {**backbone, "shots": 2, "epochs": 2, "lr": 0.01, "workers": 0, "device": "cpu"}
