"""The datasets of the paper, in CoOp's directory layout. Nothing is downloaded."""

from dear.data.known.entry import KnownDataset
from dear.data.known.registry import COOP, KNOWN, find_known

__all__ = ["COOP", "KNOWN", "KnownDataset", "find_known"]
