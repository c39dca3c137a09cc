"""All methods by name. A method is imported when it is used, and PyTorch only with it."""

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dear.core.errors import DearError, needing
from dear.methods.recipe import changes_under

if TYPE_CHECKING:
    from dear.clip import Backbone
    from dear.methods.base import Method


@dataclass(frozen=True)
class MethodInfo:
    """Facts about a method that are known without importing it.

    Kinds: *unfitted* methods use no labelled image, a *closed form* is solved exactly and answers each labelled image
    by the fit without it, others are *fitted at once*, or *trained* in epochs.
    """

    where: str  # module, and class
    summary: str
    published: str
    kind: Literal["unfitted", "closed form", "fitted at once", "trained"] = "trained"
    needs_image: str = "features"  # least tier of the image tower, one of `dear.clip.support.TIERS`
    needs_text: str = "table"  # the same of the text tower
    reads_heads: bool = False  # outputs of single heads: the state that is read must be a sum of what heads write
    ours: bool = False  # a subject of this project: reports show it in more detail
    transductive: bool = False  # it trains on unlabelled images of all classes, and is reported in a table of its own
    texts_per_image: bool = False  # class texts depend on the image, so it cannot be exported
    package: str = "dear.methods."  # in front of the module; empty for methods of others

    @property
    def trained(self) -> bool:
        return self.kind == "trained"

    def fits(self, image: str, text: str) -> bool:
        """Whether the method works with towers of these tiers."""
        from dear.clip.support import reaches

        return reaches(image, self.needs_image) and reaches(text, self.needs_text)


_CONSTANTS = Path(__file__).parent / "assets" / "published_constants.json"
"""{method: {dataset: {setting: value}}}: settings of the official scripts per dataset. In place of a setting there may
be a protocol, or a protocol and shots, with the settings under it."""

METHODS = {
    "zero-shot": MethodInfo("zero_shot:ZeroShot", "frozen CLIP", "Radford et al., ICML 2021", "unfitted"),
    "zero-shot-ensemble": MethodInfo("zero_shot:ZeroShotEnsemble", "CLIP with the mean text of eight templates",
        "Radford et al., ICML 2021", "unfitted", needs_text="features"),
    "linear-probe": MethodInfo("linear_probes:LinearProbe", "logistic regression on the class feature",
        "Radford et al., ICML 2021", "fitted at once"),
    "tip-adapter": MethodInfo("tip_adapter:TipAdapter", "a cache of the labelled features added to zero-shot",
        "Zhang et al., ECCV 2022", "fitted at once"),
    "ss-text": MethodInfo("closed_forms:SSText", "class texts plus means of the labelled features",
        "Silva-Rodríguez et al., MICCAI 2025", "closed form"),
    "head-gains": MethodInfo("head_gains:HeadGains", "gains of late heads, the image projection, then GDA",
        "this project", "fitted at once", needs_image="full", reads_heads=True, ours=True),
    "gda": MethodInfo("closed_forms:Gda", "Gaussian discriminant analysis added to zero-shot", "Wang et al., ICLR 2024",
        "closed form"),
    "proker": MethodInfo("closed_forms:ProKeR", "kernel ridge regression added to zero-shot",
        "Bendou et al., CVPR 2025", "closed form"),
    "lp-plus-plus": MethodInfo("linear_probes:LpPlusPlus", "a linear probe plus weighted class texts",
        "Huang et al., CVPR 2024", "fitted at once"),
    "zs-lp": MethodInfo("linear_probes:ZsLp", "a linear probe that starts at the class texts",
        "Silva-Rodríguez et al., CVPR 2024"),
    "clap": MethodInfo("linear_probes:Clap", "zs-lp, pulled to the texts of classes that CLIP knows",
        "Silva-Rodríguez et al., CVPR 2024"),
    "coop": MethodInfo("coop:CoOp", "learned vectors before the class name", "Zhou et al., IJCV 2022",
        needs_text="words"),
    "kgcoop": MethodInfo("coop:KgCoOp", "CoOp, class texts kept close to hand-written ones", "Yao et al., CVPR 2023",
        needs_text="words"),
    "prograd": MethodInfo("coop:ProGrad", "CoOp, without gradients that conflict with zero-shot",
        "Zhu et al., ICCV 2023", needs_text="words"),
    "tcp": MethodInfo("coop:TCP", "KgCoOp, with tokens from each class text in deeper layers", "Yao et al., CVPR 2024",
        needs_text="full"),
    "atprompt": MethodInfo("atprompt:ATPrompt", "CoOp, with attribute words before the class name",
        "Li et al., ICCV 2025", needs_text="words"),
    "prolip": MethodInfo("prolip:ProLip", "fine-tunes the image projection", "Fahes et al., 2024", needs_image="full"),
    "clip-adapter": MethodInfo("clip_adapter:ClipAdapter", "two small layers after the image feature",
        "Gao et al., IJCV 2024"),
    "tip-adapter-f": MethodInfo("tip_adapter:TipAdapterF", "tip-adapter with learned keys", "Zhang et al., ECCV 2022"),
    "cocoop": MethodInfo("coop:CoCoOp", "CoOp with a context that depends on the image", "Zhou et al., CVPR 2022",
        needs_text="words", texts_per_image=True),
    "textrefiner": MethodInfo("text_refiner:TextRefiner", "CoOp, class texts corrected by cached patch features",
        "Xie et al., AAAI 2025", needs_image="full", needs_text="words"),
    "promptkd": MethodInfo("promptkd:PromptKD", "imitates a teacher on unlabelled images of all classes",
        "Li et al., CVPR 2024", needs_image="full", transductive=True),
    "vpt-shallow": MethodInfo("deep_prompts:VptShallow", "image tokens at the first layer", "Jia et al., ECCV 2022",
        needs_image="full"),
    "vpt-deep": MethodInfo("deep_prompts:VptDeep", "image tokens, new ones at every layer", "Jia et al., ECCV 2022",
        needs_image="full"),
    "ivlp": MethodInfo("deep_prompts:DeepPrompts", "tokens in the first layers of both towers",
        "Khattak et al., CVPR 2023", needs_image="full", needs_text="full"),
    "maple": MethodInfo("deep_prompts:Maple", "ivlp, image tokens a linear function of text tokens",
        "Khattak et al., CVPR 2023", needs_image="full", needs_text="full"),
    "maple-atprompt": MethodInfo("atprompt:MapleATPrompt", "MaPLe with attribute words in the prompt",
        "Li et al., ICCV 2025", needs_image="full", needs_text="full"),
    "promptsrc": MethodInfo("deep_prompts:PromptSrc", "ivlp regularised towards frozen CLIP, averaged over epochs",
        "Khattak et al., ICCV 2023", needs_image="full", needs_text="full"),
    "provp": MethodInfo("deep_prompts:ProVp", "image tokens mixed between layers, and a contrastive loss",
        "Xu et al., IJCV 2024", needs_image="full"),
    "mmrl": MethodInfo("mmrl:Mmrl", "tokens from a shared space in both towers", "Guo and Gu, CVPR 2025",
        needs_image="full", needs_text="full"),
    "mmrlpp": MethodInfo("mmrl:MmrlPlus", "mmrl with shared low-rank projections", "Guo and Gu, IJCV 2026",
        needs_image="full", needs_text="full"),
    "tac": MethodInfo("tac:Tac", "ivlp in all layers, with tokens of the task", "Hao et al., CVPR 2025",
        needs_image="full", needs_text="full"),
    "skipt": MethodInfo("skipt:SkipT", "fine-tunes the upper half of both towers", "Wu et al., CVPR 2025",
        needs_image="full", needs_text="full"),
    "clip-lora": MethodInfo("changed_towers:ClipLora", "low-rank terms in all attention projections",
        "Zanella and Ben Ayed, CVPRW 2024", needs_image="full"),
    "2sfs": MethodInfo("changed_towers:TwoStage", "LayerNorms of both towers, then a linear classifier",
        "Farina et al., CVPR 2025", needs_image="full"),
    "clip-svd": MethodInfo("changed_towers:ClipSvd", "singular values of all attention and MLP matrices",
        "Koleilat et al., 2025", needs_image="full"),
    "experts": MethodInfo("experts:Experts", "attribute tokens that attend in the heads of their attribute only",
        "this project", needs_image="full", ours=True),
    "dear": MethodInfo("dear:Dear", "attribute tokens visible to heads by role, from layer 9 on",
        "Ma et al., CVPR 2026", needs_image="full", ours=True),
}  # fmt: skip

for _entry in entry_points(group="dear.methods"):  # methods that other packages bring
    METHODS.setdefault(_entry.name, MethodInfo(_entry.value, "of another package", "", package=""))

ZERO_SHOT = "zero-shot"
DEFAULT = "head-gains"  # of `dear train`, by the rule in results/clip/notes.md
UNFITTED = tuple(name for name, info in METHODS.items() if info.kind == "unfitted")
CLOSED_FORMS = tuple(name for name, info in METHODS.items() if info.kind == "closed form")
QUICK = ("linear-probe", "lp-plus-plus", "clap", "prolip", "head-gains")
"""Methods that `dear fit --thorough` adds: fitted in seconds once the states of the images are kept."""
COMPARED = ("head-gains", "clip-adapter", "experts", "dear")
"""Methods that `dear compare` tries after `simple_methods`: one of each kind, cheap ones first."""


_OWN: "dict[str, type[Method]]" = {}  # classes that were given in place of a name


def simple_methods() -> list[str]:
    """Fitted in seconds from frozen features of the labelled images: a training must beat them to be worth its time."""
    return ["linear-probe", "tip-adapter", *CLOSED_FORMS]


def is_ours(name: str) -> bool:
    return name in METHODS and METHODS[name].ours


def find_method(name: str) -> "type[Method]":
    if name not in METHODS:
        raise DearError(f"There is no method {name!r}: choose from {', '.join(METHODS)}.")
    if name in _OWN:
        return _OWN[name]
    info = METHODS[name]
    module, _, kind = info.where.partition(":")
    with needing(f"The method {name} cannot be imported", f"the package that has {module}, or correct its entry point"):
        return getattr(importlib.import_module(info.package + module), kind)


def name_of(kind: "type[Method]") -> str:
    """The name under which a class is registered; its own in lower case if it is not."""
    where = f"{kind.__module__}:{kind.__qualname__}"
    names = (name for name, info in METHODS.items() if info.package + info.where == where)
    return next(names, kind.__name__.lower())


def registered(method: "str | type[Method]") -> str:
    """The name of a method; a class of the caller's own is registered for this process."""
    if isinstance(method, str):
        return method
    from dear.methods.base import Method

    if not (isinstance(method, type) and issubclass(method, Method)):
        raise DearError(
            f"A method is a name from `dear methods` or a subclass of dear.methods.base.Method: {method!r}."
        )
    name, where = name_of(method), f"{method.__module__}:{method.__qualname__}"
    info = MethodInfo(where, "of the caller's own", "", package="")
    if METHODS.setdefault(name, info).package:
        if METHODS[name].package + METHODS[name].where != where:
            raise DearError(f"There is a method named {name!r} already: give your class another name.")
    else:
        METHODS[name], _OWN[name] = info, method
    return name


def methods_for(image: str, text: str, heads_sum: bool = True) -> list[str]:
    """The methods that work with towers of these tiers (`dear.clip.support.TIERS`).

    `heads_sum`: whether the state that is read is a sum of what heads write.
    """
    return [n for n, info in METHODS.items() if info.fits(image, text) and (heads_sum or not info.reads_heads)]


def working_methods(model: str, text_table: bool = False) -> list[str]:
    """The methods that work with a model, by its config, before its weights are fetched.

    All of them for a model of transformers, which tells what it is only once it is loaded; then the method itself
    refuses.
    """
    from dear.clip.load import TRANSFORMERS, usable_config
    from dear.clip.support import judge, sums_heads

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
    from dear.clip.support import reaches

    image, text = backbone.image.tier, backbone.text.tier
    name = name_of(kind)
    if name not in METHODS or METHODS[name].fits(image, text):
        return
    if not reaches(image, METHODS[name].needs_image):
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
    from dear.data.known import find_known

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
