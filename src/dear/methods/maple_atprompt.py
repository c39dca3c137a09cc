"""ATPrompt with MaPLe: words for attributes, each with learned tokens, before MaPLe's own (Li et al., ICCV 2025)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip import Backbone, LearnedTokens
from dear.core.config import Config, setting
from dear.methods.base import Texts
from dear.methods.deep_prompts import random_tokens
from dear.methods.maple import Maple, MapleConfig


@dataclass(frozen=True)
class MapleATPromptConfig(MapleConfig):
    """Coupled tokens, and the words before them."""

    attributes: str = setting("color shape", "words of the attributes, in order")
    text_tokens: int = setting(4, "learned tokens before each attribute and before the class name", low=1, high=30)


class MapleATPrompt(Maple):
    """The class "cat" is read as "V V color V V shape V V cat."; only the last V are MaPLe's, replaced layer by layer
    and coupled to the image. The tokens of attributes, and their words, carry on.

    Differs from the official code as `atprompt` and `maple` do: ImageNet's attributes everywhere unless others are
    given, whole words, fp32. MaPLe's tokens start at random here, as there.
    """

    Settings: ClassVar[type[Config]] = MapleATPromptConfig
    recipe: ClassVar[Mapping[str, Any]] = {**Maple.recipe, "epochs": 5}
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    config: MapleATPromptConfig

    def __init__(self, backbone: Backbone, config: Config, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(backbone, config)
        width, count, like = backbone.text.width, self.config.text_tokens, self.text_tokens
        self.words = self.config.attributes.split()
        self.of_attributes = nn.Parameter(random_tokens(like, len(self.words), count, width, 0.01))
        with torch.no_grad():
            like[0] = random_tokens(like, 1, count, width, self.config.token_std)[0]

    def sentences(self, names: Sequence[str], template: str) -> tuple[list[str], Sequence[int]]:
        lead, _ = self._lead()
        start, count = 1 + len(self.backbone.text.words(lead)), self.config.text_tokens
        own = " ".join(["X"] * count)
        return [f"{lead} {own} {name}.".strip() for name in names], range(start, start + count)

    def _lead(self) -> tuple[str, list[int]]:
        """What stands before MaPLe's own tokens, and where its learned tokens are."""
        place, count = 1, self.config.text_tokens
        places: list[int] = []
        for word in self.words:
            places += range(place, place + count)
            place += count + len(self.backbone.text.words(word))
        return " ".join(f"{'X ' * count}{word}" for word in self.words), places

    def text_features(self, texts: Texts | None = None) -> Tensor:
        text, texts = self.backbone.text, texts or self.texts
        places = torch.tensor(self._lead()[1], dtype=torch.long, device=texts.states.device)
        placed = self.of_attributes.flatten(0, 1) + text.module.positional_embedding[places].detach()
        states = texts.states.index_copy(0, places, placed.to(texts.states.dtype))
        eot = text.read_eot(states, texts.prompts, 1, LearnedTokens(self.text_layers(texts)))
        return F.normalize(text.project(eot), dim=-1)
