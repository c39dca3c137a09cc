"""MMRL: tokens from one shared space in both towers, with a projection of their own (CVPR 2025); MMRL++ (IJCV 2026)."""

from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip import Backbone, LearnedTokens
from dear.clip.layer_input import LayerInput
from dear.clip.text import ClassTexts
from dear.core.config import Config as Settings
from dear.core.config import setting
from dear.core.names import CLS
from dear.methods.base import Loss, Method, normalized
from dear.methods.recipe import Recipe
from dear.methods.shared.towers import first_layer

ADAMW = Recipe(optimizer="adamw", lr=1e-3, weight_decay=5e-4, crop=0.5, drop_last=True)


@dataclass(frozen=True)
class MmrlConfig(Settings):
    """Representation tokens."""

    first_layer: int | None = setting(
        None, "first image layer with tokens; default: half of the layers, 6 of 12", low=1, high=1000
    )
    tokens: int = setting(5, "number of shared tokens", low=1, high=1000)
    space: int = setting(512, "width of the shared tokens", low=1, high=4096)
    alpha: float = setting(0.7, "weight of the class feature, against that of the tokens", low=0.0, high=1.0)
    lambda_reg: float = setting(0.5, "weight of the distance to frozen CLIP's features", low=0.0, high=1e6)


class Mmrl(Method):
    """Tokens of layer l are a projection F_l(R) of the shared R and replace the output of the layer before.

    z = alpha z_cls + (1 - alpha) z_tokens; L = alpha CE(z_cls) + (1 - alpha) CE(z_tokens)
    + lambda [(1 - cos(f_cls, f0)) + (1 - cos(w, w0))]. Differs from the official code: lambda is the same for all
    datasets (there from 0.01 to 7 by dataset: `--published-constants`), and inference does not depend on whether
    classes are novel: `fusion` is used throughout, `decoupled` (the class feature alone) is measured beside it.
    """

    Config: ClassVar[type[Settings]] = MmrlConfig
    recipe = (
        Recipe(ADAMW, epochs=10, batch=4)
        .on("few-shot", epochs=50, batch=32)
        .on("cross-dataset", "domain", epochs=1, batch=32, warmup_epochs=0, lambda_reg=0.2)
    )
    components = (CLS, "tokens")
    config: MmrlConfig
    beta = 1.0
    alpha: Tensor  # weights of the class feature and of the tokens

    def __init__(self, backbone: Backbone, config: MmrlConfig) -> None:
        super().__init__(backbone, config)
        image, text, like = backbone.image, backbone.text, backbone.image.like
        self.space = nn.Parameter(0.02 * torch.randn(self.config.tokens, self.config.space).to(like))
        self._layers = range(self.first_layer, image.layers + 1)
        self._text_layers = range(self.first_text_layer, text.layers + 1)
        self.register_buffer("alpha", like.new_tensor([config.alpha, 1 - config.alpha]), persistent=False)
        self._build(image.width, text.width, like)

    def _build(self, image_width: int, text_width: int, like: Tensor) -> None:
        """The projections of all layers start as copies of one random draw."""
        image_start = nn.Linear(self.config.space, image_width).to(like)
        text_start = nn.Linear(self.config.space, text_width).to(like)
        self.into_image = nn.ModuleList([deepcopy(image_start) for _ in self._layers])
        self.into_text = nn.ModuleList([deepcopy(text_start) for _ in self._text_layers])
        self.projection = nn.Parameter(torch.randn_like(self.backbone.image.projection) * image_width**-0.5)

    @property
    def first_layer(self) -> int:
        layers = self.backbone.image.layers
        return first_layer(self.config.first_layer, max(1, layers // 2), layers)

    @property
    def first_text_layer(self) -> int:
        return self.backbone.text_layer(self.first_layer)

    def image_layers(self) -> dict[int, Tensor]:
        return {layer: into(self.space) for layer, into in zip(self._layers, self.into_image, strict=True)}

    def text_layers(self) -> dict[int, Tensor]:
        return {layer: into(self.space) for layer, into in zip(self._text_layers, self.into_text, strict=True)}

    def token_projection(self) -> Tensor:
        """P_r, the projection of the tokens, [width, dim]."""
        return self.projection

    def encode_text(self, classes: ClassTexts) -> Tensor:
        return self.backbone.text.features(classes, LearnedTokens(self.text_layers(), self.beta))

    def encode_image(self, x: LayerInput) -> Tensor:
        tokens = LearnedTokens(self.image_layers(), self.beta)
        out = self.backbone.image.features(x, tokens, read_tokens=True)
        assert out.tokens is not None
        return normalized(out.cls, out.tokens.mean(1) @ self.token_projection())

    def fusion_weights(self) -> Tensor:
        return self.alpha

    def loss(self, x: LayerInput, labels: Tensor) -> Loss:
        features, text, alpha = self.encode_image(x), self.encode_text(self.classes), self.config.alpha
        cls_logits, token_logits = self.votes(features, text).unbind(1)
        image_cos = (features[:, 0] * self.backbone.image.frozen_feature(x)).sum(-1).mean()
        text_cos = (text * self.classes.frozen).sum(-1).mean()
        parts = {
            "cross_entropy": alpha * F.cross_entropy(cls_logits, labels)
            + (1 - alpha) * F.cross_entropy(token_logits, labels),
            "regulariser": self.config.lambda_reg * (2 - (image_cos + text_cos)),
        }
        return Loss(parts["cross_entropy"] + parts["regulariser"], parts, self.logits(features, text))


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
        """Shared tokens [tokens, space] -> tokens of all layers [layers, tokens, width]."""
        return F.linear(tokens, self.weight) + tokens @ self.up.mT @ self.down.mT + self.bias[:, None]


class MmrlPlus(Mmrl):
    """MMRL with shared, low-rank projections, and tokens mixed between layers.

    Differs from the official code as MMRL does, and in beta: the same for all datasets and at test (there the test uses
    the beta of the target dataset).
    """

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
