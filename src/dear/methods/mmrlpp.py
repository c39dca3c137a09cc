"""MMRL++: MMRL with shared, low-rank projections and tokens mixed between layers (IJCV 2026)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.core.config import setting
from dear.methods.mmrl import Mmrl, MmrlConfig
from dear.methods.recipe import Recipe


@dataclass(frozen=True)
class MmrlPlusConfig(MmrlConfig):
    """Representation tokens, mixed between layers."""

    beta: float = setting(
        0.9, "weight of a layer's own tokens, against the output of the layer before", low=0.0, high=1.0
    )
    rank: int = setting(4, "rank of each layer's term in the shared projection", low=1, high=1000)
    projection_rank: int = setting(64, "rank of the term in CLIP's image projection", low=1, high=1000)
    lambda_reg: float = setting(0.2, "weight of the distance to frozen CLIP's features", low=0.0, high=1e6)


class SharedProjections(nn.Module):
    """(W + A_l B_l) r + b_l for every layer l; B starts at zero, so all layers start alike.

    A is drawn as in the official code, whose bound depends on the rank and not on the width: with smaller values the
    same learning rate would have another effect.
    """

    def __init__(self, space: int, width: int, layers: int, rank: int, like: Tensor) -> None:
        super().__init__()
        start = nn.Linear(space, width)
        bound = rank**-0.5
        self.weight = nn.Parameter(start.weight.detach().to(like))
        self.bias = nn.Parameter(start.bias.detach().to(like).expand(layers, -1).clone())
        self.down = nn.Parameter(torch.empty(layers, width, rank).uniform_(-bound, bound).to(like))
        self.up = nn.Parameter(torch.zeros(layers, rank, space).to(like))

    def forward(self, tokens: Tensor) -> Tensor:
        """[tokens, space] -> [layers, tokens, width]."""
        return F.linear(tokens, self.weight) + tokens @ self.up.mT @ self.down.mT + self.bias[:, None]


class MmrlPlus(Mmrl):
    """Differs from the official code as MMRL does, and in beta: the same for all datasets and at test (there the test
    uses the beta of the target dataset)."""

    Config = MmrlPlusConfig
    recipe = (
        Recipe(Mmrl.recipe)
        .on("few-shot", epochs=100, batch=32, lr=2e-3)
        .on("cross-dataset", "domain", epochs=1, batch=32, warmup_epochs=0, lambda_reg=0.1)
    )
    config: MmrlPlusConfig

    @property
    def beta(self) -> float:  # type: ignore[override]
        return self.config.beta

    def _build(self, image_width: int, text_width: int, like: Tensor) -> None:
        space, rank = self.config.space, self.config.rank
        self.of_image = SharedProjections(space, image_width, len(self._layers), rank, like)
        self.of_text = SharedProjections(space, text_width, len(self._text_layers), rank, like)
        bound = self.config.projection_rank**-0.5
        self.down = nn.Parameter(torch.empty(image_width, self.config.projection_rank).uniform_(-bound, bound).to(like))
        self.up = nn.Parameter(torch.zeros(self.config.projection_rank, self.backbone.dim).to(like))

    def image_layers(self) -> dict[int, Tensor]:
        return dict(zip(self._layers, self.of_image(self.space), strict=True))

    def text_layers(self) -> dict[int, Tensor]:
        return dict(zip(self._text_layers, self.of_text(self.space), strict=True))

    def token_projection(self) -> Tensor:
        """CLIP's projection and a low-rank term that starts at zero."""
        return self.backbone.image.projection + self.down @ self.up
