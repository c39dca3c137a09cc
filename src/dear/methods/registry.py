"""All methods by name. A method is imported when it is used."""

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dear.clip.support import judge, reaches, sums_heads
from dear.core.errors import DearError
from dear.data.known import find_known
from dear.methods.recipe import changes_under

if TYPE_CHECKING:
    from dear.clip import Backbone
    from dear.methods.base import Method


@dataclass(frozen=True)
class MethodInfo:
    """Facts about a method that are known without importing it."""

    where: str  # module in dear.methods, and class
    summary: str
    published: str
    trained: bool = True  # in epochs; False: fitted at once, or not at all
    ours: bool = False  # a subject of this project: reports show it in more detail
    transductive: bool = False  # it trains on unlabelled images of all classes, and is reported in a table of its own
    texts_per_image: bool = False  # class texts depend on the image, so it cannot be exported
    simple: bool = False  # fitted in seconds from frozen features: what a training is compared with


_CONSTANTS = Path(__file__).parent / "assets" / "published_constants.json"
"""{method: {dataset: {setting: value}}}: settings of the official scripts per dataset. In place of a setting there may
be a protocol, or a protocol and shots, with the settings under it."""

METHODS = {
    "zero-shot": MethodInfo("zero_shot:ZeroShot", "frozen CLIP", "Radford et al., ICML 2021", False),
    "zero-shot-ensemble": MethodInfo(
        "zero_shot:ZeroShotEnsemble", "CLIP with the mean text of eight templates", "Radford et al., ICML 2021", False
    ),
    "linear-probe": MethodInfo(
        "linear_probe:LinearProbe",
        "logistic regression on the class feature",
        "Radford et al., ICML 2021",
        False,
        simple=True,
    ),
    "tip-adapter": MethodInfo(
        "tip_adapter:TipAdapter",
        "a cache of the labelled features added to zero-shot",
        "Zhang et al., ECCV 2022",
        False,
        simple=True,
    ),
    "ss-text": MethodInfo(
        "ss_text:SSText",
        "class texts plus means of the labelled features",
        "Silva-Rodríguez et al., MICCAI 2025",
        False,
        simple=True,
    ),
    "head-gains": MethodInfo(
        "head_gains:HeadGains",
        "gains of late heads, the image projection, then GDA",
        "this project",
        False,
        ours=True,
    ),
    "gda": MethodInfo(
        "gda:Gda", "Gaussian discriminant analysis added to zero-shot", "Wang et al., ICLR 2024", False, simple=True
    ),
    "proker": MethodInfo(
        "proker:ProKeR", "kernel ridge regression added to zero-shot", "Bendou et al., CVPR 2025", False, simple=True
    ),
    "lp-plus-plus": MethodInfo(
        "lp_plus_plus:LpPlusPlus", "a linear probe plus weighted class texts", "Huang et al., CVPR 2024", False
    ),
    "zs-lp": MethodInfo(
        "clap:ZsLp", "a linear probe that starts at the class texts", "Silva-Rodríguez et al., CVPR 2024"
    ),
    "clap": MethodInfo(
        "clap:Clap", "zs-lp, pulled to the texts of classes that CLIP knows", "Silva-Rodríguez et al., CVPR 2024"
    ),
    "coop": MethodInfo("coop:CoOp", "learned vectors before the class name", "Zhou et al., IJCV 2022"),
    "kgcoop": MethodInfo("kgcoop:KgCoOp", "CoOp, class texts kept close to hand-written ones", "Yao et al., CVPR 2023"),
    "prograd": MethodInfo(
        "prograd:ProGrad", "CoOp, without gradients that conflict with zero-shot", "Zhu et al., ICCV 2023"
    ),
    "tcp": MethodInfo("tcp:TCP", "KgCoOp, with tokens from each class text in deeper layers", "Yao et al., CVPR 2024"),
    "atprompt": MethodInfo(
        "atprompt:ATPrompt", "CoOp, with attribute words before the class name", "Li et al., ICCV 2025"
    ),
    "prolip": MethodInfo("prolip:ProLip", "fine-tunes the image projection", "Fahes et al., 2024"),
    "clip-adapter": MethodInfo(
        "clip_adapter:ClipAdapter", "two small layers after the image feature", "Gao et al., IJCV 2024"
    ),
    "tip-adapter-f": MethodInfo("tip_adapter:TipAdapterF", "tip-adapter with learned keys", "Zhang et al., ECCV 2022"),
    "cocoop": MethodInfo(
        "cocoop:CoCoOp", "CoOp with a context that depends on the image", "Zhou et al., CVPR 2022", texts_per_image=True
    ),
    "textrefiner": MethodInfo(
        "text_refiner:TextRefiner", "CoOp, class texts corrected by cached patch features", "Xie et al., AAAI 2025"
    ),
    "promptkd": MethodInfo(
        "promptkd:PromptKD",
        "imitates a teacher on unlabelled images of all classes",
        "Li et al., CVPR 2024",
        transductive=True,
    ),
    "vpt-shallow": MethodInfo("deep_prompts:VptShallow", "image tokens at the first layer", "Jia et al., ECCV 2022"),
    "vpt-deep": MethodInfo("deep_prompts:VptDeep", "image tokens, new ones at every layer", "Jia et al., ECCV 2022"),
    "ivlp": MethodInfo(
        "deep_prompts:DeepPrompts", "tokens in the first layers of both towers", "Khattak et al., CVPR 2023"
    ),
    "maple": MethodInfo(
        "maple:Maple", "ivlp, image tokens a linear function of text tokens", "Khattak et al., CVPR 2023"
    ),
    "maple-atprompt": MethodInfo(
        "maple_atprompt:MapleATPrompt", "MaPLe with attribute words in the prompt", "Li et al., ICCV 2025"
    ),
    "promptsrc": MethodInfo(
        "promptsrc:PromptSrc", "ivlp regularised towards frozen CLIP, averaged over epochs", "Khattak et al., ICCV 2023"
    ),
    "provp": MethodInfo(
        "provp:ProVp", "image tokens mixed between layers, and a contrastive loss", "Xu et al., IJCV 2024"
    ),
    "mmrl": MethodInfo("mmrl:Mmrl", "tokens from a shared space in both towers", "Guo and Gu, CVPR 2025"),
    "mmrlpp": MethodInfo("mmrlpp:MmrlPlus", "mmrl with shared low-rank projections", "Guo and Gu, IJCV 2026"),
    "tac": MethodInfo("tac:Tac", "ivlp in all layers, with tokens of the task", "Hao et al., CVPR 2025"),
    "skipt": MethodInfo("skipt:SkipT", "fine-tunes the upper half of both towers", "Wu et al., CVPR 2025"),
    "clip-lora": MethodInfo(
        "clip_lora:ClipLora", "low-rank terms in all attention projections", "Zanella and Ben Ayed, CVPRW 2024"
    ),
    "2sfs": MethodInfo(
        "two_stage:TwoStage", "LayerNorms of both towers, then a linear classifier", "Farina et al., CVPR 2025"
    ),
    "clip-svd": MethodInfo(
        "clip_svd:ClipSvd", "singular values of all attention and MLP matrices", "Koleilat et al., 2025"
    ),
    "experts": MethodInfo(
        "experts:Experts",
        "attribute tokens that attend in the heads of their attribute only",
        "this project",
        ours=True,
    ),
    "dear": MethodInfo(
        "dear:Dear",
        "attribute tokens visible to heads by role, from layer 9 on",
        "Ma et al., CVPR 2026",
        ours=True,
    ),
}


ZERO_SHOT = "zero-shot"
_GAINS = "head-gains"
DEFAULT = _GAINS  # of `dear train`, by the rule in results/clip/notes.md


def simple_methods() -> list[str]:
    """Methods without training that use the labelled images: a training must beat them to be worth its time."""
    return [name for name, info in METHODS.items() if info.simple]


def is_ours(name: str) -> bool:
    return name in METHODS and METHODS[name].ours


def find_method(name: str) -> "type[Method]":
    if name not in METHODS:
        raise DearError(f"There is no method {name!r}: choose from {', '.join(METHODS)}.")
    module, _, kind = METHODS[name].where.partition(":")
    return getattr(importlib.import_module(f"dear.methods.{module}"), kind)


def methods_for(image: str, text: str, heads_sum: bool = True) -> list[str]:
    """The methods that work with towers of these tiers (`dear.clip.support.TIERS`).

    `heads_sum`: whether the state that is read is a sum of what heads write, without which they have no gains.
    """
    kinds = {name: find_method(name) for name in METHODS if heads_sum or name != _GAINS}
    return [name for name, kind in kinds.items() if reaches(image, kind.needs_image) and reaches(text, kind.needs_text)]


def working_methods(model: str, text_table: bool = False) -> list[str]:
    """The methods that work with a model, by its config, before its weights are fetched.

    All of them for a model of transformers, which tells what it is only once it is loaded; then the method itself
    refuses.
    """
    from dear.clip.load import TRANSFORMERS, usable_config

    if model.startswith(TRANSFORMERS):
        return list(METHODS)
    config = usable_config(model)
    tiers = judge(config)
    return methods_for(tiers.image, "table" if text_table else tiers.text, sums_heads(config))


def require_method(name: str, model: str, text_table: bool = False) -> None:
    """Refuses a method that does not work with a model, before its weights are fetched."""
    working = working_methods(model, text_table)
    if name not in working:
        table = " with a text table" if text_table else ""
        best = best_of(working)
        others = ", ".join(method for method in working if method != best)
        raise DearError(
            f"{name} does not work with {model}{table}: take --method {best}, or another that works ({others})."
        )


def best_of(working: Sequence[str]) -> str:
    """The method for a user who names none, of those that work with a backbone."""
    return next(name for name in (DEFAULT, "prolip", "tip-adapter-f") if name in working)


def require_towers(kind: "type[Method]", backbone: "Backbone") -> None:
    """Refuses a method that needs more of a tower than the backbone has, and names those that work."""
    image, text = backbone.image.tier, backbone.text.tier
    if reaches(image, kind.needs_image) and reaches(text, kind.needs_text):
        return
    name = next((name for name, info in METHODS.items() if info.where.endswith(f":{kind.__name__}")), kind.__name__)
    if not reaches(image, kind.needs_image):
        reason = f"{name} works inside the image tower, but that of {backbone.name} can only be called as a whole"
    elif text == "table":
        reason = f"{name} needs a text tower, but class texts come from a table (--text-features)"
    else:
        reason = f"{name} works inside the text tower, but that of {backbone.name} can only be called as a whole"
    raise DearError(f"{reason}: choose --method from {', '.join(methods_for(image, text))}.")


def recipe_of(
    name: str, protocol: str | None = None, shots: int | None = None, constants_of: str | None = None
) -> Mapping[str, Any]:
    """The published settings of a method, of training and its own, under one of the protocols.

    `constants_of`: a dataset, to add the settings that the authors chose for it alone, if it is a known one. Off by
    default, because settings per dataset make no fair comparison.
    """
    settings = find_method(name).recipe.under(protocol, shots)
    known = find_known(constants_of) if constants_of else None
    if known is not None:
        constants = json.loads(_CONSTANTS.read_text()).get(name, {}).get(known.name, {})
        settings |= {key: value for key, value in constants.items() if not isinstance(value, dict)}
        settings |= changes_under(constants, protocol, shots)
    return settings


def with_overrides(recipe: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe with some settings replaced. A number of epochs also replaces a recipe's number of steps, and scales
    the peak and width of a gaussian average over epochs."""
    settings = {name: value for name, value in recipe.items() if name != "steps_per_shot" or "epochs" not in overrides}
    if overrides.get("epochs"):
        gaussian = {"average_peak", "average_width"} & recipe.keys()
        settings |= {name: recipe[name] * overrides["epochs"] / recipe["epochs"] for name in gaussian}
    return {**settings, **overrides}
