"""The layer from which a method adapts a tower."""

from dear.core.errors import DearError


def first_layer(chosen: int | None, default: int, layers: int) -> int:
    """`chosen`, the setting --first-layer, or else the default; refuses one beyond the tower's layers."""
    layer = chosen or default
    if layer > layers:
        raise DearError(f"--first-layer {layer} is beyond the image tower: choose from 1 to {layers}.")
    return layer
