"""Every method there is, by name. Only the one that is asked for is imported."""

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dear.core.errors import DearError
from dear.data.known import find_known
from dear.methods.recipe import changes_under

if TYPE_CHECKING:
    from dear.methods.base import Method


@dataclass(frozen=True)
class MethodInfo:
    """What can be said of a method without importing it."""

    where: str  # module in dear.methods, and class
    summary: str
    published: str
    trained: bool = True
    ours: bool = False  # this project's subject: reports show it in more detail
    transductive: bool = False  # it sees unlabelled images of all classes: its numbers stand in a table of their own
    texts_per_image: bool = False  # class texts depend on the image, so that no graph of an image can hold them


_CONSTANTS = Path(__file__).parent / "assets" / "published_constants.json"
"""{method: {dataset: {setting: value}}}: what the official scripts set by dataset. In place of a setting may stand a
protocol, or a protocol and shots, with the settings under it."""

METHODS = {
    "zero-shot": MethodInfo("zero_shot:ZeroShot", "CLIP as it is", "Radford et al., ICML 2021", False),
    "zero-shot-ensemble": MethodInfo(
        "zero_shot:ZeroShotEnsemble", "CLIP with the mean text of eight templates", "Radford et al., ICML 2021", False
    ),
    "linear-probe": MethodInfo(
        "linear_probe:LinearProbe", "logistic regression on the class feature", "Radford et al., ICML 2021", False
    ),
    "tip-adapter": MethodInfo(
        "tip_adapter:TipAdapter",
        "a cache of the labelled features added to zero-shot",
        "Zhang et al., ECCV 2022",
        False,
    ),
    "coop": MethodInfo("coop:CoOp", "learned words in front of the class name", "Zhou et al., IJCV 2022"),
    "kgcoop": MethodInfo("kgcoop:KgCoOp", "CoOp, its class texts kept near hand-written ones", "Yao et al., CVPR 2023"),
    "prograd": MethodInfo(
        "prograd:ProGrad", "CoOp, without what works against zero-shot in each step", "Zhu et al., ICCV 2023"
    ),
    "tcp": MethodInfo(
        "tcp:TCP", "KgCoOp, with tokens made from each class's own text deep inside", "Yao et al., CVPR 2024"
    ),
    "atprompt": MethodInfo(
        "atprompt:ATPrompt", "CoOp, with words for attributes in front of the class name", "Li et al., ICCV 2025"
    ),
    "prolip": MethodInfo("prolip:ProLip", "fine-tunes the image projection", "Fahes et al., 2024"),
    "clip-adapter": MethodInfo(
        "clip_adapter:ClipAdapter", "two small layers behind the image feature", "Gao et al., IJCV 2024"
    ),
    "tip-adapter-f": MethodInfo("tip_adapter:TipAdapterF", "tip-adapter, its keys learned", "Zhang et al., ECCV 2022"),
    "cocoop": MethodInfo(
        "cocoop:CoCoOp", "CoOp, its context moved by every image", "Zhou et al., CVPR 2022", texts_per_image=True
    ),
    "textrefiner": MethodInfo(
        "text_refiner:TextRefiner", "CoOp, its class texts corrected by cached patches", "Xie et al., AAAI 2025"
    ),
    "promptkd": MethodInfo(
        "promptkd:PromptKD",
        "imitates a teacher on unlabelled images of all classes",
        "Li et al., CVPR 2024",
        transductive=True,
    ),
    "vpt-shallow": MethodInfo("deep_prompts:VptShallow", "image tokens at the first layer", "Jia et al., ECCV 2022"),
    "vpt-deep": MethodInfo("deep_prompts:VptDeep", "image tokens, fresh ones in every layer", "Jia et al., ECCV 2022"),
    "ivlp": MethodInfo(
        "deep_prompts:DeepPrompts", "tokens in the first layers of both towers", "Khattak et al., CVPR 2023"
    ),
    "maple": MethodInfo(
        "maple:Maple", "the same, image tokens a linear function of text tokens", "Khattak et al., CVPR 2023"
    ),
    "maple-atprompt": MethodInfo(
        "maple_atprompt:MapleATPrompt", "MaPLe behind words for attributes", "Li et al., ICCV 2025"
    ),
    "promptsrc": MethodInfo(
        "promptsrc:PromptSrc", "ivlp held to frozen CLIP, averaged over epochs", "Khattak et al., ICCV 2023"
    ),
    "provp": MethodInfo("provp:ProVp", "image tokens mixed between layers, and a contrast", "Xu et al., IJCV 2024"),
    "mmrl": MethodInfo("mmrl:Mmrl", "tokens from a shared space in both towers", "Guo and Gu, CVPR 2025"),
    "mmrlpp": MethodInfo("mmrlpp:MmrlPlus", "mmrl with shared low-rank projections", "Guo and Gu, IJCV 2026"),
    "tac": MethodInfo("tac:Tac", "ivlp in all layers beside tokens of the task", "Hao et al., CVPR 2025"),
    "skipt": MethodInfo("skipt:SkipT", "fine-tunes the upper half of both towers", "Wu et al., CVPR 2025"),
    "clip-lora": MethodInfo(
        "clip_lora:ClipLora", "low-rank terms in all attention projections", "Zanella and Ben Ayed, CVPRW 2024"
    ),
    "experts": MethodInfo(
        "experts:Experts",
        "attribute tokens that read in the heads of their attribute only",
        "this project",
        ours=True,
    ),
    "dear": MethodInfo(
        "dear:Dear",
        "attribute tokens that heads see by their roles, from layer 9 on",
        "Ma et al., CVPR 2026",
        ours=True,
    ),
}


def is_ours(name: str) -> bool:
    return name in METHODS and METHODS[name].ours


def find_method(name: str) -> "type[Method]":
    if name not in METHODS:
        raise DearError(f"There is no method {name!r}: choose from {', '.join(METHODS)}.")
    module, _, kind = METHODS[name].where.partition(":")
    return getattr(importlib.import_module(f"dear.methods.{module}"), kind)


def recipe_of(
    name: str, protocol: str | None = None, shots: int | None = None, constants_of: str | None = None
) -> Mapping[str, Any]:
    """The published settings of a method, of training and its own, under one of the protocols.

    constants_of: a dataset, to add what the authors set for it alone, if it is a known one. A fair comparison does not
    choose by dataset, so this must be asked for.
    """
    settings = find_method(name).recipe.under(protocol, shots)
    known = find_known(constants_of) if constants_of else None
    if known is not None:
        constants = json.loads(_CONSTANTS.read_text()).get(name, {}).get(known.name, {})
        settings |= {key: value for key, value in constants.items() if not isinstance(value, dict)}
        settings |= changes_under(constants, protocol, shots)
    return settings


def with_overrides(recipe: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe with some settings replaced. A number of epochs also replaces a recipe's number of images, and moves
    the bell of an average over epochs, so that it keeps its place in the run."""
    settings = {name: value for name, value in recipe.items() if name != "images_seen" or "epochs" not in overrides}
    if overrides.get("epochs"):
        bell = {"average_peak", "average_width"} & recipe.keys()
        settings |= {name: recipe[name] * overrides["epochs"] / recipe["epochs"] for name in bell}
    return {**settings, **overrides}
