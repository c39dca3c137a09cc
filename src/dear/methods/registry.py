"""Every method there is, by name. Only the one that is asked for is imported."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dear.errors import DearError

if TYPE_CHECKING:
    from dear.methods.base import Method


@dataclass(frozen=True)
class Listed:
    where: str  # module in dear.methods, and class
    line: str  # what it does
    published: str  # where
    trained: bool = True


METHODS = {
    "zero-shot": Listed("zero_shot:ZeroShot", "CLIP as it is", "Radford et al., ICML 2021", False),
    "zero-shot-ensemble": Listed(
        "zero_shot:ZeroShotEnsemble", "CLIP with the mean text of eight templates", "Radford et al., ICML 2021", False
    ),
    "linear-probe": Listed(
        "linear_probe:LinearProbe", "logistic regression on the class feature", "Radford et al., ICML 2021", False
    ),
    "tip-adapter": Listed(
        "tip_adapter:TipAdapter",
        "a cache of the labelled features added to zero-shot",
        "Zhang et al., ECCV 2022",
        False,
    ),
    "vpt-shallow": Listed("deep_prompts:VptShallow", "image tokens at the first layer", "Jia et al., ECCV 2022"),
    "vpt-deep": Listed("deep_prompts:VptDeep", "image tokens, fresh ones in every layer", "Jia et al., ECCV 2022"),
    "ivlp": Listed("deep_prompts:DeepPrompts", "tokens in the first layers of both towers", "CVPR 2023"),
    "maple": Listed("maple:Maple", "the same, image tokens a linear function of text tokens", "CVPR 2023"),
    "maple-atprompt": Listed("maple_atprompt:MapleATPrompt", "MaPLe behind words for attributes", "ICCV 2025"),
    "promptsrc": Listed("promptsrc:PromptSrc", "ivlp held to frozen CLIP, averaged over epochs", "ICCV 2023"),
    "provp": Listed("provp:ProVp", "image tokens mixed between layers, and a contrast", "IJCV 2024"),
    "mmrl": Listed("mmrl:Mmrl", "tokens from a shared space in both towers, from layer 6 on", "CVPR 2025"),
    "mmrlpp": Listed("mmrlpp:MmrlPlus", "mmrl with shared low-rank projections, mixed tokens", "IJCV 2026"),
    "tac": Listed("tac:Tac", "ivlp in all layers beside tokens of the task", "CVPR 2025"),
    "skipt": Listed("skipt:SkipT", "fine-tunes the upper half of both towers", "CVPR 2025"),
    "clip-lora": Listed("clip_lora:ClipLora", "low-rank terms in all attention projections", "CVPR Workshops 2024"),
    "dear": Listed(
        "dear:Dear", "attribute tokens that heads see by their roles, in both towers from layer 9 on", "CVPR 2026"
    ),
}


def find_method(name: str) -> "type[Method]":
    if name not in METHODS:
        raise DearError(f"There is no method {name!r}: choose from {', '.join(METHODS)}.")
    module, _, of = METHODS[name].where.partition(":")
    return getattr(importlib.import_module(f"dear.methods.{module}"), of)


def recipe_of(name: str, protocol: str | None = None) -> Mapping[str, Any]:
    """The published settings of a method, of training and its own, under one of the protocols."""
    method = find_method(name)
    return {**method.recipe, **method.recipes.get(protocol or "", {})}
