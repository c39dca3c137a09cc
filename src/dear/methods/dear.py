"""DeAR: attribute tokens that each head sees by its role, learned fusion, three losses. Eq. 5-19 of the paper.

Where the paper leaves a choice open, the choice is a setting of `DearConfig`; docs/method.md gives the reasons.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.backbone import Backbone, LearnedTokens
from dear.backbone.image import Entry, Observer, last_third
from dear.config import setting
from dear.errors import DearError
from dear.methods.attention_maps import token_attention
from dear.methods.base import CLS, DECOUPLED, FUSION, Loss, Method, Texts
from dear.methods.role_mask import role_masks
from dear.methods.roles import RoleSettings, pick_roles
from dear.roles.rolemap import RoleMap


@dataclass(frozen=True)
class DearConfig(RoleSettings):
    """The method (Eq. 5-19)."""

    first_layer: int | None = setting(
        None, "first adapted image layer J, from 1; default: the last third, 9 of 12", low=1, expert=True
    )
    tokens_per_attribute: int = setting(1, "learnable tokens for each core attribute", low=1, high=1000, expert=True)
    text_tokens: int = setting(
        5, "learnable tokens on the text side, between BOT and the words", low=1, high=1000, expert=True
    )
    token_std: float = setting(0.02, "standard deviation of the tokens at the start", low=0.0, high=10.0, expert=True)
    beta: float = setting(
        0.9, "weight of the raw token between layers: 1 re-injects it, 0 carries on", low=0.0, high=1.0, expert=True
    )
    isolation: str = setting(
        "one_way",
        "generalization heads: one_way hides attribute tokens from the image; two_way also the image from them",
        choices=("one_way", "two_way"),
        expert=True,
    )
    routing: str = setting(
        "open",
        "strict: a token reads the image only in heads of its attribute and in mixed heads",
        choices=("open", "strict"),
        expert=True,
    )
    projection_start: str = setting(
        "copy",
        "P_attr starts as a copy of CLIP's image projection, or at random",
        choices=("copy", "random"),
        expert=True,
    )
    fusion_init: float = setting(
        0.9, "fusion weight of the class feature at the start", low=0.01, high=0.99, expert=True
    )
    fusion_loss: str = setting(
        "linear", "L_fusion: linear is 1 - alpha_cls, log is -log alpha_cls", choices=("linear", "log"), expert=True
    )
    lambda_reg: float = setting(1.0, "weight of the self-regularisation", low=0.0, expert=True)
    lambda_fusion: float = setting(0.7, "weight of L_fusion", low=0.0, expert=True)
    fusion_lr: float | None = setting(
        None, "learning rate of the fusion weights; default: the same", low=0.0, expert=True
    )


def text_layer_of(backbone: Backbone, first: int) -> int:
    """The text layer that corresponds to image layer `first`: of another depth, the same share is adapted."""
    image, text = backbone.image, backbone.text
    adapted = round((image.layers - first + 1) * text.layers / image.layers)
    return text.layers - max(1, adapted) + 1


class Dear(Method):
    Settings = DearConfig
    recipe: ClassVar[Mapping[str, Any]] = {}  # the defaults of training are the paper's
    inferences = (FUSION, DECOUPLED)
    config: DearConfig
    roles: RoleMap

    def __init__(self, backbone: Backbone, config: DearConfig, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(backbone, config)
        image, text = backbone.image, backbone.text
        first = config.first_layer or last_third(image.layers)
        if first > image.layers:
            raise DearError(f"--first-layer {first} is beyond the {image.layers} layers of the image tower.")
        roles = (
            pick_roles(config, backbone.name, backbone.pretrained)
            if facts is None
            else RoleMap.from_json(facts["roles"])
        )
        roles.check_backbone(backbone.identity.to_json(), image.layers, image.heads)
        self.roles = roles.for_layers(first)
        self._first = first
        self.attributes = roles.tokens
        self.components = (CLS, *self.attributes)
        self._token_of = [name for name in self.attributes for _ in range(config.tokens_per_attribute)]

        like = backbone.image.visual.proj
        options = {"device": like.device, "dtype": like.dtype}
        self.tokens = nn.Parameter(config.token_std * torch.randn(len(self._token_of), image.width, **options))
        self.text_tokens = nn.Parameter(config.token_std * torch.randn(config.text_tokens, text.width, **options))
        start = like.clone() if config.projection_start == "copy" else torch.randn_like(like) * image.width**-0.5
        self.projection = nn.Parameter(start)
        shares = torch.full((len(self.components),), (1 - config.fusion_init) / len(self.attributes), **options)
        shares[0] = config.fusion_init
        self.fusion = nn.Parameter(shares.log())
        originals = 1 + image.grid[0] * image.grid[1]
        self._masks: dict[int, tuple[Tensor, Tensor]] = {}
        for layer in range(first, image.layers + 1):
            masks = role_masks(self.roles, layer, self._token_of, originals, config.isolation, config.routing)
            self._masks[layer] = (masks[0].to(like.device), masks[1].to(like.device))

    def facts(self) -> dict[str, Any]:
        return {"roles": self.roles.to_json()}

    @property
    def first_layer(self) -> int:
        return self._first

    @property
    def first_text_layer(self) -> int:
        return text_layer_of(self.backbone, self._first)

    def mask(self, layer: int) -> tuple[Tensor, Tensor]:
        """Eq. 7: masks of original and of attribute queries, [1, heads, 1 or tokens, keys], True: may see."""
        return self._masks[layer]

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

    def image_features(self, entry: Entry, observe: Observer | None = None) -> Tensor:
        """f_cls and each f_a (Eq. 10, 11), normalised, [batch, components, dim]."""
        tower = self.backbone.image
        tokens = LearnedTokens.in_all(self.tokens, range(self._first, tower.layers + 1), self.config.beta)
        cls, added = tower.read_with_tokens(entry, tokens, self.mask, observe=observe)
        of_attributes = tower.visual.ln_post(added) @ self.projection
        if self.config.tokens_per_attribute > 1:
            of_attributes = of_attributes.unflatten(1, (len(self.attributes), -1)).mean(2)
        return F.normalize(torch.cat([tower.project(cls)[:, None], of_attributes], dim=1), dim=-1)

    def fusion_weights(self) -> Tensor:
        """alpha: softmax of the learned scalars, [components], the class feature first."""
        return self.fusion.softmax(0)

    def logits(self, features: Tensor, text: Tensor, inference: str = FUSION) -> Tensor:
        """Eq. 17-19 (`fusion`), or the class feature alone (`decoupled`), [batch, classes].

        The votes are linear in the features, so the features are fused first: one product instead of six.
        """
        fused = features[:, 0] if inference == DECOUPLED else self.fusion_weights() @ features
        return self.backbone.temperature * fused @ text.T

    def loss(self, entry: Entry, labels: Tensor) -> Loss:
        """Eq. 12-16 for a batch behind the trunk."""
        features, text = self.image_features(entry), self.text_features()
        logits = self.logits(features, text)
        parts = {"cross_entropy": F.cross_entropy(logits, labels)}
        total = parts["cross_entropy"]
        if self.config.lambda_reg:
            moved_image = 1 - (features[:, 0] * self.frozen_image(entry)).sum(-1).mean()  # Eq. 13
            moved_text = 1 - (text * self.texts.frozen).sum(-1).mean()  # Eq. 14
            parts["regulariser"] = moved_image + moved_text  # Eq. 15
            total = total + self.config.lambda_reg * parts["regulariser"]
        if self.config.lambda_fusion:
            share = self.fusion_weights()[0]
            parts["fusion"] = 1 - share if self.config.fusion_loss == "linear" else -share.log()  # Eq. 16
            total = total + self.config.lambda_fusion * parts["fusion"]
        return Loss(total, parts, logits)

    def attention_maps(self, pixels: Tensor) -> dict[str, Tensor]:
        """Of each attribute's tokens in its own heads; of those of an attribute without any, in all heads."""
        experts = {name: self.roles.experts(name) or list(self.roles.roles) for name in self.attributes}
        return token_attention(self, pixels, experts, self._token_of, lambda layer: self.mask(layer)[1])
