"""Learned context vectors in place of the words before each class name: CoOp and the methods built on it.

CoOp: Zhou et al., IJCV 2022. KgCoOp: Yao et al., CVPR 2023. CoCoOp: Zhou et al., CVPR 2022. TCP: Yao et al., CVPR 2024.
ProGrad: Zhu et al., ICCV 2023.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from open_clip.transformer import QuickGELU
from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip import Backbone, LearnedTokens
from dear.clip.image import last_third
from dear.clip.layer_input import LayerInput
from dear.clip.text import ClassTexts
from dear.core.config import Config as Settings
from dear.core.config import setting
from dear.data.prompts import fill
from dear.methods.base import LabelledImages, Loss, Method, cosine_distance
from dear.methods.deep_prompts import DASSL, placeholders
from dear.methods.optional import Gradients
from dear.methods.recipe import Recipe

COOP = Recipe(DASSL, lr=0.002, batch=32)
"""The recipe of CoOp and of the methods built on its code."""


def epochs_by_shots(recipe: Recipe) -> Recipe:
    """The recipe with CoOp's number of epochs per number of shots, under the few-shot protocol."""
    for shots, epochs in ((1, 50), (2, 100), (4, 100), (8, 200), (16, 200)):
        recipe = recipe.on("few-shot", shots=shots, epochs=epochs)
    return recipe


class WordContext(Method):
    """The prompt of "cat" is "V1 .. Vn cat.", with V learned.

    Like words, they have positional embeddings and are carried through all text layers. `classes.frozen` are CLIP's
    features of the dataset's own template.
    """

    first_text_layer = 1
    context: nn.Parameter  # [tokens, width]

    def prompts(self, names: Sequence[str], template: str) -> tuple[list[str], Sequence[int]]:
        count = len(self.context)
        return [f"{placeholders(count)} {name}." for name in names], range(1, 1 + count)

    @torch.no_grad()
    def encode_classes(self, names: Sequence[str], template: str) -> ClassTexts:
        text = self.backbone.text
        prompts = text.prompts(*self.prompts(names, template))
        frozen = text.encode([fill(template, name) for name in names])
        return ClassTexts(tuple(names), prompts, 1, text.embed(prompts), F.normalize(frozen, dim=-1))

    def encode_text(self, classes: ClassTexts) -> Tensor:
        return self.encode_with(self.context, classes)

    def encode_with(self, context: Tensor, classes: ClassTexts, deeper: Mapping[int, Tensor] | None = None) -> Tensor:
        """Text features, normalised, [classes, dim], with `context` [tokens, width] in the slots.

        `deeper`: layer -> tokens that replace the states in the slots, [tokens, width] or [classes, tokens, width].
        """
        text = self.backbone.text
        tokens = LearnedTokens({1: text.add_positions(context, classes.prompts), **(deeper or {})})
        return text.features(classes, tokens)


def random_words(backbone: Backbone, count: int, std: float = 0.02) -> nn.Parameter:
    """Learned vectors of the text tower's width, [count, width]; at most half of its context length."""
    count = min(count, backbone.text.context // 2)
    return nn.Parameter(backbone.normal(count, backbone.text.width, std=std))


@dataclass(frozen=True)
class CoOpConfig(Settings):
    """The learned context."""

    context_words: str = setting("a photo of a", "words that initialise the context; empty: random")
    context_tokens: int = setting(
        16, "number of learned vectors if they start at random; at most half of the context length", low=1
    )


class CoOp(WordContext):
    """n context vectors, shared by all classes, are learned with cross entropy; both towers stay frozen.

    Differs from the official code: the context is fp32 (there half precision, in which the small steps of the warm-up
    vanish), comes before the name, and is shared by all classes (there it may also come after or around the name, or be
    learned per class: none of these is in its published tables for novel classes).
    """

    Config: ClassVar[type[Settings]] = CoOpConfig
    recipe = epochs_by_shots(Recipe(COOP, epochs=200).on("few-shot", context_words="")).on(
        "cross-dataset", "domain", epochs=50
    )
    config: CoOpConfig

    def __init__(self, backbone: Backbone, config: CoOpConfig) -> None:
        super().__init__(backbone, config)
        if config.context_words.strip():
            self.context = nn.Parameter(backbone.text.word_embeddings(config.context_words).clone())
        else:
            self.context = random_words(backbone, config.context_tokens)


@dataclass(frozen=True)
class KgCoOpConfig(CoOpConfig):
    """The learned context and its regularisation."""

    knowledge: float = setting(
        8.0, "weight of 1 - cos between class texts of learned and hand-written prompts", low=0.0
    )


class KgCoOp(CoOp):
    """L = CE + 8 (1 - mean over classes of cos(learned class text, class text of the template)).

    Differs from the official code: the template is the dataset's own (there a table, with another one for DTD); modules
    that are never used are left out. Until August 2023 the official trainer stepped two schedulers, so that under newer
    PyTorch its rate stayed below 1e-5; it is not known which version the published numbers come from. This is the
    repaired one: the rate rises to 0.002.
    """

    Config = KgCoOpConfig
    recipe = Recipe(COOP, epochs=100, batch=128)
    config: KgCoOpConfig

    def loss(self, x: LayerInput, labels: Tensor) -> Loss:
        text = self.encode_text(self.classes)
        logits = self.logits(self.encode_image(x), text)
        parts = {
            "cross_entropy": F.cross_entropy(logits, labels),
            "knowledge": cosine_distance(text, self.classes.frozen),
        }
        return Loss(parts["cross_entropy"] + self.config.knowledge * parts["knowledge"], parts, logits)


class CoCoOp(CoOp):
    """Each image has class texts of its own: a small network maps its feature to a shift of all context vectors.

    They are computed image by image, with the context shared by the classes.

    A text without an image (a gallery search) uses the context as it is. Differs from the official code: fp32, and only
    tokens up to EOT are computed.
    """

    recipe = Recipe(COOP, epochs=10, batch=1)

    def __init__(self, backbone: Backbone, config: CoOpConfig) -> None:
        super().__init__(backbone, config)
        hidden = max(1, backbone.dim // 16)
        self.network = nn.Sequential(
            nn.Linear(backbone.dim, hidden), nn.ReLU(), nn.Linear(hidden, backbone.text.width)
        ).to(self.context)

    def logits(self, features: Tensor, text: Tensor | None = None, inference: str | None = None) -> Tensor:
        """Features [batch, 1, dim] -> [batch, classes]; `text` is not used, because class texts depend on the image."""
        texts = (self.encode_with(self.context + self.network(image), self.classes) for image in features[:, 0])
        pairs = zip(texts, features[:, 0], strict=True)
        return torch.stack([self.backbone.temperature * text @ image for text, image in pairs])

    def loss(self, x: LayerInput, labels: Tensor) -> Loss:
        logits = self.logits(self.encode_image(x))
        total = F.cross_entropy(logits, labels)
        return Loss(total, {"cross_entropy": total}, logits)


@dataclass(frozen=True)
class TCPConfig(KgCoOpConfig):
    """The learned context, the class tokens and the regularisation."""

    context_words: str = setting("", "words that initialise the context; empty: random")
    context_tokens: int = setting(
        4, "number of learned vectors if they start at random; at most half of the context length", low=1
    )


class TCP(KgCoOp):
    """KgCoOp with class tokens: from the last third of the layers on (9 of 12), they replace the context.

    A small network computes them from the frozen class text.

    Differs from the official code: one template, the dataset's own (there one for the network and the loss, and another
    for the words after the class name; for UCF101 "person doing" stays before the name there). Adam's eps is 1e-3 as
    there, though that was for half precision: with 1e-8 the steps would differ. The mixing weight, which the official
    code ignores, is left out. It evaluates novel classes of ImageNet and SUN397 at epoch 25 of 50; with
    --published-constants, these two are trained for 25 epochs.
    """

    Config = TCPConfig
    recipe = Recipe(COOP, epochs=50, optimizer="adam", eps=1e-3)
    config: TCPConfig

    def __init__(self, backbone: Backbone, config: TCPConfig) -> None:
        super().__init__(backbone, config)
        hidden = backbone.dim // 4
        self.network = nn.Sequential(
            nn.Linear(backbone.dim, hidden), QuickGELU(), nn.Linear(hidden, self.context.numel())
        ).to(self.context)

    def prompts(self, names: Sequence[str], template: str) -> tuple[list[str], Sequence[int]]:
        """The learned context, the class name, and the end of the template."""
        _, _, end = template.partition("{}")
        prompts, slots = super().prompts(names, template)
        return [prompt.removesuffix(".") + end for prompt in prompts], slots

    def class_tokens(self, classes: ClassTexts) -> Tensor:
        """Tokens computed from each frozen class text, [classes, tokens, width]."""
        return self.network(classes.frozen).unflatten(-1, self.context.shape)

    def encode_text(self, classes: ClassTexts) -> Tensor:
        deeper = {last_third(self.backbone.text.layers): self.class_tokens(classes)}
        return self.encode_with(self.context, classes, deeper)


@dataclass(frozen=True)
class ProGradConfig(Settings):
    """The learned context, and the projection of its gradient."""

    context_tokens: int = setting(
        16, "learned vectors, at first zeros and the template's words; at most half of the context length", low=1
    )
    projection: float = setting(1.0, "share of the conflicting part that is removed from the gradient", low=0.0)


class ProGrad(WordContext):
    """If <g, h> is negative, the share `projection` of g's component along h is removed.

    Here g is the gradient of the cross entropy, and h that of KL(zero-shot, adapted).

    Differs from the official code: teacher and initial context come from the dataset's own template (there another one,
    with the type of the classes first), all of whose words before the name are learned (there a miscount leaves a word
    of some templates frozen); there is one copy of CLIP in one precision. The published tables are RN50 with 4 shots;
    others cite 16 shots on ViT-B/16, for which no settings were released: epochs and batch are those of 4 shots.
    """

    Config = ProGradConfig
    recipe = epochs_by_shots(Recipe(COOP, epochs=100)).on("cross-dataset", "domain", epochs=50)
    config: ProGradConfig

    def __init__(self, backbone: Backbone, config: ProGradConfig) -> None:
        super().__init__(backbone, config)
        self.context = random_words(backbone, config.context_tokens, std=0.0)

    @torch.no_grad()
    def before_training(self, images: LabelledImages) -> None:
        """Initialises the context: zeros, then the words of the template before the class name."""
        words = images.template.partition("{}")[0].strip()
        if words:
            start = self.backbone.text.word_embeddings(words)[-len(self.context) :]
            self.context[-len(start) :] = start

    def loss(self, x: LayerInput, labels: Tensor) -> Loss:
        features = self.encode_image(x)
        logits = self.logits(features, self.encode_text(self.classes))
        expected = self.logits(features, self.classes.frozen).softmax(-1)
        divergence = F.cross_entropy(logits, expected)  # KL up to a constant
        total = F.cross_entropy(logits, labels)
        return Loss(total, {"cross_entropy": total, "zero_shot": divergence}, logits)

    def backward(self, loss: Loss, gradients: Gradients) -> None:
        (general,), (own,) = gradients(loss.parts["zero_shot"], keep_graph=True), gradients(loss.total)
        assert general is not None
        assert own is not None
        self.context.grad = without_conflict(own, general, self.config.projection)


def without_conflict(own: Tensor, general: Tensor, share: float) -> Tensor:
    """The gradient `own` without `share` of its component against `general`, if they conflict; so never 0 / 0."""
    overlap = (own * general).sum()  # stays on the device: the host must not wait to compare it
    return torch.where(overlap < 0, own - share * overlap / general.square().sum() * general, own)
