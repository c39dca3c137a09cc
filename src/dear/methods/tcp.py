"""TCP: CoOp with tokens from each class text in the deeper text layers (Yao et al., CVPR 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass

from open_clip.transformer import QuickGELU
from torch import Tensor, nn

from dear.clip import Backbone
from dear.clip.image import last_third
from dear.clip.text import ClassTexts
from dear.core.config import setting
from dear.methods.kgcoop import KgCoOp, KgCoOpConfig
from dear.methods.recipe import Recipe
from dear.methods.shared.context import COOP


@dataclass(frozen=True)
class TCPConfig(KgCoOpConfig):
    """The learned context, the class tokens and the regularisation."""

    context_words: str = setting("", "words that initialise the context; empty: random")
    context_tokens: int = setting(
        4, "number of learned vectors if they start at random; at most half of the context length", low=1
    )


class TCP(KgCoOp):
    """At the first layer of the last third (9 of 12), the context is replaced by tokens that a small network computes
    from the frozen class text. Loss: KgCoOp's.

    Differs from the official code: one template, the dataset's own (there one for the network and the loss, and another
    for the words after the class name; for UCF101 "person doing" stays before the name there). Adam's eps is 1e-3 as
    there, though that was for half precision: with 1e-8 the steps would differ. The mixing weight, which the official
    code ignores, is left out. It evaluates novel classes of ImageNet and SUN397 at epoch 25 of 50; with
    --published-constants, these two are trained for 25 epochs.
    """

    Config = TCPConfig
    recipe = Recipe(COOP, epochs=50, optimizer="adam", eps=1e-3)
    config: TCPConfig

    def __init__(self, backbone: Backbone, config: TCPConfig) -> None:
        super().__init__(backbone, config)
        hidden = backbone.dim // 4
        self.network = nn.Sequential(
            nn.Linear(backbone.dim, hidden), QuickGELU(), nn.Linear(hidden, self.context.numel())
        ).to(self.context)

    def prompts(self, names: Sequence[str], template: str) -> tuple[list[str], Sequence[int]]:
        """The learned context, the class name, and the end of the template."""
        _, _, end = template.partition("{}")
        prompts, slots = super().prompts(names, template)
        return [prompt.removesuffix(".") + end for prompt in prompts], slots

    def class_tokens(self, classes: ClassTexts) -> Tensor:
        """[classes, tokens, width]."""
        return self.network(classes.frozen).unflatten(-1, self.context.shape)

    def encode_text(self, classes: ClassTexts) -> Tensor:
        deeper = {last_third(self.backbone.text.layers): self.class_tokens(classes)}
        return self.encode_with(self.context, classes, deeper)
