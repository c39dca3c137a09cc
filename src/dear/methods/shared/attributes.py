"""What DeAR and expert tokens share: tokens for core attributes, text tokens, learned fusion. Eq. 6, 10-19."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip import Backbone, LearnedTokens
from dear.clip.image import last_third
from dear.core.config import setting
from dear.core.errors import DearError
from dear.heads.role_map import RoleMap
from dear.methods.base import CLS, DECOUPLED, FUSION, Method, Texts
from dear.methods.shared.role_settings import RoleSettings, pick_roles


@dataclass(frozen=True)
class AttributeSettings(RoleSettings):
    """Attribute tokens and their fusion."""

    first_layer: int | None = setting(
        None, "first adapted image layer J, from 1; default: the last third, 9 of 12", low=1, advanced=True
    )
    tokens_per_attribute: int = setting(1, "learnable tokens for each core attribute", low=1, high=1000, advanced=True)
    text_tokens: int = setting(
        5, "learnable tokens on the text side, between BOT and the words", low=1, high=1000, advanced=True
    )
    token_std: float = setting(0.02, "standard deviation of the tokens at the start", low=0.0, high=10.0, advanced=True)
    beta: float = setting(
        0.9, "weight of the raw token between layers: 1 re-injects it, 0 carries on", low=0.0, high=1.0, advanced=True
    )
    fusion_init: float = setting(
        0.9, "fusion weight of the class feature at the start", low=0.01, high=0.99, advanced=True
    )
    fusion_loss: str = setting(
        "linear", "L_fusion: linear is 1 - alpha_cls, log is -log alpha_cls", choices=("linear", "log"), advanced=True
    )
    lambda_reg: float = setting(1.0, "weight of the self-regularisation", low=0.0, advanced=True)
    lambda_fusion: float = setting(0.7, "weight of L_fusion", low=0.0, advanced=True)
    fusion_lr: float | None = setting(
        None, "learning rate of the fusion weights; default: the same", low=0.0, advanced=True
    )


def text_layer_of(backbone: Backbone, first: int) -> int:
    """The text layer that corresponds to image layer `first`: of another depth, the same share is adapted."""
    image, text = backbone.image, backbone.text
    adapted = round((image.layers - first + 1) * text.layers / image.layers)
    return text.layers - max(1, adapted) + 1


class AttributeMethod(Method):
    """A class feature, one feature for each attribute, and the weights with which they vote."""

    inferences: ClassVar[tuple[str, ...]] = (FUSION, DECOUPLED)
    config: AttributeSettings
    roles: RoleMap

    def __init__(self, backbone: Backbone, config: AttributeSettings, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(backbone, config)
        image, text = backbone.image, backbone.text
        first = config.first_layer or last_third(image.layers)
        if first > image.layers:
            raise DearError(f"--first-layer {first} is beyond the {image.layers} layers of the image tower.")
        roles = pick_roles(config, backbone) if facts is None else RoleMap.from_json(facts["roles"])
        roles.check_backbone(backbone.identity.to_json(), image.layers, image.heads)
        self.roles, self._first = roles.for_layers(first), first
        self.attributes = self.pick_attributes()
        self.components = (CLS, *self.attributes)
        self.token_of = [name for name in self.attributes for _ in range(config.tokens_per_attribute)]

        like = image.visual.proj
        options = {"device": like.device, "dtype": like.dtype}
        self.tokens = nn.Parameter(config.token_std * torch.randn(len(self.token_of), image.width, **options))
        self.text_tokens = nn.Parameter(config.token_std * torch.randn(config.text_tokens, text.width, **options))
        self.projection = nn.Parameter(self.start_projection(like.detach()))
        shares = torch.full((len(self.components),), (1 - config.fusion_init) / len(self.attributes), **options)
        shares[0] = config.fusion_init
        self.fusion = nn.Parameter(shares.log())

    def pick_attributes(self) -> tuple[str, ...]:
        """Those that get a token."""
        return self.roles.tokens

    def start_projection(self, of_clip: Tensor) -> Tensor:
        """P_attr before training, [width, dim]; `of_clip` is CLIP's own."""
        return of_clip.clone()

    def facts(self) -> dict[str, Any]:
        return {"roles": self.roles.to_json()}

    @property
    def first_layer(self) -> int:
        return self._first

    @property
    def first_text_layer(self) -> int:
        return text_layer_of(self.backbone, self._first)

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """The fusion scalars may learn at a rate of their own: there are few, and AdamW moves each by about the
        sum of the rates at most, so on a small set their start would otherwise be the fusion."""
        own_rate = lr if self.config.fusion_lr is None else self.config.fusion_lr
        rest = [parameter for name, parameter in self.named_parameters() if name != "fusion"]
        return [{"params": rest, "lr": lr}, {"params": [self.fusion], "lr": own_rate}]

    def text_features(self, texts: Texts | None = None) -> Tensor:
        """w: adapted class features, normalised, [classes, dim]."""
        text, first, texts = self.backbone.text, self.first_text_layer, texts or self.texts
        tokens = LearnedTokens.in_all(self.text_tokens, range(first, text.layers + 1), self.config.beta)
        return F.normalize(text.project(text.read_eot(texts.states, texts.prompts, first, tokens)), dim=-1)

    def read_out(self, states: Tensor) -> Tensor:
        """Eq. 11: token states behind the final LayerNorm, [batch, tokens, width] -> f_a [batch, attributes, dim]."""
        features = states @ self.projection
        if self.config.tokens_per_attribute > 1:
            features = features.unflatten(1, (len(self.attributes), -1)).mean(2)
        return F.normalize(features, dim=-1)

    def fusion_weights(self) -> Tensor:
        """alpha: softmax of the learned scalars, [components], the class feature first."""
        return self.fusion.softmax(0)

    def logits(self, features: Tensor, text: Tensor, inference: str = FUSION) -> Tensor:
        """Eq. 17-19 (`fusion`), or the class feature alone (`decoupled`), [batch, classes].

        The votes are linear in the features, so the features are fused first: one product instead of six.
        """
        fused = features[:, 0] if inference == DECOUPLED else self.fusion_weights() @ features
        return self.backbone.temperature * fused @ text.T

    def moved_text(self, text: Tensor) -> Tensor:
        """Eq. 14: how far the class texts went from CLIP's own."""
        return 1 - (text * self.texts.frozen).sum(-1).mean()

    def fusion_penalty(self) -> Tensor:
        """Eq. 16."""
        share = self.fusion_weights()[0]
        return 1 - share if self.config.fusion_loss == "linear" else -share.log()
