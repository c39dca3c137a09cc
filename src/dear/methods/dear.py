"""DeAR (Ma et al., CVPR 2026), Eq. 5 to 19 from top to bottom; Eq. 1 to 4, the roles of heads, are in `dear.heads`.

Where the paper leaves a choice open, it is a setting of `DearConfig`; docs/method.md gives the reasons.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip import Backbone, LearnedTokens
from dear.clip.image import last_third
from dear.clip.layer_input import LayerInput
from dear.clip.masks import Masks
from dear.clip.text import ClassTexts
from dear.core.config import Config as Settings
from dear.core.config import advanced
from dear.core.names import CLS
from dear.heads.head_role import CORE_ATTRIBUTE, MIXED, HeadRole
from dear.heads.role_map import RoleMap
from dear.methods.base import Loss, Method, cosine_distance
from dear.methods.recipe import Recipe
from dear.methods.shared.attention_maps import token_attention
from dear.methods.shared.role_settings import RoleSettings, pick_roles
from dear.methods.shared.towers import first_layer, learns_texts

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class AttributeConfig(RoleSettings):
    """Attribute tokens and their fusion."""

    first_layer: int | None = advanced(
        None, "first adapted image layer J, from 1; default: the last third, 9 of 12", low=1
    )
    tokens_per_attribute: int = advanced(1, "learnable tokens per core attribute", low=1, high=1000)
    text_tokens: int = advanced(5, "learnable tokens on the text side, between BOT and the words", low=1, high=1000)
    token_std: float = advanced(0.02, "initial standard deviation of the tokens", low=0.0, high=10.0)
    beta: float = advanced(
        0.9, "weight of the raw token at each layer: 1 replaces the output, 0 carries it on", low=0.0, high=1.0
    )
    fusion_init: float = advanced(0.9, "initial fusion weight of the class feature", low=0.01, high=0.99)
    fusion_loss: str = advanced(
        "linear", "L_fusion: linear is 1 - alpha_cls, log is -log alpha_cls", choices=("linear", "log")
    )
    lambda_reg: float = advanced(1.0, "weight of the self-regularisation", low=0.0)
    lambda_fusion: float = advanced(0.7, "weight of L_fusion", low=0.0)
    fusion_lr: float | None = advanced(None, "learning rate of the fusion weights; default: --lr", low=0.0)


@dataclass(frozen=True)
class DearConfig(AttributeConfig):
    """The method (Eq. 5-19)."""

    isolation: str = advanced(
        "one_way",
        "generalization heads: one_way hides attribute tokens from the image; two_way also hides the image from them",
        choices=("one_way", "two_way"),
    )
    routing: str = advanced(
        "open",
        "strict: a token attends to the image only in heads of its attribute and in mixed heads",
        choices=("open", "strict"),
    )
    projection_start: str = advanced(
        "copy", "P_attr starts as a copy of CLIP's image projection, or at random", choices=("copy", "random")
    )


class Dear(Method):
    """Learned attribute tokens, visible to each head by its role, and a learned fusion of their votes."""

    Config: ClassVar[type[Settings]] = DearConfig
    recipe = Recipe()  # the defaults of training are the paper's
    config: AttributeConfig
    roles: RoleMap
    masks: Masks

    def __init__(self, backbone: Backbone, config: AttributeConfig, roles: RoleMap | None = None) -> None:
        super().__init__(backbone, config)
        image, text = backbone.image, backbone.text
        self._first = first_layer(config.first_layer, last_third(image.layers), image.layers)
        roles = roles or pick_roles(config, backbone)
        roles.check_backbone(backbone.identity.to_json(), image.layers, image.heads)
        self.roles = roles.for_layers(self._first)
        self.attributes = self.token_attributes()
        self.components = (CLS, *self.attributes)
        self.token_of = [name for name in self.attributes for _ in range(config.tokens_per_attribute)]
        self.tokens = nn.Parameter(backbone.normal(len(self.token_of), image.width, std=config.token_std))
        self.learns_texts = learns_texts(backbone)
        if self.learns_texts:
            self.text_tokens = nn.Parameter(backbone.normal(config.text_tokens, text.width, std=config.token_std))
        self.projection = nn.Parameter(self.initial_projection(image.projection.detach()))
        alpha = self.tokens.new_full((len(self.components),), (1 - config.fusion_init) / len(self.attributes))
        alpha[0] = config.fusion_init
        self.fusion = nn.Parameter(alpha.log())
        self.masks = self.build_masks()

    def token_attributes(self) -> tuple[str, ...]:
        """The attributes that get a token."""
        return self.roles.core

    def initial_projection(self, clip_projection: Tensor) -> Tensor:
        """P_attr before training, [width, dim]."""
        if self.config.projection_start == "copy":  # type: ignore[attr-defined]
            return clip_projection.clone()
        return torch.randn_like(clip_projection) * len(clip_projection) ** -0.5

    @property
    def first_layer(self) -> int:
        return self._first

    @property
    def first_text_layer(self) -> int:
        return self.backbone.text_layer(self._first)

    # --- tokens: Eq. 5 (image), Eq. 6 (text) -------------------------------------------------------------

    def image_tokens(self) -> LearnedTokens:
        """Eq. 5: t_a at layer J, then beta t_a + (1 - beta) * output of the layer before."""
        layers = range(self.first_layer, self.backbone.image.layers + 1)
        return LearnedTokens.in_all(self.tokens, layers, self.config.beta)

    def encode_text(self, classes: ClassTexts) -> Tensor:
        """Eq. 6: w, adapted class features, normalised, [classes, dim]; those of frozen CLIP without text tokens."""
        if not self.learns_texts:
            return classes.frozen
        layers = range(self.first_text_layer, self.backbone.text.layers + 1)
        tokens = LearnedTokens.in_all(self.text_tokens, layers, self.config.beta)
        return self.backbone.text.features(classes, tokens)

    # --- role masks: Eq. 7-9 -----------------------------------------------------------------------------

    def build_masks(self) -> Masks:
        """Eq. 7: a mask per head of layers J to L; by layer, [1, heads, 1, keys] of original queries and
        [1, heads, 1 or tokens, keys] of attribute queries."""
        tower, device = self.backbone.image, self.tokens.device
        repeats = torch.tensor([tower.originals] + [1] * len(self.token_of))
        by_layer = {}
        for layer in range(self.first_layer, tower.layers + 1):
            pairs = [self.head_mask(self.roles[layer, head]) for head in range(tower.heads)]
            original, attribute = (torch.stack(masks)[None] for masks in zip(*pairs, strict=True))
            if bool((attribute == attribute[:, :, :1]).all()):  # the same for every attribute query: one row suffices
                attribute = attribute[:, :, :1]
            original, attribute = (mask.repeat_interleave(repeats, -1).to(device) for mask in (original, attribute))
            by_layer[layer] = original, attribute
        return Masks(by_layer, tower.heads, tower.originals)

    def head_mask(self, head: HeadRole) -> tuple[Tensor, Tensor]:
        """Eq. 8, 9: the mask of one head by its role; True: may attend.

        One key stands for O, the original tokens (CLS and patches); after it come A, the attribute tokens. Returns
        masks of original queries [1, 1 + tokens] and of attribute queries [tokens, 1 + tokens].
        """
        isolation, strict = self.config.isolation, self.config.routing == "strict"  # type: ignore[attr-defined]
        count = len(self.token_of)
        original, attribute = (torch.ones(queries, 1 + count, dtype=torch.bool) for queries in (1, count))
        if head.role == CORE_ATTRIBUTE:  # Eq. 9: of A, every query attends to the tokens of this head's attribute only
            own = torch.tensor([name == head.concept for name in self.token_of])
            original[:, 1:] = attribute[:, 1:] = own
            if strict:  # only tokens of this attribute attend to the image
                attribute[:, 0] = own
        elif head.role != MIXED:  # Eq. 8: generalization and other specialised heads; mixed heads have no mask
            original[:, 1:] = False
            attribute[:, 0] = isolation == "one_way" and not strict
        return original, attribute

    # --- features: Eq. 10, 11 ----------------------------------------------------------------------------

    def encode_image(self, x: LayerInput) -> Tensor:
        """Features f_cls (Eq. 10) and each f_a (Eq. 11), normalised, [batch, components, dim]."""
        out = self.backbone.image.features(x, self.image_tokens(), self.masks, read_tokens=True)
        assert out.tokens is not None
        return torch.cat([F.normalize(out.cls, dim=-1)[:, None], self.attribute_features(out.tokens)], dim=1)

    def attribute_features(self, states: Tensor) -> Tensor:
        """Eq. 11: token states after the final LayerNorm, [batch, tokens, width] -> f_a [batch, attributes, dim]."""
        features = states @ self.projection
        if self.config.tokens_per_attribute > 1:
            features = features.unflatten(1, (len(self.attributes), -1)).mean(2)
        return F.normalize(features, dim=-1)

    # --- loss: Eq. 12-16 ---------------------------------------------------------------------------------

    def loss(self, x: LayerInput, labels: Tensor) -> Loss:
        """Eq. 12: cross entropy of the fused logits, self-regularisation, and a pull towards the class feature."""
        features, text = self.encode_image(x), self.encode_text(self.classes)
        logits = self.logits(features, text)
        parts = {"cross_entropy": F.cross_entropy(logits, labels)}
        total = parts["cross_entropy"]
        if self.config.lambda_reg:
            image_drift = cosine_distance(features[:, 0], self.backbone.image.frozen_feature(x))  # Eq. 13
            parts["regulariser"] = image_drift + self.text_drift(text)  # Eq. 15
            total = total + self.config.lambda_reg * parts["regulariser"]
        if self.config.lambda_fusion:
            parts["fusion"] = self.fusion_penalty()
            total = total + self.config.lambda_fusion * parts["fusion"]
        return Loss(total, parts, logits)

    def text_drift(self, text: Tensor) -> Tensor:
        """Eq. 14: distance between adapted and frozen class features."""
        return cosine_distance(text, self.classes.frozen)

    def fusion_penalty(self) -> Tensor:
        """Eq. 16: L_fusion."""
        alpha_cls = self.fusion_weights()[0]
        return 1 - alpha_cls if self.config.fusion_loss == "linear" else -alpha_cls.log()

    # --- fusion: Eq. 17-19 (the votes and their weighted sum are `Method.votes` and `Method.logits`) -----

    def fusion_weights(self) -> Tensor:
        """Weights alpha: softmax of the learned scalars, [components], the class feature first."""
        return self.fusion.softmax(0)

    # --- hooks -------------------------------------------------------------------------------------------

    def extra_state(self) -> dict[str, Any]:
        return {"roles": self.roles.to_json()}

    @classmethod
    def restore(cls, backbone: Backbone, config: Any, extra_state: Mapping[str, Any]) -> "Self":
        return cls(backbone, config, RoleMap.from_json(extra_state["roles"]))

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Fusion scalars may have their own rate: AdamW moves each by at most about the sum of all steps' rates, so on
        a small dataset they would otherwise stay near their start."""
        fusion_lr = lr if self.config.fusion_lr is None else self.config.fusion_lr
        rest = [parameter for name, parameter in self.named_parameters() if name != "fusion"]
        return [{"params": rest, "lr": lr}, {"params": [self.fusion], "lr": fusion_lr}]

    def attention_maps(self, pixels: Tensor) -> dict[str, Tensor]:
        """Attention of CLS in the last layer; of each attribute's tokens in its own heads, in all if it has none."""
        heads = {name: self.roles.heads_for(name) or list(self.roles.roles) for name in self.attributes}
        return super().attention_maps(pixels) | token_attention(self, pixels, heads, self.token_of, self.masks)
