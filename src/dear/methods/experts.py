"""Expert tokens: attribute tokens that attend to the image only in the heads of their own attribute.

Like DeAR's they are learned, one per core attribute, and vote beside the class feature. Differences, with reasons in
docs/experts.md: no original token attends to them, so the class feature is exactly frozen CLIP's and all keys and
values are constant; in every other head a token gets that head's mean output at CLS over the training images; tokens
start at the mean CLS state and are carried on; and a feature is the difference to the token of the mean image.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip import Backbone
from dear.clip.attention import attention_weights, finish_block, merge_heads, normed_input, project_queries
from dear.clip.layer_input import LayerInput
from dear.clip.masks import Masks
from dear.clip.read_out import READ_CLS
from dear.core.config import advanced
from dear.core.errors import DearError
from dear.heads.head_role import CORE_ATTRIBUTE
from dear.heads.role_map import Head, RoleMap
from dear.methods.base import LabelledImages, Loss
from dear.methods.dear import AttributeConfig, Dear
from dear.methods.recipe import Recipe
from dear.methods.shared.attention_maps import read_queries, without_registers

REST = "rest"


@dataclass(frozen=True)
class ExpertsConfig(AttributeConfig):
    """Expert tokens."""

    fusion_lr: float | None = advanced(0.05, "learning rate of the fusion weights", low=0.0)
    pull: float = advanced(0.3, "weight of the squared distance of the attributes' projection from its start", low=0.0)
    rest: bool = advanced(True, "add a token that attends to the image in all heads without a core attribute")


AttentionObserver = Callable[[int, Tensor, Tensor], None]
"""Called with a layer, queries [batch, heads, tokens of an attribute, head_dim] and keys of its visible heads."""


class Experts(Dear):
    Config = ExpertsConfig
    recipe = Recipe(augment="none")
    config: ExpertsConfig
    head_means: Tensor  # mean output at CLS over the training images, [layers, heads, head_dim]

    def __init__(self, backbone: Backbone, config: ExpertsConfig, roles: RoleMap | None = None) -> None:
        super().__init__(backbone, config, roles)
        tower = backbone.image
        layers = tower.layers - self.first_layer + 1
        self.register_buffer("head_means", self.tokens.new_zeros(layers, tower.heads, tower.head_dim))

    def token_attributes(self) -> tuple[str, ...]:
        """The attributes with heads of their own: a token without any would not depend on the image."""
        attributes = tuple(name for name in self.roles.core if self.heads_for(name))
        if not attributes:
            raise DearError(
                f"No head from layer {self.first_layer} on has a core attribute in this role map, and expert tokens "
                "need such heads: make another map with `dear roles`, or choose another --method."
            )
        return (*attributes, REST) if self.config.rest and self.heads_for(REST) else attributes

    def initial_projection(self, clip_projection: Tensor) -> Tensor:
        return clip_projection.clone()

    def heads_for(self, name: str) -> list[Head]:
        """The heads in which tokens of an attribute attend to the image; REST: all heads without a core attribute."""
        if name != REST:
            return self.roles.heads_for(name)
        return [at for at, head in self.roles.roles.items() if head.role != CORE_ATTRIBUTE]

    def build_masks(self) -> Masks:
        """No original token attends to a learned one; learned ones attend to the image in their own heads."""
        tower, keys = self.backbone.image, self.backbone.image.originals + len(self.token_of)
        originals = torch.arange(keys) < tower.originals
        by_layer: dict[int, tuple[Tensor, Tensor]] = {}
        self._readers: dict[int, list[list[int]]] = {}  # layer -> tokens that attend in each visible head, in order
        self._places: dict[int, Tensor] = {}  # layer -> their positions among [heads * tokens]
        for layer in range(self.first_layer, tower.layers + 1):
            attribute_of = {h: name for name in self.attributes for at, h in self.heads_for(name) if at == layer}
            readers = {
                h: [i for i, of in enumerate(self.token_of) if of == attribute_of[h]] for h in sorted(attribute_of)
            }
            visible = torch.zeros(1, tower.heads, len(self.token_of), keys, dtype=torch.bool)
            for head, tokens in readers.items():
                visible[0, head, tokens] = originals
            by_layer[layer], self._readers[layer] = (originals[None], visible), list(readers.values())
            places = [head * len(self.token_of) + i for head, tokens in readers.items() for i in tokens]
            self._places[layer] = tower.index(places)
        return Masks(by_layer, tower.heads, tower.originals)

    @torch.no_grad()
    def before_training(self, images: LabelledImages) -> None:
        """Head means, and the tokens' start at the mean CLS state before layer J, so that they query as CLS does.

        Where CLS is not what is read, both are means over the patches.
        """
        tower, count = self.backbone.image, 0
        start, means = torch.zeros_like(self.tokens[0]), torch.zeros_like(self.head_means)
        for batch, _ in images.train():
            first = tower.layer_input(batch, self.first_layer)
            start += (first.states[:, 0] if tower.read == READ_CLS else first.states[:, tower.prefix :].mean(1)).sum(0)
            count += len(first.states)
            for x in tower.walk(first):
                at_read = F.scaled_dot_product_attention(read_queries(x), *x.kv)
                means[x.layer - self.first_layer] += at_read.mean(2).sum(0)
        self.head_means.copy_(means / count)
        self.tokens.add_(start / count)

    # --- image -------------------------------------------------------------------------------------------

    def encode_image(self, x: LayerInput) -> Tensor:
        """The frozen class feature and each f_a, normalised, [batch, components, dim]."""
        tower = self.backbone.image
        attributes = self.attribute_features(tower.gather(self.token_states(x)))
        return torch.cat([tower.frozen_feature(x)[:, None], attributes], dim=1)

    def token_states(self, x: LayerInput, observer: AttentionObserver | None = None) -> Tensor:
        """Tokens after layers J..L and the final LayerNorm, minus those of the mean image, [batch, tokens, width].

        The mean image, for which every head outputs its mean, runs along as one more of the batch.
        """
        tower = self.backbone.image
        states = self.tokens.expand(x.states.shape[0] + 1, -1, -1)
        for layer, heads, keys, values in tower.cached_layers(x, self.masks):
            block: Any = tower.blocks[layer - 1]
            means = self.head_means[layer - self.first_layer].to(block.attn.out_proj.weight.dtype)
            out = means[None, :, None].expand(states.shape[0], -1, states.shape[1], -1)
            if heads:
                places = self._places[layer]
                # Heads and tokens first: [own heads, tokens of an attribute, batch, head_dim].
                q = project_queries(block.attn, normed_input(block, states[:-1])).permute(1, 2, 0, 3)
                q = q.flatten(0, 1).index_select(0, places).unflatten(0, (len(heads), -1)).permute(2, 0, 1, 3)
                k, v = keys.to(q.dtype), values.to(q.dtype)
                if observer is not None:
                    observer(layer, q, k)
                attended = F.scaled_dot_product_attention(q, k, v).permute(1, 2, 0, 3).flatten(0, 1)
                own = out[:-1].permute(1, 2, 0, 3)
                own = own.flatten(0, 1).index_copy(0, places, attended).unflatten(0, own.shape[:2])
                out = torch.cat([own.permute(2, 0, 1, 3), out[-1:]])
            states = finish_block(block, states, merge_heads(out))
        normed = tower.norm_out(states)
        return normed[:-1] - normed[-1:]

    # --- loss and pictures -------------------------------------------------------------------------------

    def loss(self, x: LayerInput, labels: Tensor) -> Loss:
        """DeAR's loss without the class feature's drift, which is zero, and with a pull of P_attr to its start."""
        text = self.encode_text(self.classes)
        logits = self.logits(self.encode_image(x), text)
        parts = {
            "cross_entropy": F.cross_entropy(logits, labels),
            "regulariser": self.text_drift(text),
            "pull": (self.projection - self.backbone.image.projection).square().sum(),
            "fusion": self.fusion_penalty(),
        }
        weights = (1.0, self.config.lambda_reg, self.config.pull, self.config.lambda_fusion)
        weighted = [weight * part for weight, part in zip(weights, parts.values(), strict=True) if weight]
        return Loss(torch.stack(weighted).sum(), parts, logits)

    @torch.no_grad()
    def attention_maps(self, pixels: Tensor) -> dict[str, Tensor]:
        """Attention of CLS in the last layer, and of each attribute's tokens, mean over its heads."""
        tower = self.backbone.image
        sums = {name: pixels.new_zeros(len(pixels), tower.originals - tower.prefix) for name in self.attributes}

        def add(layer: int, q: Tensor, k: Tensor) -> None:
            weights = attention_weights(q, k, None)[..., tower.prefix :].mean(2)  # [batch, heads, patches]
            for i, (first, *_) in enumerate(self._readers[layer]):
                name = self.token_of[first]
                sums[name] += weights[:, i] / len(self.heads_for(name))

        self.token_states(self.layer_input(pixels), add)
        maps = without_registers(sums, tower.trunk(pixels, self.first_layer - 1), tower)
        return super().attention_maps(pixels) | maps
