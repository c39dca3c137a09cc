"""Expert tokens: attribute tokens that read the image only in the heads of their own attribute, and change nothing.

Like DeAR's they are learned, one for each core attribute, and vote beside CLIP's class feature. What differs, and why,
is in docs/experts.md: no original token sees them, so the class feature is frozen CLIP's, exactly, and all that they
read is constant; in every other head a token gets that head's mean output at CLS over the training images; tokens start
at the mean CLS state and are carried on; and a feature is what a token makes of an image beyond what it makes of the
mean one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip import Backbone
from dear.clip.attention import attention_weights, finish_block, merge_heads, project_queries
from dear.clip.image import LayerInput, Observer
from dear.clip.masks import Masks
from dear.core.config import setting
from dear.core.errors import DearError
from dear.heads.head_role import CORE_ATTRIBUTE
from dear.heads.role_map import Head
from dear.methods.base import LabelledImages, Loss
from dear.methods.shared.attention_maps import registers
from dear.methods.shared.attributes import AttributeMethod, AttributeSettings
from dear.parallel.processes import gather_rows

REST = "rest"


@dataclass(frozen=True)
class ExpertsConfig(AttributeSettings):
    """Expert tokens."""

    fusion_lr: float | None = setting(0.05, "learning rate of the fusion weights", low=0.0, advanced=True)
    pull: float = setting(
        0.3, "weight of the pull that keeps the attributes' projection near its start", low=0.0, advanced=True
    )
    rest: bool = setting(True, "one more token, which reads in all heads that have no core attribute", advanced=True)


AskedAt = Callable[[int, Tensor, Tensor], None]
"""Told layer, queries [batch, heads, tokens of an attribute, head_dim] and keys of the heads that are read in."""


class Experts(AttributeMethod):
    Settings = ExpertsConfig
    recipe: ClassVar[Mapping[str, Any]] = {"views": 0, "clean_view": True}
    config: ExpertsConfig
    masks: Masks
    head_means: Tensor

    def __init__(self, backbone: Backbone, config: ExpertsConfig, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(backbone, config, facts)
        tower, keys = backbone.image, backbone.image.originals + len(self.token_of)
        original = torch.arange(keys) < tower.originals
        found: dict[int, tuple[Tensor, Tensor]] = {}
        self._asking: dict[int, list[list[int]]] = {}  # layer -> of each head that is read in, by number: its tokens
        for layer in range(self.first_layer, tower.layers + 1):
            readers = {h: name for name in self.attributes for at, h in self.heads_of(name) if at == layer}
            tokens = {h: [i for i, of in enumerate(self.token_of) if of == readers[h]] for h in sorted(readers)}
            seen = torch.zeros(1, tower.heads, len(self.token_of), keys, dtype=torch.bool)
            for head, asking in tokens.items():
                seen[0, head, asking] = original
            found[layer], self._asking[layer] = (original[None], seen), list(tokens.values())
        self.masks = Masks(found, tower.heads, tower.originals)
        means = self.tokens.new_zeros(len(found), tower.heads, tower.head_dim)
        self.register_buffer("head_means", means)  # outputs at CLS, the mean over the training images

    def pick_attributes(self) -> tuple[str, ...]:
        """Those that have a head to read in: others would know nothing of the image."""
        found = tuple(name for name in self.roles.core if self.heads_of(name))
        if not found:
            raise DearError(
                f"No head from layer {self.first_layer} on has a core attribute in this role map, and expert tokens "
                "read in such heads only: make another with `dear roles`, or choose another --method."
            )
        return (*found, REST) if self.config.rest and self.heads_of(REST) else found

    def heads_of(self, name: str) -> list[Head]:
        """Where the tokens of an attribute read; those of the rest: in all heads without a core attribute."""
        if name != REST:
            return self.roles.heads_for(name)
        return [at for at, head in self.roles.roles.items() if head.role != CORE_ATTRIBUTE]

    @torch.no_grad()
    def look(self, shown: LabelledImages) -> None:
        """Head means, and the tokens' start: around the mean CLS state before layer J, so that they ask as CLS asks."""
        tower, count = self.backbone.image, 0
        start, means = torch.zeros_like(self.tokens[0]), torch.zeros_like(self.head_means)

        def add(entry: LayerInput, _: LayerInput | None) -> None:
            at_cls = F.scaled_dot_product_attention(entry.q[:, :, :1], entry.k, entry.v)
            means[entry.layer - self.first_layer] += at_cls[:, :, 0].sum(0)

        for images, _ in shown.train():
            entry = self.enter(images)
            start += entry.x[:, 0].sum(0)
            tower.read_cls(entry, add)
            count += len(entry.x)
        self.head_means.copy_(means / count)
        self.tokens.add_(start / count)

    # --- image -------------------------------------------------------------------------------------------

    def image_features(self, entry: LayerInput, observe: Observer | None = None) -> Tensor:
        """The frozen class feature and each f_a, normalised, [batch, components, dim]."""
        return torch.cat([self.frozen_image(entry)[:, None], self.read_out(gather_rows(self._said(entry)))], dim=1)

    def _said(self, entry: LayerInput, asked: AskedAt | None = None) -> Tensor:
        """Tokens behind layers J..L and the final LayerNorm, less those of the mean image, [batch, tokens, width].

        The mean image, in which every head puts out its mean, goes along as one more of the batch.
        """
        tower = self.backbone.image
        x = self.tokens.expand(entry.x.shape[0] + 1, -1, -1)
        for layer, heads, keys, values in tower.kept_of(entry, self.masks):
            block: Any = tower.blocks[layer - 1]
            means = self.head_means[layer - self.first_layer].to(x.dtype)
            out = means[None, :, None].expand(x.shape[0], -1, x.shape[1], -1)
            if heads:
                which, asking = (torch.tensor(numbers, device=x.device) for numbers in (heads, self._asking[layer]))
                where = which[:, None], asking
                # Heads and tokens first: [own heads, tokens of an attribute, batch, head_dim].
                q = project_queries(block.attn, block.ln_1(x[:-1])).permute(1, 2, 0, 3)[where].permute(2, 0, 1, 3)
                k, v = keys.to(q.dtype), values.to(q.dtype)
                if asked is not None:
                    asked(layer, q, k)
                read = F.scaled_dot_product_attention(q, k, v).permute(1, 2, 0, 3)
                read = out[:-1].permute(1, 2, 0, 3).index_put(where, read).permute(2, 0, 1, 3)
                out = torch.cat([read, out[-1:]])
            x = finish_block(block, x, merge_heads(out))
        seen = tower.visual.ln_post(x)
        return seen[:-1] - seen[-1:]

    # --- loss and pictures -------------------------------------------------------------------------------

    def loss(self, entry: LayerInput, labels: Tensor) -> Loss:
        """As DeAR's, but the class feature can't move, and the attributes' projection is held back."""
        text = self.text_features()
        logits = self.logits(self.image_features(entry), text)
        parts = {"cross_entropy": F.cross_entropy(logits, labels)}
        parts["regulariser"] = self.moved_text(text)
        parts["pull"] = (self.projection - self.backbone.image.visual.proj).square().sum()
        parts["fusion"] = self.fusion_penalty()
        weights = (1.0, self.config.lambda_reg, self.config.pull, self.config.lambda_fusion)
        weighted = [weight * part for weight, part in zip(weights, parts.values(), strict=True) if weight]
        return Loss(torch.stack(weighted).sum(), parts, logits)

    @torch.no_grad()
    def attention_maps(self, pixels: Tensor) -> dict[str, Tensor]:
        """Of each attribute's tokens in its experts, mean over these, without registers, [batch, rows, columns]."""
        rows, columns = self.backbone.image.grid
        sums = {name: pixels.new_zeros(len(pixels), rows * columns) for name in self.attributes}

        def look(layer: int, q: Tensor, k: Tensor) -> None:
            seen = attention_weights(q, k, None)[..., 1:].mean(2)  # [batch, heads, patches]
            for i, (first, *_) in enumerate(self._asking[layer]):
                name = self.token_of[first]
                sums[name] += seen[:, i] / len(self.heads_of(name))

        self._said(self.trunk(pixels), look)
        kept = ~registers(self.states(pixels))
        return {name: (values * kept).unflatten(1, (rows, columns)) for name, values in sums.items()}
