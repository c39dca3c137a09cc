"""CoOp: learned vectors in place of the words before the class name (Zhou et al., IJCV 2022)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from dear.clip import Backbone
from dear.core.config import Config as Settings
from dear.core.config import setting
from dear.methods.recipe import Recipe
from dear.methods.shared.context import COOP, WordContext, epochs_by_shots, random_words


@dataclass(frozen=True)
class CoOpConfig(Settings):
    """The learned context."""

    context_words: str = setting("a photo of a", "words that initialise the context; empty: random")
    context_tokens: int = setting(
        16, "number of learned vectors if they start at random; at most half of the context length", low=1
    )


class CoOp(WordContext):
    """n context vectors, shared by all classes, are learned with cross entropy; both towers stay frozen.

    Differs from the official code: the context is fp32 (there half precision, in which the small steps of the warm-up
    vanish), comes before the name, and is shared by all classes (there it may also come after or around the name, or be
    learned per class: none of these is in its published tables for novel classes).
    """

    Config: ClassVar[type[Settings]] = CoOpConfig
    recipe = epochs_by_shots(Recipe(COOP, epochs=200).on("few-shot", context_words="")).on(
        "cross-dataset", "domain", epochs=50
    )
    config: CoOpConfig

    def __init__(self, backbone: Backbone, config: CoOpConfig) -> None:
        super().__init__(backbone, config)
        if config.context_words.strip():
            self.context = nn.Parameter(backbone.text.word_embeddings(config.context_words).clone())
        else:
            self.context = random_words(backbone, config.context_tokens)
