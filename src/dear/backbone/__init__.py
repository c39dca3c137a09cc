"""An OpenCLIP model seen as two towers of blocks, on one set of frozen weights."""

from dear.backbone.identity import BackboneIdentity
from dear.backbone.load import MINI, Backbone, load_backbone, wrap
from dear.backbone.tokens import LearnedTokens

__all__ = ["MINI", "Backbone", "BackboneIdentity", "LearnedTokens", "load_backbone", "wrap"]
