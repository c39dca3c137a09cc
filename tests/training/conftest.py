"""A model folder and a role map for it, so that whole commands can run without downloads in seconds."""

import json
from pathlib import Path

import open_clip
import pytest
import torch
from safetensors.torch import save_file

from dear.backbone import load_backbone
from dear.roles.rolemap import HeadRole, RoleMap

CORE = ("color", "shape", "texture", "object", "location")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    config = {
        "embed_dim": 32,
        "vision_cfg": {"image_size": 32, "patch_size": 8, "layers": 3, "width": 48, "head_width": 12},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "layers": 3, "width": 32, "heads": 4},
    }
    torch.manual_seed(3)
    model = open_clip.CLIP(**config)
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": {}}))
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / "open_clip_model.safetensors")
    return folder


@pytest.fixture(scope="session")
def role_file(model_folder, tmp_path_factory) -> Path:
    identity = load_backbone(f"local-dir:{model_folder}").identity.to_json()
    core = [HeadRole("core_attribute", "color"), HeadRole("core_attribute", "shape")]
    given = [*core, HeadRole("mixed"), HeadRole("generalization")]
    roles = {(layer, h): given[(h + layer) % 4] for layer in (2, 3) for h in range(4)}
    path = tmp_path_factory.mktemp("roles") / "roles.json"
    RoleMap(identity, (2, 3), 4, CORE, CORE, roles).save(path)
    return path


@pytest.fixture
def train_arguments(model_folder, role_file):
    """Arguments of `dear train` for a run of seconds; more can be added."""

    def arguments(out: Path, *more: str) -> list[str]:
        return [
            "train", "--model", f"local-dir:{model_folder}", "--roles", str(role_file), "--data", "world:colors",
            "--shots", "2", "--epochs", "3", "--batch", "8", "--first-layer", "2", "--lr", "0.01",
            "--workers", "0", "--device", "cpu", "--out", str(out), *more,
        ]  # fmt: skip

    return arguments
