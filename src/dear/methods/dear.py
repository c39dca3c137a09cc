"""DeAR: attribute tokens that each head sees by its role, learned fusion, three losses. Eq. 5-19 of the paper.

Where the paper leaves a choice open, the choice is a setting of `DearConfig`; docs/method.md gives the reasons.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.backbone import Backbone, LearnedTokens
from dear.backbone.image import Entry, Observer, TrunkStates, last_third
from dear.errors import DearError
from dear.methods.config import DearConfig
from dear.methods.role_mask import role_masks
from dear.roles.rolemap import RoleMap

CLS = "cls"


class Dear(nn.Module):
    """The trainable part. It holds no copy of the backbone: its state is the adapter, and nothing else."""

    def __init__(self, backbone: Backbone, roles: RoleMap, config: DearConfig) -> None:
        super().__init__()
        image, text = backbone.image, backbone.text
        first = config.first_layer or last_third(image.layers)
        if first > image.layers:
            raise DearError(f"--first-layer {first} is beyond the {image.layers} layers of the image tower.")
        roles.check_backbone(backbone.identity.to_json(), image.layers, image.heads)
        self.backbone, self.config, self.roles = backbone, config, roles.for_layers(first)
        self.first_layer = first
        # The text tower may have another depth: the same share of its layers is adapted.
        adapted = round((image.layers - first + 1) * text.layers / image.layers)
        self.first_text_layer = text.layers - max(1, adapted) + 1
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

    def mask(self, layer: int) -> tuple[Tensor, Tensor]:
        """Eq. 7: masks of original and of attribute queries, [1, heads, 1 or tokens, keys], True: may see."""
        return self._masks[layer]

    # --- text --------------------------------------------------------------------------------------------

    def set_prompts(self, prompts: Sequence[str]) -> None:
        """Chooses the classes. What is constant for them is computed here, once."""
        text = self.backbone.text
        self._prompts = text.prompts(prompts)
        self._text_states = text.trunk(self._prompts, self.first_text_layer - 1)
        with torch.no_grad():
            frozen = text.read_eot(self._text_states, self._prompts, self.first_text_layer)
            self.frozen_text = F.normalize(text.project(frozen), dim=-1)  # [classes, dim]

    def text_features(self) -> Tensor:
        """w: adapted class features, normalised, [classes, dim]."""
        text = self.backbone.text
        tokens = LearnedTokens(self.text_tokens, self.config.beta)
        eot = text.read_eot(self._text_states, self._prompts, self.first_text_layer, tokens)
        return F.normalize(text.project(eot), dim=-1)

    # --- image -------------------------------------------------------------------------------------------

    def trunk(self, images: Tensor | TrunkStates) -> Entry:
        """The part of the image tower that nothing learned can reach: up to the entry into layer J.

        From pixels [batch, 3, height, width], or from what was kept of it.
        """
        tower, only_cls = self.backbone.image, self.first_layer == self.backbone.image.layers
        if isinstance(images, TrunkStates):
            states = images.states.to(tower.visual.proj.dtype)
            return tower.enter(states, self.first_layer, only_cls)._replace(frozen_cls=images.frozen_cls)
        return tower.enter(tower.trunk(images, self.first_layer - 1), self.first_layer, only_cls)

    def image_features(self, entry: Entry, observe: Observer | None = None) -> Tensor:
        """f_cls and each f_a (Eq. 10, 11), normalised, [batch, components, dim]."""
        tower = self.backbone.image
        tokens = LearnedTokens(self.tokens, self.config.beta)
        cls, added = tower.read_with_tokens(entry, tokens, self.mask, observe)
        of_attributes = tower.visual.ln_post(added) @ self.projection
        if self.config.tokens_per_attribute > 1:
            of_attributes = of_attributes.unflatten(1, (len(self.attributes), -1)).mean(2)
        return F.normalize(torch.cat([tower.project(cls)[:, None], of_attributes], dim=1), dim=-1)

    def frozen_image(self, entry: Entry) -> Tensor:
        """f_cls of the unadapted CLIP from the same entry, normalised, [batch, dim]."""
        tower = self.backbone.image
        with torch.no_grad():
            return F.normalize(tower.project(tower.read_cls(entry)), dim=-1)

    # --- answers and loss --------------------------------------------------------------------------------

    def fusion_weights(self) -> Tensor:
        """alpha: softmax of the learned scalars, [components], the class feature first."""
        return self.fusion.softmax(0)

    def votes(self, features: Tensor, text: Tensor) -> Tensor:
        """Eq. 17, 18: tau cos(f, w) of each component, [batch, components, classes]."""
        return self.backbone.temperature * features @ text.T

    def logits(self, features: Tensor, text: Tensor, inference: str = "fusion") -> Tensor:
        """Eq. 19 (`fusion`), or the class feature alone (`decoupled`), [batch, classes].

        The votes are linear in the features, so the features are fused first: one product instead of six.
        """
        fused = features[:, 0] if inference == "decoupled" else self.fusion_weights() @ features
        return self.backbone.temperature * fused @ text.T

    def loss(self, entry: Entry, labels: Tensor) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Eq. 12-16 for a batch behind the trunk: the loss, its parts, and the logits."""
        features, text = self.image_features(entry), self.text_features()
        logits = self.logits(features, text)
        parts = {"cross_entropy": F.cross_entropy(logits, labels)}
        total = parts["cross_entropy"]
        if self.config.lambda_reg:
            moved_image = 1 - (features[:, 0] * self.frozen_image(entry)).sum(-1).mean()  # Eq. 13
            moved_text = 1 - (text * self.frozen_text).sum(-1).mean()  # Eq. 14
            parts["regulariser"] = moved_image + moved_text  # Eq. 15
            total = total + self.config.lambda_reg * parts["regulariser"]
        if self.config.lambda_fusion:
            share = self.fusion_weights()[0]
            parts["fusion"] = 1 - share if self.config.fusion_loss == "linear" else -share.log()  # Eq. 16
            total = total + self.config.lambda_fusion * parts["fusion"]
        return total, parts, logits
