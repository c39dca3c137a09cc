"""ATPrompt with CoOp: attribute words, each with learned vectors, before the class name (Li et al., ICCV 2025)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dear.clip import Backbone
from dear.clip.text import ClassTexts
from dear.core.config import Config, setting
from dear.methods.recipe import Recipe
from dear.methods.shared.context import COOP, PLACEHOLDER, WordContext, random_words


@dataclass(frozen=True)
class ATPromptConfig(Config):
    """The learned contexts, and the words between them."""

    attributes: str = setting("color shape", "attribute words in the prompt, in order")
    context_tokens: int = setting(2, "learned vectors before each attribute word and before the class name", low=1)


class ATPrompt(WordContext):
    """The prompt of "cat" is "V V color V V shape V V cat.", with V learned and the attribute words frozen.

    Differs from the official code: all datasets use ImageNet's attributes, unless --attributes names others (there each
    dataset has its own, from a search over a language model's words; cross-dataset tests use those of the *target*, so
    that some vectors were never trained). Attribute words are not cut (there "playfulness", two tokens, is cut in half
    and displaces the next attribute). Only vectors in use are created.
    """

    Config = ATPromptConfig
    recipe = Recipe(COOP, epochs=100).on("cross-dataset", "domain", context_tokens=4, epochs=10)
    config: ATPromptConfig

    def __init__(self, backbone: Backbone, config: ATPromptConfig) -> None:
        super().__init__(backbone, config)
        self.attributes = config.attributes.split()
        self.of_attributes = nn.ParameterList(
            random_words(backbone, config.context_tokens, std=0.01) for _ in self.attributes
        )
        self.context = random_words(backbone, config.context_tokens)

    def prompts(self, names: Sequence[str], template: str) -> tuple[list[str], Sequence[int]]:
        count, place = len(self.context), 1
        slots: list[int] = []
        words: list[str] = []
        for attribute in [*self.attributes, ""]:
            slots += range(place, place + count)
            words += [PLACEHOLDER] * count + [attribute] * bool(attribute)
            place += count + (len(self.backbone.text.word_embeddings(attribute)) if attribute else 0)
        return [f"{' '.join(words)} {name}." for name in names], slots

    def encode_text(self, classes: ClassTexts) -> Tensor:
        return self.encode_with(torch.cat([*self.of_attributes, self.context]), classes)
