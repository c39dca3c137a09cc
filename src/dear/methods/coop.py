"""CoOp: the words in front of the class name, learned (Zhou et al., IJCV 2022)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from dear.clip import Backbone
from dear.core.config import Config, setting
from dear.methods.shared.context import COOP_RECIPE, EPOCHS_BY_SHOTS, WordContext, random_words


@dataclass(frozen=True)
class CoOpConfig(Config):
    """The learned context."""

    context_words: str = setting("a photo of a", "words that the context starts as; empty: at random")
    context_tokens: int = setting(
        16, "learned vectors where they start at random; at most half of what the backbone reads", low=1
    )


class CoOp(WordContext):
    """Cross entropy moves n vectors that all classes share; both towers stay frozen.

    Differs from the official code: the context is fp32 (there half precision, in which the small steps of the warm-up
    vanish), and stands in front of the name for all classes alike (there it may also stand behind or around the name,
    or be one for each class: none of these is in its published tables for novel classes).
    """

    Settings: ClassVar[type[Config]] = CoOpConfig
    recipe: ClassVar[Mapping[str, Any]] = {**COOP_RECIPE, "epochs": 200}
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "few-shot": {"context_words": ""},
        **EPOCHS_BY_SHOTS,
        "cross-dataset": {"epochs": 50},
        "domain": {"epochs": 50},
    }
    config: CoOpConfig

    def __init__(self, backbone: Backbone, config: CoOpConfig, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(backbone, config)
        if config.context_words.strip():
            self.context = nn.Parameter(backbone.text.words(config.context_words).clone())
        else:
            self.context = random_words(backbone, config.context_tokens)
