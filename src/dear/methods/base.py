"""What a method is: its answers to six questions. Everything else (attention, encoders, loop, data, files) is shared.

1. Where do learned parts enter?       `first_layer`, and what `text_features` and `image_features` hand to the engine
2. How do learned tokens live on?      the `LearnedTokens` they hand over
3. Who may see them?                   `masks`, which they hand over
4. What is read out?                   `image_features`: one feature for each of `components`; `text_features`
5. How do read-outs become logits?     `logits`, `fusion_weights`
6. What is the loss, and the recipe?   `loss`, `recipe`

The answers of `Method` itself are those of frozen CLIP: nothing enters, the class feature is read, and the logits are
CLIP's. A method overrides what it does otherwise.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip import Backbone
from dear.clip.image import CachedKV, CachedStates, LayerInput, Observer
from dear.clip.masks import Masks, VisibleHeads
from dear.clip.text import Prompts
from dear.core.config import Config
from dear.data.prompts import fill
from dear.heads.role_map import RoleMap
from dear.parallel.processes import add_up_gradients

CLS = "cls"
PLAIN, FUSION, DECOUPLED = "plain", "fusion", "decoupled"  # ways of inference

Images = Tensor | CachedStates
"""Normalised pixels [batch, 3, height, width], or what was kept of them."""


@dataclass(frozen=True)
class NoSettings(Config):
    """This method has no settings of its own."""


class Texts(NamedTuple):
    """What is constant about a list of class names (or sentences): everything before the first adapted text layer."""

    names: tuple[str, ...]
    prompts: Prompts
    states: Tensor  # packed, before the first adapted layer
    frozen: Tensor  # features of the untouched tower, normalised, [names, dim]


class Loss(NamedTuple):
    total: Tensor
    parts: dict[str, Tensor]
    logits: Tensor  # [batch, classes]
    truth: Tensor | None = None  # [batch], where labels are not what the logits should say


class Teacher(NamedTuple):
    """Whom a method imitates: another method, on a backbone (empty: its own), and what differs from its recipe."""

    method: str
    backbone: str
    pretrained: str | None
    recipe: Mapping[str, Any]


class LabelledImages(Protocol):
    """The labelled images a method may look at beside training, as evaluation sees them (no augmentation)."""

    classes: tuple[str, ...]
    template: str

    def train(self) -> Iterator[tuple[Images, Tensor]]: ...

    def val(self) -> Iterator[tuple[Images, Tensor]]: ...


class Method(nn.Module):
    """It holds no copy of the backbone: its state is the adapter, and nothing else."""

    Settings: ClassVar[type[Config]] = NoSettings
    recipe: ClassVar[Mapping[str, Any]] = {"epochs": 0}
    """The published settings of training, and the method's own, where they differ from the defaults."""
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Protocol ("few-shot", "cross-dataset", "domain"), or protocol and shots ("few-shot 4") -> what differs there from
    `recipe`."""
    inferences: ClassVar[tuple[str, ...]] = (PLAIN,)
    """Ways to answer, the usual one first."""
    constant_texts: ClassVar[bool] = True
    """Whether `text_features` is all that `logits` needs to know of the classes, whatever the image."""

    components: tuple[str, ...] = (CLS,)
    roles: RoleMap | None = None
    masks: Masks | None = None
    """Who may see learned tokens of the image tower; None: all. Where no original token does, all that is read of an
    image is constant: `trunk` is the whole tower then, and what it makes is held in memory."""
    texts: Texts

    def __init__(self, backbone: Backbone, config: Config, facts: Mapping[str, Any] | None = None) -> None:
        """`facts`: what `facts()` gave when the method was saved; None: it is new."""
        super().__init__()
        self.backbone, self.config = backbone, config

    def learned(self) -> int:
        """How many numbers are learned."""
        return sum(parameter.numel() for parameter in self.parameters())

    def facts(self) -> dict[str, Any]:
        """What must be known besides settings and weights to build it again, ready for JSON."""
        return {}

    @property
    def dim(self) -> int:
        """Of the features that images and texts are compared by."""
        return self.backbone.dim

    @property
    def first_layer(self) -> int:
        """The first image layer that anything learned reaches; one behind the last: none."""
        return self.backbone.image.layers + 1

    @property
    def constant(self) -> VisibleHeads | None:
        """Names what `reads` makes of an image, to be held in memory instead of made at every step: methods with equal
        names make equal things. None: learned tokens are seen, or there are none."""
        return None if self.masks is None else self.masks.visible_heads

    @property
    def first_text_layer(self) -> int:
        """The same of the text tower."""
        return self.backbone.text.layers + 1

    def look(self, shown: LabelledImages) -> None:
        """Before training: what a method takes from the labelled images as they are. Nothing, unless it says so."""

    def teacher(self) -> Teacher | None:
        """Who answers for it on unlabelled images of all classes, if it learns from these (then it is transductive)."""
        return None

    def learn_from(self, names: Sequence[str], texts: Tensor, answers: Tensor) -> None:
        """Before training: the teacher's texts of all classes [classes, its dim] and its logits [images, classes] on
        unlabelled images. Labels in training are rows of these."""

    def look_again(self, shown: LabelledImages) -> None:
        """After training: what a method chooses by the validation images. Nothing, unless it says so."""

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """What the optimiser learns, and how fast: groups of `params` and `lr`."""
        return [{"params": list(self.parameters()), "lr": lr}]

    # --- text --------------------------------------------------------------------------------------------

    def set_classes(self, names: Sequence[str], template: str) -> None:
        """Chooses the classes. What is constant for them is computed here, once."""
        self.texts = self.read(names, template)

    def can_answer(self, names: Sequence[str]) -> bool:
        """Whether it can tell these classes apart; most can any."""
        return True

    def sentences(self, names: Sequence[str], template: str) -> tuple[list[str], Sequence[int]]:
        """The sentence of each class, and the places in it that learned tokens stand in for."""
        return [fill(template, name) for name in names], ()

    @torch.no_grad()
    def read(self, names: Sequence[str], template: str) -> Texts:
        text, first = self.backbone.text, self.first_text_layer
        sentences, slots = self.sentences(names, template)
        prompts = text.prompts(sentences, slots)
        if first > text.layers:
            states = text.embed(prompts)
            eot = text.read_eot(states, prompts, 1)
        else:
            states = text.trunk(prompts, first - 1)
            eot = text.read_eot(states, prompts, first)
        return Texts(tuple(names), prompts, states, F.normalize(text.project(eot), dim=-1))

    def text_features(self, texts: Texts | None = None) -> Tensor:
        """w: features of the classes (or of other texts), normalised, [classes, dim]."""
        return (texts or self.texts).frozen

    @torch.no_grad()
    def encode_text(self, sentences: Sequence[str]) -> Tensor:
        """Features of any sentences, normalised, [sentences, dim]; the classes stay as they are."""
        return self.text_features(self.read(sentences, "{}"))

    # --- image -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def trunk(self, images: Images | CachedKV) -> LayerInput:
        """The part of the image tower that nothing learned can reach, without a graph."""
        if isinstance(images, CachedKV):
            return self.backbone.image.behind(*images)
        return self.enter(images) if self.constant is None else self.backbone.image.behind(*self.reads(images))

    @torch.no_grad()
    def reads(self, images: Images) -> CachedKV:
        """All that is read of images, where that is `constant`."""
        assert self.masks is not None
        return self.backbone.image.reads(self.enter(images), self.masks)

    @torch.no_grad()
    def enter(self, images: Images) -> LayerInput:
        """Where learned parts enter: layer `first_layer`, or behind the tower."""
        tower, first = self.backbone.image, self.first_layer
        if first <= tower.layers:
            entry = tower.enter(self.states(images), first, only_cls=first == tower.layers)
            return entry._replace(frozen_cls=images.frozen_cls) if isinstance(images, CachedStates) else entry
        if isinstance(images, CachedStates):
            return tower.behind(images.frozen_cls)
        return tower.behind(tower.read_cls(tower.enter(tower.embed(images), 1)))

    @torch.no_grad()
    def states(self, images: Images) -> Tensor:
        """What layer `first_layer` gets, [batch, 1 + patches, width]."""
        tower = self.backbone.image
        if isinstance(images, CachedStates):
            return images.states.to(tower.visual.proj.dtype)
        return tower.trunk(images, self.first_layer - 1)

    def open_trunk(self, images: Images) -> LayerInput:
        """The same where the projections of `first_layer` are learned: only what it gets is constant."""
        states = self.states(images)
        return LayerInput(self.first_layer, states, *(states.new_empty(0),) * 3)

    def image_features(self, entry: LayerInput, observe: Observer | None = None) -> Tensor:
        """The feature of each component, normalised, [batch, components, dim]."""
        return self.frozen_image(entry)[:, None]

    def frozen_image(self, entry: LayerInput) -> Tensor:
        """The class feature of the unadapted CLIP from the same entry, normalised, [batch, dim]."""
        tower = self.backbone.image
        with torch.no_grad():
            return F.normalize(tower.project(tower.read_cls(entry)), dim=-1)

    # --- answers and loss --------------------------------------------------------------------------------

    def fusion_weights(self) -> Tensor:
        """How much each component counts, [components], summing to one."""
        return torch.ones(1, device=self.backbone.device)

    def votes(self, features: Tensor, text: Tensor) -> Tensor:
        """tau cos(f, w) of each component, [batch, components, classes]."""
        return self.backbone.temperature * features @ text.T

    def logits(self, features: Tensor, text: Tensor, inference: str = PLAIN) -> Tensor:
        """Features [batch, components, dim] and texts [classes, dim] -> [batch, classes]."""
        return self.backbone.temperature * features[:, 0] @ text.T

    def loss(self, entry: LayerInput, labels: Tensor) -> Loss:
        """Of a batch behind the trunk. Cross entropy, unless a method has more."""
        logits = self.logits(self.image_features(entry), self.text_features(), self.inferences[0])
        total = F.cross_entropy(logits, labels)
        return Loss(total, {"cross_entropy": total}, logits)

    def backward(self, loss: Loss, scaled: Callable[[Tensor], Tensor]) -> None:
        """Gradients of the loss, scaled as the loop wants it, and added up over the processes of a run."""
        scaled(loss.total).backward()
        add_up_gradients(self.parameters())

    # --- what can be shown -------------------------------------------------------------------------------

    def attention_maps(self, pixels: Tensor) -> dict[str, Tensor]:
        """Where each component looks, [batch, rows, columns]; by default CLS in the last layer."""
        from dear.methods.shared.attention_maps import cls_attention

        return {CLS: cls_attention(self, pixels)}
