"""TextRefiner with CoOp: class texts corrected by a cache of local image features (Xie et al., AAAI 2025)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip import Backbone
from dear.clip.layer_input import LayerInput
from dear.clip.read_out import READ_CLS
from dear.clip.text import ClassTexts
from dear.core.config import setting
from dear.methods.base import Loss
from dear.methods.coop import COOP, CoOp, CoOpConfig
from dear.methods.recipe import Recipe
from dear.methods.shared.attention_maps import read_attention

_LOCAL = 5  # patches with the most attention of CLS


@dataclass(frozen=True)
class TextRefinerConfig(CoOpConfig):
    """The learned context, the cache and the losses."""

    slots: int = setting(25, "vectors in the cache of local features", low=1)
    cache_momentum: float = setting(0.8, "momentum of the cached vectors", low=0.0, high=1.0)
    refinement: float = setting(0.2, "weight of the correction of class texts", low=0.0)
    local_weight: float = setting(0.02, "weight of the cross entropy of local features", low=0.0)
    stay_weight: float = setting(20.0, "weight of the distance between a class text and its correction", low=0.0)


class TextRefiner(CoOp):
    """t' = t + 0.2 E[t; r], with t CoOp's class text and r its attention read-out of the cache. In training, all tokens
    of every image are projected and written into the cache, and 7 local features of it (CLS, the five patches it
    attends to most, the mean of all; projected) are classified against t.

    Differs from the official code: the last epoch is used, not the best on validation images, which CoOp does not use
    (on ImageNet they are the test images). In evaluation only the class feature is computed.
    """

    Config = TextRefinerConfig
    recipe = Recipe(COOP, epochs=10)
    config: TextRefinerConfig
    cache: Tensor  # [slots, dim], rows of length one

    def __init__(self, backbone: Backbone, config: TextRefinerConfig) -> None:
        super().__init__(backbone, config)
        dim, like = backbone.dim, self.context
        self.projector = nn.Sequential(nn.Linear(dim, dim), nn.BatchNorm1d(dim), nn.ReLU(), nn.Linear(dim, dim)).to(
            like
        )
        self.extractor = nn.Linear(2 * dim, dim, bias=False).to(like)
        start = torch.rand(config.slots, dim, device=like.device, dtype=like.dtype)
        self.register_buffer("cache", F.normalize(start, dim=-1))

    @property
    def first_layer(self) -> int:
        """Training needs the patches after the last layer; evaluation only the frozen class feature."""
        return self.backbone.image.layers + (not self.training)

    def encode_text(self, classes: ClassTexts) -> Tensor:
        """Corrected class texts, *not* normalised, [classes, dim]."""
        return self._corrected(super().encode_text(classes))

    def _corrected(self, text: Tensor) -> Tensor:
        attended = (text @ self.cache.T).softmax(-1) @ self.cache
        return text + self.config.refinement * self.extractor(torch.cat([text, attended], -1))

    def loss(self, x: LayerInput, labels: Tensor) -> Loss:
        images, projected, local = self.local_features(x)
        text = super().encode_text(self.classes)
        corrected = self._corrected(text)
        logits = self.logits(images[:, None], corrected)
        local_logits = self.backbone.temperature * local.flatten(0, 1) @ text.T
        parts = {
            "cross_entropy": F.cross_entropy(logits, labels),
            "local": F.cross_entropy(local_logits, labels.repeat_interleave(local.shape[1])),
            "stay": (F.normalize(corrected, dim=-1) - text).abs().mean(),
        }
        self.write(projected.flatten(0, 1))
        weighted = self.config.local_weight * parts["local"] + self.config.stay_weight * parts["stay"]
        return Loss(parts["cross_entropy"] + weighted, parts, logits)

    def local_features(self, x: LayerInput) -> tuple[Tensor, Tensor, Tensor]:
        """Class features [batch, dim], projected tokens [batch, 1 + patches, dim], local features [batch, 7, dim].

        Class features are normalised; the 7 local features are made of the projected tokens.
        """
        tower = self.backbone.image
        with torch.no_grad():
            states = tower.run_layer(x)
            attention = tower.gather(read_attention(x, states))
            states = tower.gather(states)
            whole = tower.project(tower.pool(states))
            patches = tower.norm_out(states[:, tower.prefix :]) @ tower.projection
            if tower.read == READ_CLS and tower.head_bias is not None:
                patches = patches + tower.head_bias
            tokens = torch.cat([whole[:, None], patches], 1)  # [batch, 1 + patches, dim]
            top = 1 + attention.topk(min(_LOCAL, attention.shape[1])).indices
        projected = self.projector(tokens.flatten(0, 1)).view_as(tokens)
        patches = projected.gather(1, top[..., None].expand(-1, -1, tokens.shape[-1]))
        local = torch.cat([projected[:, :1], patches, projected.mean(1, keepdim=True)], 1)
        return F.normalize(tokens[:, 0], dim=-1), projected, local

    @torch.no_grad()
    def write(self, tokens: Tensor) -> None:
        """Each token [rows, dim] moves its most similar slot, weighted by exp(similarity - slot's largest)."""
        rows = F.normalize(tokens, dim=-1)
        similarity = rows @ self.cache.T  # [rows, slots]
        slots = torch.arange(len(self.cache), device=similarity.device)
        member = (similarity.argmax(1)[:, None] == slots).to(similarity.dtype)
        update = (member * (similarity - similarity.amax(0)).exp()).T @ rows
        momentum = self.config.cache_momentum
        moved = F.normalize(momentum * self.cache + (1 - momentum) * update, dim=-1)
        self.cache = torch.where(member.any(0)[:, None], moved, self.cache)
