"""ProGrad: CoOp without the part of a step that works against zero-shot CLIP (Zhu et al., ICCV 2023)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip import Backbone
from dear.clip.image import LayerInput
from dear.core.config import Config, setting
from dear.methods.base import LabelledImages, Loss
from dear.methods.shared.context import COOP_RECIPE, EPOCHS_BY_SHOTS, WordContext, random_words
from dear.parallel.processes import add_up


@dataclass(frozen=True)
class ProGradConfig(Config):
    """The learned context, and the projection of its gradient."""

    context_tokens: int = setting(
        16, "learned vectors: zeros, then the template's first words; at most half of what the backbone reads", low=1
    )
    projection: float = setting(1.0, "share of the conflicting part that is taken out of the gradient", low=0.0)


class ProGrad(WordContext):
    """g = gradient of the cross entropy, h = gradient of KL(zero-shot, adapted): where <g, h> is negative, the share
    `projection` of g's part along h is taken out.

    Differs from the official code: teacher and start come from the dataset's own template (there one of its own, with
    the type in front), all of whose words before the name are learned (there a miscount leaves one of some templates
    frozen); there is one copy of CLIP in one precision. Its published tables are RN50 with 4 shots; others cite 16
    shots on ViT-B/16, for which no settings were released: epochs and batch are those of the 4 shots.
    """

    Settings = ProGradConfig
    recipe: ClassVar[Mapping[str, Any]] = {**COOP_RECIPE, "epochs": 100}
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **EPOCHS_BY_SHOTS,
        "cross-dataset": {"epochs": 50},
        "domain": {"epochs": 50},
    }
    config: ProGradConfig

    def __init__(self, backbone: Backbone, config: ProGradConfig, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(backbone, config)
        self.context = random_words(backbone, config.context_tokens, std=0.0)

    @torch.no_grad()
    def look(self, shown: LabelledImages) -> None:
        """The start: zeros, then the words of the template in front of the class name."""
        words = shown.template.partition("{}")[0].strip()
        if words:
            start = self.backbone.text.words(words)[-len(self.context) :]
            self.context[-len(start) :] = start

    def loss(self, entry: LayerInput, labels: Tensor) -> Loss:
        features = self.image_features(entry)
        logits = self.logits(features, self.text_features())
        expected = self.logits(features, self.texts.frozen).softmax(-1)
        kept = F.cross_entropy(logits, expected)  # KL up to a constant
        total = F.cross_entropy(logits, labels)
        return Loss(total, {"cross_entropy": total, "zero_shot": kept}, logits)

    def backward(self, loss: Loss, scaled: Callable[[Tensor], Tensor]) -> None:
        (general,) = torch.autograd.grad(scaled(loss.parts["zero_shot"]), self.context, retain_graph=True)
        (own,) = torch.autograd.grad(scaled(loss.total), self.context)
        add_up([general, own])
        self.context.grad = without_conflict(own, general, self.config.projection)


def without_conflict(own: Tensor, general: Tensor, share: float) -> Tensor:
    """`own` less `share` of its part against `general`, of the same shape, where they point apart (so never 0 / 0)."""
    overlap = (own * general).sum()
    return own - share * overlap / general.square().sum() * general if overlap < 0 else own
