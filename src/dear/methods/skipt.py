"""SkipT: fine-tunes the upper half of both towers, on a part of the classes at each step (CVPR 2025)."""

import math
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip import Backbone, exact_copy
from dear.clip.layer_input import LayerInput
from dear.clip.low_rank import with_blocks
from dear.clip.read_out import ProbePool
from dear.clip.text import ClassTexts
from dear.clip.timm_tower import TimmTower
from dear.core.config import Config as Settings
from dear.core.config import setting
from dear.core.errors import DearError
from dear.core.runtime import autocast, to_device
from dear.methods.base import Loss, Method, normalized
from dear.methods.deep_prompts import DASSL
from dear.methods.recipe import Recipe


@dataclass(frozen=True)
class SkipConfig(Settings):
    """Rates, and the classes of each step."""

    image_rate: float = setting(0.25, "learning rate of the image tower, as a share of --lr", low=0.0, high=1e3)
    class_share: float = setting(0.5, "share of the classes in a step: those nearest its images", low=0.0, high=1.0)
    class_limit: int = setting(50, "largest number of nearest classes in a step", low=1)
    decay: float = setting(0.3, "how fast the probability of further classes falls with rank", low=0.01, high=100.0)


class SkipT(Method):
    """Trains copies of the upper half of the blocks, the last LayerNorms and the projections; 62 M on ViT-B/16.

    A step encodes the classes nearest to its images, and further ones with a probability that decays with their rank.
    Differs from the official code: fp32 (there half precision, in which steps this small are often lost), a new draw of
    ranks at every step (there one draw before training, for the whole run), and the dataset's own template.
    """

    Config = SkipConfig
    recipe = (
        Recipe(DASSL, lr=2e-5, epochs=20, batch=4, order="one_class", warmup_lr=1e-6)
        .on("few-shot", lr=1e-5, image_rate=1.0, epochs=40, warmup_epochs=0)
        .on("cross-dataset", "domain", lr=1e-5, image_rate=0.1, epochs=5, warmup_lr=1e-8)
    )
    config: SkipConfig

    def __init__(self, backbone: Backbone, config: SkipConfig) -> None:
        super().__init__(backbone, config)
        image, text = backbone.image, backbone.text
        visual, module = image.visual, text.module
        if isinstance(image, TimmTower):
            self._image: Any = image.copied(self.first_layer)
            self.image_blocks = nn.ModuleList(block.module for block in self._image.blocks[self.first_layer - 1 :])
            self.image_end = nn.ModuleList(self._image.end_modules())
        else:
            self.image_blocks = nn.ModuleList(map(exact_copy, image.blocks[self.first_layer - 1 :]))
            self.image_norm, self.projection = deepcopy(visual.ln_post), nn.Parameter(visual.proj.detach().clone())
            self._image = with_blocks(image, [*image.blocks[: self.first_layer - 1], *self.image_blocks])
            end = SimpleNamespace(ln_post=self.image_norm, proj=self.projection)
            if image.reader is not None:
                self.image_pool = end.attn_pool = deepcopy(visual.attn_pool)
                self._image.reader = ProbePool(end)
            self._image.visual = end
        self.text_blocks = nn.ModuleList(map(exact_copy, text.blocks[self.first_text_layer - 1 :]))
        self.text_norm, self.text_projection = deepcopy(module.ln_final), deepcopy(module.text_projection)
        self.requires_grad_(True)
        self._text = with_blocks(text, [*text.blocks[: self.first_text_layer - 1], *self.text_blocks])
        self._text.module = SimpleNamespace(ln_final=self.text_norm, text_projection=self.text_projection)

    def merged(self) -> list[tuple[Tensor, Tensor]]:
        image, text = self.backbone.image, self.backbone.text
        if isinstance(image, TimmTower):
            raise DearError("SkipT on a tower of timm has no checkpoint of its own: export the run with --onnx.")
        frozen = [*image.blocks[self.first_layer - 1 :], *text.blocks[self.first_text_layer - 1 :]]
        frozen += [image.visual.ln_post, image.visual.proj, text.module.ln_final, text.module.text_projection]
        own = [*self.image_blocks, *self.text_blocks, self.image_norm, self.projection]
        own += [self.text_norm, self.text_projection]
        if image.reader is not None:
            frozen.append(image.visual.attn_pool)
            own.append(self.image_pool)
        pairs: list[tuple[Tensor, Tensor]] = []
        for old, new in zip(frozen, own, strict=True):
            several = isinstance(old, nn.Module)
            pairs += zip(old.parameters(), new.parameters(), strict=True) if several else [(old, new)]
        return pairs

    @property
    def first_layer(self) -> int:
        return self.backbone.image.layers // 2 + 1

    @property
    def first_text_layer(self) -> int:
        return self.backbone.text.layers // 2 + 1

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        named = dict(self.named_parameters())
        text = [parameter for name, parameter in named.items() if name.startswith("text_")]
        image = [parameter for name, parameter in named.items() if not name.startswith("text_")]
        return [{"params": text, "lr": lr}, {"params": image, "lr": lr * self.config.image_rate}]

    def _autocast(self) -> AbstractContextManager:
        """Trained blocks are fp32: in half precision, autocast casts them once per tower."""
        return autocast(self.backbone.device, self.backbone.precision)

    def encode_text(self, classes: ClassTexts) -> Tensor:
        with self._autocast():
            states = self._text.eot_states(classes.states, classes.prompts, classes.first_layer)
        return F.normalize(self._text.project(states), dim=-1)

    def encode_image(self, x: LayerInput) -> Tensor:
        with self._autocast():
            cls = self._image.cls_state(LayerInput(self._image, x.layer, x.states))
        return normalized(self._image.project(cls))

    @torch.no_grad()
    def sample_classes(self, features: Tensor, labels: Tensor) -> Tensor:
        """The sorted class indices of this step: the labels, the classes nearest to any image, a draw of the others."""
        similarity = features[:, 0] @ self.classes.frozen.T
        similarity.scatter_(1, labels[:, None], 1e4)
        order = similarity.max(0).values.argsort(descending=True)
        always = min(math.ceil(len(order) * self.config.class_share), self.config.class_limit)
        if always < len(labels):
            always = max(always, len(labels.unique()))
        rest = len(order) - always
        if rest <= 0:
            return order.sort().values
        rank = torch.linspace(0, 5, rest) if rest > 1 else torch.full((1,), 5.0)
        end = torch.exp(torch.tensor(-5 / self.config.decay))
        probability = ((-rank / self.config.decay).exp() - end) / (1 - end)
        # Ranks are drawn on the host, which must know how many there are, and must not wait for a GPU to learn it.
        drawn = always + (torch.rand(rest) < probability).nonzero()[:, 0]
        ranks = torch.cat([torch.arange(always), drawn])
        return order[to_device(ranks, order.device)].sort().values

    def loss(self, x: LayerInput, labels: Tensor) -> Loss:
        features = self.encode_image(x)
        indices = self.sample_classes(features, labels)
        prompts, places = self.classes.prompts.subset(indices)
        sample = self.classes._replace(prompts=prompts, states=self.classes.states[places])
        logits = self.logits(features, self.encode_text(sample))
        total = F.cross_entropy(logits, torch.searchsorted(indices, labels))
        all_logits = logits.new_full((len(labels), len(self.classes.names)), -torch.inf)
        return Loss(total, {"cross_entropy": total}, all_logits.index_copy(1, indices, logits.detach()))
