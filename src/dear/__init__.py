"""Adapt a frozen CLIP to your own classes by decomposing the roles of its attention heads."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dear.core.errors import DearError, os_errors_as_dear_errors
from dear.core.version import __version__

if TYPE_CHECKING:
    from dear.model.predictor import Predictor

__all__ = ["DearError", "__version__", "create", "load"]


def load(
    folder: str | Path,
    classes: Sequence[str] | None = None,
    template: str | None = None,
    device: str = "auto",
    *,
    model: str | None = None,
    pretrained: str | None = None,
) -> "Predictor":
    """The adapted model in a folder made by `dear train`, or hf-hub:ORG/NAME, ready to predict.

    `classes` gives it novel classes. `model` and `pretrained` say where its backbone is here, if it is not where the
    adapter found it; another backbone is refused.
    """
    from dear.clip import load_backbone
    from dear.core.runtime import pick_device
    from dear.model.adapter import load_adapter
    from dear.model.hub import PREFIX, fetch
    from dear.model.predictor import Predictor

    with os_errors_as_dear_errors():
        where = pick_device(device)
        backbone = load_backbone(model, pretrained, device=where) if model else None
        if str(folder).startswith(PREFIX):
            folder = fetch(str(folder))
        return Predictor(load_adapter(folder, classes, template, backbone, where))


def create(
    model: str = "dear-mini",
    pretrained: str | None = None,
    *,
    classes: Sequence[str],
    method: str = "dear",
    template: str = "a photo of a {}.",
    device: str = "auto",
    **settings: Any,
) -> "Predictor":
    """An untrained model at its start, with the method's own settings, such as roles="paper"."""
    from dear.clip import load_backbone
    from dear.core.runtime import pick_device
    from dear.data.prompts import check_class_names, check_template
    from dear.methods.registry import find_method
    from dear.model.adapter import Adapter
    from dear.model.predictor import Predictor

    names, kind = check_class_names(classes), find_method(method)
    check_template(template)
    with os_errors_as_dear_errors():
        adapted = kind(load_backbone(model, pretrained, device=pick_device(device)), kind.Config(**settings))
    adapted.set_classes(names, template)
    return Predictor(Adapter(adapted.eval().requires_grad_(False), names, template))
