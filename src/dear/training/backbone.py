"""The backbone of a command: the one that is named, or one that suits the data; its name is the first line."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from dear.clip import MINI, Backbone, load_backbone
from dear.core.errors import DearError, warn
from dear.core.names import AUTO
from dear.core.words import backbone_line
from dear.data.resolve import is_world

MODEL_HELP = (
    "OpenCLIP name (with --pretrained), transformers:FOLDER_OR_NAME, hf-hub:NAME, local-dir:FOLDER, or dear-mini; "
    "auto: dear-mini for Attribute World, for photos the best one in the local caches"
)
_TYPICAL = "--model ViT-B-16 --pretrained openai"


class BackboneChoice(NamedTuple):
    """The backbone that --model and --pretrained name, or the one chosen in their place, and why."""

    model: str
    pretrained: str | None
    note: str = ""
    is_toy: bool = False  # dear-mini, on something else than drawn pictures

    def load(self, device: str | torch.device, precision: str, text_features: str | None = None) -> Backbone:
        """Loads it; `say` its name when all else is accepted."""
        return load_backbone(
            self.model, self.pretrained, device=device, precision=precision, text_features=text_features
        )

    def say(self) -> None:
        """Prints the name; warns of a toy."""
        line = backbone_line(self.model, self.pretrained, self.note)
        print(line.encode("utf-8", "backslashreplace").decode(), flush=True)
        if self.is_toy:
            warn(
                f"{MINI} knows drawn pictures only: on photos it is little better than guessing, and its numbers say "
                f"nothing about CLIP. Use {_TYPICAL}."
            )


def choose_backbone(model: str, pretrained: str | None, data: Sequence[str]) -> BackboneChoice:
    """The backbone for these datasets: `auto` becomes dear-mini for Attribute World, for photos the best one in the
    local caches."""
    from dear.clip.local_cache import best_cached

    is_drawn = all(map(is_world, data))
    if model != AUTO:
        return BackboneChoice(model, pretrained, is_toy=model == MINI and not is_drawn)
    if pretrained:
        raise DearError("--pretrained names weights of a model: name the model, too, with --model.")
    if is_drawn:
        return BackboneChoice(MINI, None)
    best = best_cached()
    if best is None:
        raise DearError(
            f"Photos need a backbone, and there is none in the local caches: add {_TYPICAL} (600 MB are downloaded, "
            "once), or --model local-dir:FOLDER. `dear backbones` lists what can be used."
        )
    return BackboneChoice(best.model, best.pretrained, f" (found in {best.cache}; choose another with --model)")
