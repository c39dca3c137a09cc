"""Helpers of methods that adapt layers or the projection of a tower."""

from torch import Tensor

from dear.clip import Backbone
from dear.clip.image import ImageTower
from dear.core.errors import DearError, warn_once


def first_layer(chosen: int | None, default: int, layers: int) -> int:
    """The first adapted layer: --first-layer, or the default; refuses one beyond the tower's layers."""
    layer = chosen or default
    if layer > layers:
        raise DearError(f"--first-layer {layer} is beyond the image tower: choose from 1 to {layers}.")
    return layer


def project_by(tower: ImageTower, cls: Tensor, projection: Tensor) -> Tensor:
    """Features, not normalised, [batch, dim], of states that are read [batch, width], by another projection."""
    feature = tower.head_input(cls) @ projection
    return feature if tower.head_bias is None else feature + tower.head_bias


def learns_texts(backbone: Backbone) -> bool:
    """Whether the layers of the text tower can be adapted; where they cannot, says so once."""
    if backbone.text.tier == "full":
        return True
    warn_once(f"Only the image side is adapted: the class texts of {backbone.name} are fixed ({backbone.text.tier}).")
    return False
