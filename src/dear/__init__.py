"""Adapt a frozen CLIP to your own classes by decomposing the roles of its attention heads."""

from dear.errors import DearError
from dear.version import __version__

__all__ = ["DearError", "__version__"]
