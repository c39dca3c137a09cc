"""Methods with learned vectors in place of the words before each class name."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip import Backbone, LearnedTokens
from dear.clip.text import ClassTexts
from dear.data.prompts import fill
from dear.methods.base import Method
from dear.methods.deep_prompts import DASSL
from dear.methods.recipe import Recipe

COOP = Recipe(DASSL, lr=0.002, batch=32)
"""The recipe of CoOp and of the methods built on its code."""


def epochs_by_shots(recipe: Recipe) -> Recipe:
    """The recipe with CoOp's number of epochs per number of shots, under the few-shot protocol."""
    for shots, epochs in ((1, 50), (2, 100), (4, 100), (8, 200), (16, 200)):
        recipe = recipe.on("few-shot", shots=shots, epochs=epochs)
    return recipe


PLACEHOLDER = "X"  # one token in CLIP's vocabulary


class WordContext(Method):
    """The prompt of "cat" is "V1 .. Vn cat.", with V learned; like words, they have positional embeddings and are
    carried through all text layers. `classes.frozen` are CLIP's features of the dataset's own template."""

    context: nn.Parameter  # [tokens, width]

    @property
    def first_text_layer(self) -> int:
        return 1

    def prompts(self, names: Sequence[str], template: str) -> tuple[list[str], Sequence[int]]:
        count = len(self.context)
        words = " ".join([PLACEHOLDER] * count)
        return [f"{words} {name}." for name in names], range(1, 1 + count)

    @torch.no_grad()
    def encode_classes(self, names: Sequence[str], template: str) -> ClassTexts:
        text = self.backbone.text
        prompts = text.prompts(*self.prompts(names, template))
        frozen = text.encode([fill(template, name) for name in names])
        return ClassTexts(tuple(names), prompts, 1, text.embed(prompts), F.normalize(frozen, dim=-1))

    def encode_text(self, classes: ClassTexts) -> Tensor:
        return self.encode_with(self.context, classes)

    def encode_with(self, context: Tensor, classes: ClassTexts, deeper: Mapping[int, Tensor] | None = None) -> Tensor:
        """Text features, normalised, [classes, dim], with `context` [tokens, width] in the slots.

        `deeper`: layer -> tokens that replace the states in the slots, [tokens, width] or [classes, tokens, width].
        """
        text = self.backbone.text
        tokens = LearnedTokens({1: text.add_positions(context, classes.prompts), **(deeper or {})})
        return text.features(classes, tokens)


def random_words(backbone: Backbone, count: int, std: float = 0.02) -> nn.Parameter:
    """Learned vectors of the text tower's width, [count, width]; at most half of its context length."""
    count = min(count, backbone.text.context // 2)
    return nn.Parameter(backbone.normal(count, backbone.text.width, std=std))
