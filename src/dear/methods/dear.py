"""DeAR: attribute tokens that each head sees by its role, learned fusion, three losses. Eq. 5-19 of the paper.

Where the paper leaves a choice open, the choice is a setting of `DearConfig`; docs/method.md gives the reasons.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip import Backbone, LearnedTokens
from dear.clip.image import LayerInput, Observer
from dear.clip.masks import Masks
from dear.core.config import setting
from dear.methods.base import Loss
from dear.methods.shared.attention_maps import token_attention
from dear.methods.shared.attributes import AttributeMethod, AttributeSettings
from dear.methods.shared.role_mask import role_masks


@dataclass(frozen=True)
class DearConfig(AttributeSettings):
    """The method (Eq. 5-19)."""

    isolation: str = setting(
        "one_way",
        "generalization heads: one_way hides attribute tokens from the image; two_way also the image from them",
        choices=("one_way", "two_way"),
        advanced=True,
    )
    routing: str = setting(
        "open",
        "strict: a token reads the image only in heads of its attribute and in mixed heads",
        choices=("open", "strict"),
        advanced=True,
    )
    projection_start: str = setting(
        "copy",
        "P_attr starts as a copy of CLIP's image projection, or at random",
        choices=("copy", "random"),
        advanced=True,
    )


class Dear(AttributeMethod):
    Settings = DearConfig
    recipe: ClassVar[Mapping[str, Any]] = {}  # the defaults of training are the paper's
    config: DearConfig
    masks: Masks

    def __init__(self, backbone: Backbone, config: DearConfig, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(backbone, config, facts)
        image, device = backbone.image, self.tokens.device
        found: dict[int, tuple[Tensor, Tensor]] = {}
        for layer in range(self.first_layer, image.layers + 1):  # Eq. 7
            masks = role_masks(self.roles, layer, self.token_of, image.originals, config.isolation, config.routing)
            found[layer] = (masks[0].to(device), masks[1].to(device))
        self.masks = Masks(found, image.heads, image.originals)

    def start_projection(self, of_clip: Tensor) -> Tensor:
        if self.config.projection_start == "copy":
            return of_clip.clone()
        return torch.randn_like(of_clip) * len(of_clip) ** -0.5

    def image_features(self, entry: LayerInput, observe: Observer | None = None) -> Tensor:
        """f_cls and each f_a (Eq. 10, 11), normalised, [batch, components, dim]."""
        tower = self.backbone.image
        tokens = LearnedTokens.in_all(self.tokens, range(self.first_layer, tower.layers + 1), self.config.beta)
        cls, added = tower.read_with_tokens(entry, tokens, self.masks, observe=observe)
        of_class = F.normalize(tower.project(cls), dim=-1)
        return torch.cat([of_class[:, None], self.read_out(tower.visual.ln_post(added))], dim=1)

    def loss(self, entry: LayerInput, labels: Tensor) -> Loss:
        """Eq. 12-16 for a batch behind the trunk."""
        features, text = self.image_features(entry), self.text_features()
        logits = self.logits(features, text)
        parts = {"cross_entropy": F.cross_entropy(logits, labels)}
        total = parts["cross_entropy"]
        if self.config.lambda_reg:
            moved_image = 1 - (features[:, 0] * self.frozen_image(entry)).sum(-1).mean()  # Eq. 13
            parts["regulariser"] = moved_image + self.moved_text(text)  # Eq. 15
            total = total + self.config.lambda_reg * parts["regulariser"]
        if self.config.lambda_fusion:
            parts["fusion"] = self.fusion_penalty()
            total = total + self.config.lambda_fusion * parts["fusion"]
        return Loss(total, parts, logits)

    def attention_maps(self, pixels: Tensor) -> dict[str, Tensor]:
        """Of each attribute's tokens in its own heads; of those of an attribute without any, in all heads."""
        experts = {name: self.roles.heads_for(name) or list(self.roles.roles) for name in self.attributes}
        return token_attention(self, pixels, experts, self.token_of, self.masks)
