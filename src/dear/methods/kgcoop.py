"""KgCoOp: CoOp held near the text of the hand-written prompt (Yao et al., CVPR 2023)."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from dear.clip.layer_input import LayerInput
from dear.core.config import setting
from dear.methods.base import Loss
from dear.methods.coop import CoOp, CoOpConfig
from dear.methods.recipe import Recipe
from dear.methods.shared.context import COOP


@dataclass(frozen=True)
class KgCoOpConfig(CoOpConfig):
    """The learned context, and what holds it."""

    knowledge: float = setting(8.0, "weight of 1 - cos between learned and hand-written class text", low=0.0)


class KgCoOp(CoOp):
    """Loss: cross entropy + 8 (1 - mean over the classes of cos(learned text, text of the template)).

    Differs from the official code: the template is the dataset's own (there a table, in which DTD's is another one);
    the modules it creates and never uses are left out. Until August 2023 the official trainer stepped two schedulers,
    so that under newer PyTorch its rate stayed below 1e-5; which of them the published numbers come from is not known.
    Here is the repaired one: the rate rises to 0.002.
    """

    Config = KgCoOpConfig
    recipe = Recipe(COOP, epochs=100, batch=128)
    config: KgCoOpConfig

    def loss(self, x: LayerInput, labels: Tensor) -> Loss:
        text = self.encode_text()
        logits = self.logits(self.encode_image(x), text)
        parts = {"cross_entropy": F.cross_entropy(logits, labels), "knowledge": drift(text, self.classes.frozen)}
        return Loss(parts["cross_entropy"] + self.config.knowledge * parts["knowledge"], parts, logits)


def drift(text: Tensor, frozen: Tensor) -> Tensor:
    """1 - mean cosine of normalised [classes, dim]."""
    return 1 - (text * frozen).sum(-1).mean()
