"""A small model folder with a role map, a folder of results' worth of settings, for whole grids in seconds."""

import json
from pathlib import Path

import open_clip
import pytest
import torch
from safetensors.torch import save_file

from dear.backbone import load_backbone
from dear.methods.config import DearConfig
from dear.roles.rolemap import HeadRole, RoleMap
from dear.training.config import RunConfig, TrainConfig

CORE = ("color", "shape", "texture", "object", "location")


@pytest.fixture(scope="session")
def small_configs(tmp_path_factory) -> tuple[RunConfig, TrainConfig, DearConfig]:
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
    identity = load_backbone(f"local-dir:{folder}").identity.to_json()
    given = [HeadRole("core_attribute", "color"), HeadRole("mixed"), HeadRole("generalization"), HeadRole("mixed")]
    roles = {(layer, h): given[(h + layer) % 4] for layer in (2, 3) for h in range(4)}
    path: Path = folder / "roles.json"
    RoleMap(identity, (2, 3), 4, CORE, CORE, roles).save(path)
    return (
        RunConfig(model=f"local-dir:{folder}", roles=str(path)),
        TrainConfig(shots=2, epochs=2, lr=0.01, workers=0, device="cpu"),
        DearConfig(first_layer=2),
    )
