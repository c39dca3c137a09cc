"""The backbone of a command: the one that is named, or one that suits the data; its name is the first line printed."""

import sys
from collections.abc import Sequence

from dear.clip import MINI
from dear.core.errors import DearError, shortened
from dear.data.resolve import is_world

AUTO = "auto"
MODEL_HELP = (
    "OpenCLIP name (with --pretrained), transformers:FOLDER_OR_NAME, hf-hub:NAME, local-dir:FOLDER, or dear-mini; "
    "auto: dear-mini for Attribute World, for photos the best one in the local caches"
)
_TYPICAL = "--model ViT-B-16 --pretrained openai"


def choose_backbone(model: str, pretrained: str | None, data: Sequence[str]) -> tuple[str, str | None]:
    """--model and --pretrained for these datasets, with `auto` replaced; prints which, and warns of a toy."""
    drawn, note = all(map(is_world, data)), ""
    if model == AUTO:
        if drawn:
            model, pretrained = MINI, None
        else:
            model, pretrained, note = _cached()
    name = shortened(" ".join(filter(None, (model, pretrained)))).encode("utf-8", "backslashreplace").decode()
    print(f"backbone: {name}{note}", flush=True)
    if model == MINI and not drawn:
        print(
            f"dear: warning: {MINI} knows drawn pictures only: on photos it is little better than guessing, and its "
            f"numbers say nothing about CLIP. Use {_TYPICAL}.",
            file=sys.stderr,
        )
    return model, pretrained


def _cached() -> tuple[str, str | None, str]:
    from dear.clip.local_cache import best_cached

    best = best_cached()
    if best is None:
        raise DearError(
            f"Photos need a backbone, and there is none in the local caches: add {_TYPICAL} (600 MB are downloaded, "
            "once), or --model local-dir:FOLDER. `dear backbones` lists what can be used."
        )
    return best.model, best.pretrained, f" (found in {best.cache}; choose another with --model)"
