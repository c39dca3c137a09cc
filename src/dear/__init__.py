"""Adapt a frozen CLIP to your own classes by decomposing the roles of its attention heads."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dear.errors import DearError
from dear.version import __version__

if TYPE_CHECKING:
    from dear.predictor import Predictor

__all__ = ["DearError", "__version__", "create", "load"]


def load(
    folder: str | Path, classes: Sequence[str] | None = None, template: str | None = None, device: str = "auto"
) -> "Predictor":
    """The adapted model in a folder made by `dear train`, ready to predict; `classes` gives it novel classes."""
    from dear.adapter import load_adapter
    from dear.predictor import Predictor
    from dear.runtime import pick_device

    return Predictor(load_adapter(folder, classes, template, device=pick_device(device)))


def create(
    model: str = "dear-mini",
    pretrained: str | None = None,
    *,
    classes: Sequence[str],
    roles: str = "auto",
    template: str = "a photo of a {}.",
    device: str = "auto",
) -> "Predictor":
    """An untrained model: its class feature is close to plain CLIP's, its attribute tokens are at their start."""
    from dear.adapter import Adapter
    from dear.backbone import load_backbone
    from dear.methods.config import DearConfig
    from dear.methods.dear import Dear
    from dear.predictor import Predictor
    from dear.runtime import pick_device
    from dear.training.config import RunConfig
    from dear.training.roles import pick_roles

    backbone = load_backbone(model, pretrained, device=pick_device(device))
    run = RunConfig(model=model, pretrained=pretrained, roles=roles)
    adapted = Dear(backbone, pick_roles(run, seed=0), DearConfig())
    adapted.set_prompts([template.format(name) for name in classes])
    return Predictor(Adapter(adapted.eval().requires_grad_(False), tuple(classes), template))
