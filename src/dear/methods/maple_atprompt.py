"""ATPrompt with MaPLe: attribute words, each with learned tokens, before MaPLe's tokens (Li et al., ICCV 2025)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dear.clip import Backbone, LearnedTokens
from dear.clip.text import ClassTexts
from dear.core.config import setting
from dear.methods.maple import Maple, MapleConfig


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
        self.words = self.config.attributes.split()
        self.lead, places = self._lead()
        self.register_buffer(
            "lead_places", torch.tensor(places, dtype=torch.long, device=self.text_tokens.device), persistent=False
        )
        self.of_attributes = nn.Parameter(backbone.normal(len(self.words), count, width, std=0.01))
        with torch.no_grad():
            self.text_tokens[0] = backbone.normal(count, width, std=config.token_std)

    def prompts(self, names: Sequence[str], template: str) -> tuple[list[str], Sequence[int]]:
        start, count = 1 + len(self.backbone.text.word_embeddings(self.lead)), self.config.text_tokens
        placeholders = " ".join(["X"] * count)
        return [f"{self.lead} {placeholders} {name}.".strip() for name in names], range(start, start + count)

    def _lead(self) -> tuple[str, list[int]]:
        """The words before MaPLe's tokens, and the positions of the attributes' learned tokens among them."""
        place, count = 1, self.config.text_tokens
        places: list[int] = []
        for word in self.words:
            places += range(place, place + count)
            place += count + len(self.backbone.text.word_embeddings(word))
        return " ".join(f"{'X ' * count}{word}" for word in self.words), places

    def encode_text(self, classes: ClassTexts) -> Tensor:
        text = self.backbone.text
        states = text.put_words(classes.states, self.lead_places, self.of_attributes.flatten(0, 1))
        return text.features(classes._replace(states=states), LearnedTokens(self.text_layers(classes)))
