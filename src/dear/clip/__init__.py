"""A frozen OpenCLIP model as two towers of blocks."""

from dear.clip.half import exact_copy
from dear.clip.load import MINI, Backbone, load_backbone, wrap
from dear.clip.tokens import LearnedTokens
from dear.core.identity import BackboneIdentity

__all__ = ["MINI", "Backbone", "BackboneIdentity", "LearnedTokens", "exact_copy", "load_backbone", "wrap"]
