"""A small adapter on disk, not trained: a gallery asks only that the same image gets the same features."""

import json
from pathlib import Path

import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import dear
from dear.adapter import save_adapter
from dear.backbone import load_backbone
from dear.data.world.tasks import world_task
from dear.methods.config import DearConfig
from dear.methods.dear import Dear
from dear.roles.rolemap import HeadRole, RoleMap

pytest.importorskip("lancedb")

CORE = ("color", "shape", "texture", "object", "location")


@pytest.fixture(scope="session")
def make_run(tmp_path_factory):
    """seed -> a folder with an adapter; another seed is another adapter on the same backbone."""
    folder = tmp_path_factory.mktemp("model")
    config = {
        "embed_dim": 32,
        "vision_cfg": {"image_size": 32, "patch_size": 8, "layers": 3, "width": 48, "head_width": 12},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "layers": 3, "width": 32, "heads": 4},
    }
    torch.manual_seed(3)
    weights = {k: v.contiguous() for k, v in open_clip.CLIP(**config).state_dict().items()}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": {}}))
    save_file(weights, folder / "open_clip_model.safetensors")

    def make(seed: int) -> Path:
        backbone = load_backbone(f"local-dir:{folder}")
        given = [HeadRole("core_attribute", "color"), HeadRole("mixed"), HeadRole("mixed"), HeadRole("generalization")]
        roles = {(layer, head): given[head] for layer in (2, 3) for head in range(4)}
        torch.manual_seed(seed)
        settings = DearConfig(first_layer=2, token_std=1.0)
        model = Dear(backbone, RoleMap(backbone.identity.to_json(), (2, 3), 4, CORE, CORE, roles), settings)
        out = tmp_path_factory.mktemp("runs") / "run"
        save_adapter(out, model, ["red", "blue"], "a {} sign")
        return out

    return make


@pytest.fixture(scope="session")
def run(make_run) -> Path:
    return make_run(0)


@pytest.fixture(scope="session")
def model(run):
    return dear.load(run, device="cpu")


@pytest.fixture
def photos(tmp_path) -> Path:
    """Twelve files: four in each of a/, b_c/ and 01.d/."""
    scenes = iter(world_task("objects").test[::40])
    for name in ("a", "b_c", "01.d"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(4):
            next(scenes).picture.open().save(tmp_path / "photos" / name / f"{number}.png")
    return tmp_path / "photos"


@pytest.fixture
def noise():
    """Saves a picture of its own for each seed."""

    def save(path: Path, seed: int) -> Path:
        pixels = torch.randint(0, 256, (24, 24, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(path)
        return path

    return save
