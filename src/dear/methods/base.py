"""`Method`: a way of adapting CLIP. Attention, encoders, caches, training loop, data and files are shared by all.

    Config, recipe, components                  settings, published recipe, names of the features
    encode_text, encode_image, logits, loss     the method itself
    first_layer, first_text_layer, masks        the first adapted layers: all before them is constant and cached
    prompts, encode_classes                     class texts
    before_training ... can_answer              hooks
    set_classes, layer_input, votes, ...        provided

`Method` itself is frozen CLIP: no parameters, one component (the class feature), CLIP's own logits. Hooks that few
methods need are protocols in `optional.py`: a method has them by defining their members.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip import Backbone
from dear.clip.layer_input import Images, LayerInput
from dear.clip.masks import Masks
from dear.clip.text import ClassTexts
from dear.core.config import Config as Settings
from dear.core.names import CLS, FUSION, inferences
from dear.data.prompts import fill
from dear.methods.recipe import Recipe
from dear.methods.registry import require_towers

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class NoSettings(Settings):
    """This method has no settings of its own."""


class Loss(NamedTuple):
    total: Tensor
    parts: dict[str, Tensor]
    logits: Tensor  # [views * batch, classes]
    targets: Tensor | None = None  # [batch], if they are not the labels


class LabelledImages(Protocol):
    """The few labelled images, without augmentation, for hooks."""

    classes: tuple[str, ...]
    template: str
    shots: int  # training images of the largest class

    def train(self) -> Iterator[tuple[Images, Tensor]]: ...

    def val(self) -> Iterator[tuple[Images, Tensor]]: ...


class Method(nn.Module):
    """The backbone is not part of the module: its state_dict is the adapter."""

    Config: ClassVar[type[Settings]] = NoSettings
    recipe: ClassVar[Recipe] = Recipe(epochs=0)
    components: tuple[str, ...] = (CLS,)
    masks: Masks | None = None
    """Attention masks for learned tokens (None: no mask). If no original token attends to a learned one, the image side
    is constant: the tower runs once per image and the result is cached."""
    classes: ClassTexts

    def __init__(self, backbone: Backbone, config: Settings) -> None:
        super().__init__()
        require_towers(type(self), backbone)
        self.backbone, self.config = backbone, config

    @property
    def first_layer(self) -> int:
        """The first adapted image layer; the number of layers plus one: none."""
        return self.backbone.image.layers + 1

    @property
    def first_text_layer(self) -> int:
        """The first adapted text layer, counted alike."""
        return self.backbone.text.layers + 1

    # --- text --------------------------------------------------------------------------------------------

    def set_classes(self, names: Sequence[str], template: str) -> None:
        """Sets the current classes, and computes the constant part of their texts."""
        self.classes = self.encode_classes(names, template)

    def prompts(self, names: Sequence[str], template: str) -> tuple[list[str], Sequence[int]]:
        """The prompt of each class, and the positions in it (BOT has 0) that learned tokens replace."""
        return [fill(template, name) for name in names], ()

    @torch.no_grad()
    def encode_classes(self, names: Sequence[str], template: str) -> ClassTexts:
        """The constant part of the text tower for some classes."""
        text, first = self.backbone.text, self.first_text_layer
        if not text.layers:  # nothing to run but the whole
            frozen = text.encode(names if text.tier == "table" else self.prompts(names, template)[0])
            return ClassTexts(tuple(names), None, 1, None, F.normalize(frozen, dim=-1))
        prompts = text.prompts(*self.prompts(names, template))
        if first > text.layers:
            first, states = 1, text.embed(prompts)
        else:
            states = text.trunk(prompts, first - 1)
        frozen = text.project(text.eot_states(states, prompts, first))
        return ClassTexts(tuple(names), prompts, first, states, F.normalize(frozen, dim=-1))

    def encode_text(self, classes: ClassTexts) -> Tensor:
        """Features w of classes that `encode_classes` has prepared, normalised, [classes, dim]."""
        return classes.frozen

    # --- image -------------------------------------------------------------------------------------------

    def layer_input(self, images: Images) -> LayerInput:
        """The constant part of the image tower: everything before `first_layer`, without a graph."""
        return self.backbone.image.layer_input(images, self.first_layer, self.masks)

    def encode_image(self, x: LayerInput) -> Tensor:
        """The feature of each component, normalised, [batch, components, dim]."""
        return self.backbone.image.frozen_feature(x)[:, None]

    # --- answers and loss --------------------------------------------------------------------------------

    def fusion_weights(self) -> Tensor:
        """Weight of each component, [components], summing to one."""
        return torch.ones(1, device=self.backbone.device)

    def votes(self, features: Tensor, text: Tensor) -> Tensor:
        """Votes tau cos(f, w) of each component, or the logits if there is one, [batch, components, classes]."""
        if len(self.components) == 1:
            return self.logits(features, text)[:, None]
        return self.backbone.temperature * features @ text.T

    def logits(self, features: Tensor, text: Tensor, inference: str | None = None) -> Tensor:
        """Features [batch, components, dim] and texts [classes, dim] -> [batch, classes].

        Votes are linear in the features, so these are fused first: one product instead of one per component.
        """
        inference = inference or inferences(self.components)[0]
        fused = self.fusion_weights().to(features) @ features if inference == FUSION else features[:, 0]
        return self.backbone.temperature * fused @ text.T

    def loss(self, x: LayerInput, labels: Tensor) -> Loss:
        """Cross entropy of a batch, unless a method has more."""
        logits = self.logits(self.encode_image(x), self.encode_text(self.classes))
        total = F.cross_entropy(logits, labels)
        return Loss(total, {"cross_entropy": total}, logits)

    # --- hooks -------------------------------------------------------------------------------------------

    def before_training(self, images: LabelledImages) -> None:
        """Computes what depends on the labelled images: a cache, means, initial values."""

    def extra_state(self) -> dict[str, Any]:
        """JSON values that `restore` needs besides settings and weights."""
        return {}

    @classmethod
    def restore(cls, backbone: Backbone, config: Settings, extra_state: Mapping[str, Any]) -> "Self":
        """The saved method, before its weights are loaded."""
        return cls(backbone, config)

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Groups of `params` and `lr` for the optimizer."""
        return [{"params": list(self.parameters()), "lr": lr}]

    def can_answer(self, names: Sequence[str]) -> bool:
        """Whether the method can classify into these classes; most can into any."""
        return True

    @classmethod
    def for_unseen(cls, config: Any) -> type["Method"]:
        """A method, perhaps cheaper to fit, with the same answers if no class has labelled images."""
        return cls

    def attention_maps(self, pixels: Tensor) -> dict[str, Tensor]:
        """Attention of each component to the patches, [batch, rows, columns].

        By default that of CLS in the last layer and, where the tower is frozen, in the heads of each attribute.
        """
        from dear.methods.shared.attention_maps import cls_attention, head_attention
        from dear.methods.shared.role_settings import attribute_heads

        if not self.backbone.image.layers:
            return {}  # nothing to see inside
        heads = attribute_heads(self)
        return {CLS: cls_attention(self, pixels)} | (head_attention(self, pixels, heads) if heads else {})


def cosine_distance(features: Tensor, targets: Tensor) -> Tensor:
    """1 - mean cosine between rows of normalised [rows, dim]."""
    return 1 - (features * targets).sum(-1).mean()


def normalized(*features: Tensor) -> Tensor:
    """Features [batch, dim] of each component -> [batch, components, dim], normalised."""
    return F.normalize(torch.stack(features, 1), dim=-1)
