"""The datasets of the paper, in the directory layout that CoOp's users have on disk. Nothing is downloaded."""

from dear.data.known.entry import KnownDataset
from dear.data.known.registry import COOP, KNOWN, find_known

__all__ = ["COOP", "KNOWN", "KnownDataset", "find_known"]
