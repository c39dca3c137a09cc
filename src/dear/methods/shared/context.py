"""What methods share whose learned vectors stand in for the words in front of each class name."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip import Backbone, LearnedTokens
from dear.data.prompts import fill
from dear.methods.base import Method, Texts
from dear.methods.deep_prompts import DASSL, random_tokens

COOP_RECIPE: Mapping[str, Any] = MappingProxyType({**DASSL, "lr": 0.002, "batch": 32})
"""What CoOp and the methods built on its code train with."""

EPOCHS_BY_SHOTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {f"few-shot {shots}": {"epochs": epochs} for shots, epochs in ((1, 50), (2, 100), (4, 100), (8, 200), (16, 200))}
)
"""How long they do so where all classes are learned from few shots."""

PLACEHOLDER = "X"  # one token in CLIP's vocabulary


class WordContext(Method):
    """The class "cat" is read as "V1 .. Vn cat.", with V learned; like words, they have positions, and carry on from
    the first text layer to the last. `texts.frozen` is what CLIP makes of the dataset's own template."""

    context: nn.Parameter  # [tokens, width]

    @property
    def first_text_layer(self) -> int:
        return 1

    def sentences(self, names: Sequence[str], template: str) -> tuple[list[str], Sequence[int]]:
        places = len(self.context)
        words = " ".join([PLACEHOLDER] * places)
        return [f"{words} {name}." for name in names], range(1, 1 + places)

    @torch.no_grad()
    def read(self, names: Sequence[str], template: str) -> Texts:
        text = self.backbone.text
        prompts = text.prompts(*self.sentences(names, template))
        frozen = text.encode([fill(template, name) for name in names])
        return Texts(tuple(names), prompts, text.embed(prompts), F.normalize(frozen, dim=-1))

    def text_features(self, texts: Texts | None = None) -> Tensor:
        return self.encode_with(self.context, texts or self.texts)

    def encode_with(self, context: Tensor, texts: Texts, deeper: Mapping[int, Tensor] | None = None) -> Tensor:
        """Text features, normalised, [classes, dim], with `context` [tokens, width] in the slots.

        deeper: layer -> what takes the place of the slots' states there, [tokens, width] or one set a class.
        """
        text, prompts = self.backbone.text, texts.prompts
        tokens = LearnedTokens({1: text.placed(context, prompts), **(deeper or {})})
        return F.normalize(text.project(text.read_eot(texts.states, prompts, 1, tokens)), dim=-1)


def random_words(backbone: Backbone, count: int, std: float = 0.02) -> nn.Parameter:
    """Learned vectors of the text tower's width, [count, width]; at most half of what it reads is theirs."""
    like, count = backbone.text.module.positional_embedding, min(count, backbone.text.context // 2)
    return nn.Parameter(random_tokens(like, 1, count, backbone.text.width, std)[0])
