"""A small adapter on disk, not trained: a gallery asks only that the same image gets the same features."""

from pathlib import Path

import pytest
import torch
from PIL import Image

import dear
from dear.clip import load_backbone
from dear.data.world.tasks import world_task
from dear.gallery import AdapterEncoder
from dear.methods.dear import Dear, DearConfig
from dear.training.adapter import save_adapter
from small_models import each_role

pytest.importorskip("lancedb")


@pytest.fixture(scope="session")
def make_run(model_folder, tmp_path_factory):
    """seed -> a folder with an adapter; another seed is another adapter on the same backbone."""

    def make(seed: int) -> Path:
        backbone = load_backbone(f"local-dir:{model_folder}")
        torch.manual_seed(seed)
        model = Dear(backbone, DearConfig(first_layer=2, token_std=1.0), each_role(backbone))
        model.set_classes(["red", "blue"], "a {} sign")
        out = tmp_path_factory.mktemp("runs") / "run"
        save_adapter(out, "dear", model, "a {} sign")
        return out

    return make


@pytest.fixture(scope="session")
def run(make_run) -> Path:
    return make_run(0)


@pytest.fixture(scope="session")
def model(run):
    return dear.load(run, device="cpu")


@pytest.fixture(scope="session")
def encoder(run, model) -> AdapterEncoder:
    return AdapterEncoder(run, model)


@pytest.fixture
def photos(tmp_path) -> Path:
    """Twelve files: four in each of a/, b_c/ and 01.d/."""
    scenes = iter(world_task("objects").test[::40])
    for name in ("a", "b_c", "01.d"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(4):
            next(scenes).picture.open().save(tmp_path / "photos" / name / f"{number}.png")
    return tmp_path / "photos"


@pytest.fixture(scope="session")
def noise():
    """Saves a picture of its own for each seed."""

    def save(path: Path, seed: int) -> Path:
        pixels = torch.randint(0, 256, (24, 24, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(path)
        return path

    return save
