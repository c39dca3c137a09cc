"""KgCoOp: CoOp with class texts kept close to those of a hand-written prompt (Yao et al., CVPR 2023)."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from dear.clip.layer_input import LayerInput
from dear.core.config import setting
from dear.methods.base import Loss, cosine_distance
from dear.methods.coop import CoOp, CoOpConfig
from dear.methods.recipe import Recipe
from dear.methods.shared.context import COOP


@dataclass(frozen=True)
class KgCoOpConfig(CoOpConfig):
    """The learned context and its regularisation."""

    knowledge: float = setting(
        8.0, "weight of 1 - cos between class texts of learned and hand-written prompts", low=0.0
    )


class KgCoOp(CoOp):
    """L = CE + 8 (1 - mean over classes of cos(learned class text, class text of the template)).

    Differs from the official code: the template is the dataset's own (there a table, with another one for DTD); modules
    that are never used are left out. Until August 2023 the official trainer stepped two schedulers, so that under newer
    PyTorch its rate stayed below 1e-5; it is not known which version the published numbers come from. This is the
    repaired one: the rate rises to 0.002.
    """

    Config = KgCoOpConfig
    recipe = Recipe(COOP, epochs=100, batch=128)
    config: KgCoOpConfig

    def loss(self, x: LayerInput, labels: Tensor) -> Loss:
        text = self.encode_text(self.classes)
        logits = self.logits(self.encode_image(x), text)
        parts = {
            "cross_entropy": F.cross_entropy(logits, labels),
            "knowledge": cosine_distance(text, self.classes.frozen),
        }
        return Loss(parts["cross_entropy"] + self.config.knowledge * parts["knowledge"], parts, logits)
