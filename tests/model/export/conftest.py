"""A run on a tiny backbone, as `dear train` leaves one, and its export, made once."""

from pathlib import Path

import open_clip
import pytest
import torch

from dear.cli import main
from dear.clip import load_backbone
from dear.core.files import write_json
from dear.data.world.tasks import world_task
from dear.methods.dear import Dear, DearConfig
from dear.training.adapter import save_adapter
from small_models import each_role, save_model

CONFIG = {
    "embed_dim": 64,
    "vision_cfg": {"image_size": 32, "patch_size": 8, "layers": 3, "width": 128, "head_width": 32},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "layers": 2, "width": 32, "heads": 4},
}


@pytest.fixture(scope="session")
def exported_run(tmp_path_factory) -> Path:
    """Only its image tower is wide enough for 8 bits to make it smaller."""
    folder = tmp_path_factory.mktemp("export")
    torch.manual_seed(3)
    name = f"local-dir:{save_model(folder / 'model', CONFIG, open_clip.CLIP(**CONFIG))}"
    backbone, dataset = load_backbone(name), world_task("colors")
    model = Dear(backbone, DearConfig(first_layer=2), each_role(backbone))
    with torch.no_grad():  # as if trained: nothing is left at its start
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.set_classes(dataset.classes, dataset.template)
    save_adapter(folder / "run", "dear", model, dataset.template)
    write_json(folder / "run" / "config.json", {"data": "world:colors", "classes": "all"})
    return folder / "run"


@pytest.fixture(scope="session")
def exported(exported_run, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("onnx") / "new" / "out"
    assert main(["export", str(exported_run), "--onnx", str(out), "--int8", "--check", "60"]) == 0
    return out
