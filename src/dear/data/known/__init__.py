"""The datasets of the paper, in CoOp's directory layout. `get` downloads them."""

from dear.data.known.layouts import KnownDataset
from dear.data.known.registry import KNOWN, find_known

__all__ = ["KNOWN", "KnownDataset", "find_known"]
