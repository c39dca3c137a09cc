"""ProGrad: CoOp without the part of the gradient that conflicts with zero-shot CLIP (Zhu et al., ICCV 2023)."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip import Backbone
from dear.clip.layer_input import LayerInput
from dear.core.config import Config, setting
from dear.methods.base import LabelledImages, Loss
from dear.methods.coop import COOP, WordContext, epochs_by_shots, random_words
from dear.methods.optional import Gradients
from dear.methods.recipe import Recipe


@dataclass(frozen=True)
class ProGradConfig(Config):
    """The learned context, and the projection of its gradient."""

    context_tokens: int = setting(
        16, "learned vectors: zeros, then the template's first words; at most half of the context length", low=1
    )
    projection: float = setting(1.0, "share of the conflicting part that is removed from the gradient", low=0.0)


class ProGrad(WordContext):
    """g = gradient of the cross entropy, h = gradient of KL(zero-shot, adapted): if <g, h> is negative, the share
    `projection` of g's component along h is removed.

    Differs from the official code: teacher and initial context come from the dataset's own template (there another one,
    with the type of the classes first), all of whose words before the name are learned (there a miscount leaves a word
    of some templates frozen); there is one copy of CLIP in one precision. The published tables are RN50 with 4 shots;
    others cite 16 shots on ViT-B/16, for which no settings were released: epochs and batch are those of 4 shots.
    """

    Config = ProGradConfig
    recipe = epochs_by_shots(Recipe(COOP, epochs=100)).on("cross-dataset", "domain", epochs=50)
    config: ProGradConfig

    def __init__(self, backbone: Backbone, config: ProGradConfig) -> None:
        super().__init__(backbone, config)
        self.context = random_words(backbone, config.context_tokens, std=0.0)

    @torch.no_grad()
    def before_training(self, images: LabelledImages) -> None:
        """Initialises the context: zeros, then the words of the template before the class name."""
        words = images.template.partition("{}")[0].strip()
        if words:
            start = self.backbone.text.word_embeddings(words)[-len(self.context) :]
            self.context[-len(start) :] = start

    def loss(self, x: LayerInput, labels: Tensor) -> Loss:
        features = self.encode_image(x)
        logits = self.logits(features, self.encode_text(self.classes))
        expected = self.logits(features, self.classes.frozen).softmax(-1)
        divergence = F.cross_entropy(logits, expected)  # KL up to a constant
        total = F.cross_entropy(logits, labels)
        return Loss(total, {"cross_entropy": total, "zero_shot": divergence}, logits)

    def backward(self, loss: Loss, gradients: Gradients) -> None:
        (general,), (own,) = gradients(loss.parts["zero_shot"], keep_graph=True), gradients(loss.total)
        assert general is not None
        assert own is not None
        self.context.grad = without_conflict(own, general, self.config.projection)


def without_conflict(own: Tensor, general: Tensor, share: float) -> Tensor:
    """`own` without `share` of its component against `general` (same shape) if <own, general> < 0; so never 0 / 0."""
    overlap = (own * general).sum()  # stays on the device: the host must not wait to compare it
    return torch.where(overlap < 0, own - share * overlap / general.square().sum() * general, own)
