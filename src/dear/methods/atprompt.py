"""ATPrompt: attribute words, each with learned tokens, before the class name (Li et al., ICCV 2025)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dear.clip import Backbone, LearnedTokens
from dear.clip.text import ClassTexts
from dear.core.config import Config, setting
from dear.methods.coop import COOP, WordContext, random_words
from dear.methods.deep_prompts import Maple, MapleConfig, placeholders
from dear.methods.recipe import Recipe


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
        lead, places, last = attribute_words(self.backbone, self.attributes, len(self.context))
        return [f"{lead} {name}." for name in names], [*places, *last]

    def encode_text(self, classes: ClassTexts) -> Tensor:
        return self.encode_with(torch.cat([*self.of_attributes, self.context]), classes)


@dataclass(frozen=True)
class MapleATPromptConfig(MapleConfig):
    """Coupled tokens, and the attribute words before them."""

    attributes: str = setting("color shape", "attribute words in the prompt, in order")
    text_tokens: int = setting(4, "learned tokens before each attribute word and before the class name", low=1, high=30)


class MapleATPrompt(Maple):
    """The prompt of "cat" is "V V color V V shape V V cat."; only the last V are MaPLe's, replaced at each layer and
    coupled to the image. Attribute words and their tokens are carried on.

    Differs from the official code as `atprompt` and `maple` do: ImageNet's attributes for all datasets unless
    --attributes names others, words that are not cut, fp32; the same number of tokens before the name as before an
    attribute (the official script for cross-dataset leaves the former at two). As there, MaPLe's tokens start at
    random. Cross-dataset: two epochs, as its documentation says (its script has three).
    """

    Config = MapleATPromptConfig
    config: MapleATPromptConfig
    lead_places: Tensor  # positions of the attributes' learned tokens

    def __init__(self, backbone: Backbone, config: MapleATPromptConfig) -> None:
        super().__init__(backbone, config)
        width, count = backbone.text.width, config.text_tokens
        self.lead, places, self.last = attribute_words(backbone, self.config.attributes.split(), count)
        self.register_buffer(
            "lead_places", torch.tensor(places, dtype=torch.long, device=self.text_tokens.device), persistent=False
        )
        self.of_attributes = nn.Parameter(backbone.normal(len(places) // count, count, width, std=0.01))
        with torch.no_grad():
            self.text_tokens[0] = backbone.normal(count, width, std=config.token_std)

    def prompts(self, names: Sequence[str], template: str) -> tuple[list[str], Sequence[int]]:
        return [f"{self.lead} {name}." for name in names], self.last

    def encode_text(self, classes: ClassTexts) -> Tensor:
        text = self.backbone.text
        states = text.put_words(classes.states, self.lead_places, self.of_attributes.flatten(0, 1))
        return text.features(classes._replace(states=states), LearnedTokens(self.text_layers(classes)))


def attribute_words(backbone: Backbone, attributes: Sequence[str], count: int) -> tuple[str, list[int], range]:
    """The words before a class name: `count` learned tokens before each attribute word, and as many after the last.

    Also the positions of the former and of the latter in the prompt.
    """
    places: list[int] = []
    start = 1
    for word in attributes:
        places += range(start, start + count)
        start += count + len(backbone.text.word_embeddings(word))
    learned = placeholders(count)
    lead = "".join(f"{learned} {word} " for word in attributes) + learned
    return lead, places, range(start, start + count)
