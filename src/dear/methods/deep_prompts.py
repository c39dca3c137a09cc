"""Learned tokens in the first layers of a tower, new ones in each: VPT, ProVP, IVLP, MaPLe, PromptSRC.

VPT: Jia et al., ECCV 2022, on CLIP as in MaPLe's comparison. ProVP-Ref: Xu et al., IJCV 2024. IVLP: Rasheed et al.,
CVPR 2023, the baseline of MaPLe (Khattak et al., CVPR 2023) and PromptSRC (Khattak et al., ICCV 2023).
"""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip import Backbone, LearnedTokens
from dear.clip.layer_input import LayerInput
from dear.clip.text import ClassTexts
from dear.core.config import Config as Settings
from dear.core.config import setting
from dear.methods.base import Loss, Method, normalized
from dear.methods.recipe import Recipe
from dear.methods.zero_shot import SIXTY, ensemble

WORDS = "a photo of a"
DASSL = Recipe(optimizer="sgd", weight_decay=5e-4, crop=0.08, drop_last=True, warmup_epochs=1, warmup_lr=1e-5)
"""The settings shared by the recipes of CoOp, MaPLe and the methods built on them."""


def placeholders(count: int) -> str:
    """Words in whose place learned tokens are put: each is one token in CLIP's vocabulary."""
    return " ".join(["X"] * count)


def by_layer(first: Tensor, tokens: Iterable[Tensor]) -> dict[int, Tensor]:
    """The tokens of each layer, from 1; `first` replaces those of layer 1."""
    return dict(enumerate(tokens, 1)) | {1: first}


@dataclass(frozen=True)
class DeepPromptConfig(Settings):
    """Tokens in both towers."""

    image_tokens: int = setting(4, "learned tokens per image layer", low=1, high=1000)
    image_depth: int = setting(9, "how many of the first image layers have their own tokens", low=1, high=1000)
    text_tokens: int = setting(4, f'learned tokens in place of "{WORDS}"', low=1, high=60)
    text_depth: int = setting(9, "how many of the first text layers have their own tokens", low=1, high=1000)
    token_std: float = setting(
        0.02, "initial standard deviation of tokens that do not start as words", low=0.0, high=10.0
    )


class ImagePrompts(Method):
    """Learned tokens in the first image layers, new ones in each."""

    first_layer = 1
    image_tokens: nn.Parameter  # [depth, tokens, width]

    def image_layers(self) -> dict[int, Tensor]:
        """The tokens of each image layer; those of the first go through ln_pre, as the patches do."""
        return by_layer(self.backbone.image.norm_in(self.image_tokens[0]), self.image_tokens)

    def class_feature(self, x: LayerInput) -> Tensor:
        """The class feature, not normalised, [batch, dim]."""
        return self.backbone.image.features(x, LearnedTokens(self.image_layers()), self.masks).cls

    def encode_image(self, x: LayerInput) -> Tensor:
        return normalized(self.class_feature(x))


class DeepPrompts(ImagePrompts):
    """IVLP: in each tower, layer l <= depth replaces the tokens by its own; later layers carry them on.

    Differs from the official code: fp32 (there half precision without a master copy). The prompt is always
    "a photo of a {}.", whose first words the text tokens replace; if there are more tokens than words, they replace
    placeholders and start at random.
    """

    Config: ClassVar[type[Settings]] = DeepPromptConfig
    recipe = Recipe(DASSL, lr=0.0025, epochs=20, batch=4)
    first_text_layer = 1
    config: DeepPromptConfig

    def __init__(self, backbone: Backbone, config: DeepPromptConfig) -> None:
        super().__init__(backbone, config)
        image, text = backbone.image, backbone.text
        depth, text_depth = min(config.image_depth, image.layers), min(config.text_depth, text.layers)
        std = config.token_std
        self.image_tokens = nn.Parameter(backbone.normal(depth, config.image_tokens, image.width, std=std))
        self.text_tokens = initial_text_tokens(backbone, text_depth, config.text_tokens, std)

    def prompts(self, names: Sequence[str], template: str) -> tuple[list[str], Sequence[int]]:
        count = self.config.text_tokens
        lead = WORDS if len(self.backbone.text.word_embeddings(WORDS)) >= count else placeholders(count)
        return [f"{lead} {name}." for name in names], range(1, 1 + count)

    def text_layers(self, classes: ClassTexts) -> dict[int, Tensor]:
        """The tokens of each text layer; at the first they get the positions of the words they replace."""
        first = self.backbone.text.add_positions(self.text_tokens[0], classes.prompts)
        return by_layer(first, self.text_tokens)

    def encode_text(self, classes: ClassTexts) -> Tensor:
        return self.backbone.text.features(classes, LearnedTokens(self.text_layers(classes)))


def initial_text_tokens(backbone: Backbone, depth: int, count: int, std: float) -> nn.Parameter:
    """Random tokens [depth, count, width]; those of the first layer start as the words they replace, if any."""
    start = backbone.normal(depth, count, backbone.text.width, std=std)
    words = backbone.text.word_embeddings(WORDS)[:count]
    if len(words) == count:
        start[0] = words
    return nn.Parameter(start)


@dataclass(frozen=True)
class VptConfig(Settings):
    """Tokens in the image tower."""

    image_tokens: int = setting(8, "learned tokens per image layer", low=1, high=1000)
    image_depth: int = setting(
        12, "how many of the first image layers have their own tokens; 1: VPT-shallow", low=1, high=1000
    )
    token_std: float = setting(0.02, "initial standard deviation of the tokens", low=0.0, high=10.0)


class VptDeep(ImagePrompts):
    """Image tokens only; class texts are frozen CLIP's.

    Differs from the official code for CLIP: the template is the dataset's own (there "a photo of a {}." for all).
    """

    Config: ClassVar[type[Settings]] = VptConfig
    recipe = Recipe(DASSL, lr=0.0025, epochs=5, batch=4)
    config: VptConfig

    def __init__(self, backbone: Backbone, config: VptConfig) -> None:
        super().__init__(backbone, config)
        depth = min(config.image_depth, backbone.image.layers)
        shape = (depth, config.image_tokens, backbone.image.width)
        self.image_tokens = nn.Parameter(backbone.normal(*shape, std=config.token_std))


class VptShallow(VptDeep):
    """One set of tokens at the first layer, carried on."""

    recipe = Recipe(VptDeep.recipe, image_depth=1)


@dataclass(frozen=True)
class MapleConfig(Settings):
    """Coupled tokens in both towers."""

    text_tokens: int = setting(2, f'learned tokens in place of the first words of "{WORDS}"', low=1, high=60)
    depth: int = setting(9, "how many of the first layers of both towers have their own tokens", low=1, high=1000)
    token_std: float = setting(
        0.02, "initial standard deviation of tokens that do not start as words", low=0.0, high=10.0
    )


class Maple(DeepPrompts):
    """Text tokens P_l as in IVLP; the image tokens of layer l are W_l P_l + b_l.

    The projections of layers 2.. start as copies of one random draw, the first has its own. Differs from the official
    code: fp32 (there half precision, partly without a master copy).
    """

    Config: ClassVar[type[Settings]] = MapleConfig
    recipe = Recipe(DASSL, lr=0.0035, epochs=5, batch=4).on("cross-dataset", "domain", depth=3, lr=0.0026, epochs=2)
    config: MapleConfig  # type: ignore[assignment]

    def __init__(self, backbone: Backbone, config: MapleConfig) -> None:
        Method.__init__(self, backbone, config)
        image, text, like = backbone.image, backbone.text, backbone.image.like
        depth = min(config.depth, image.layers, text.layers)
        self.text_tokens = initial_text_tokens(backbone, depth, config.text_tokens, config.token_std)
        own, deep = (nn.Linear(text.width, image.width).to(like) for _ in range(2))
        self.couplings = nn.ModuleList([own, *(deepcopy(deep) for _ in range(depth - 1))])

    def image_layers(self) -> dict[int, Tensor]:
        coupled = [couple(tokens) for couple, tokens in zip(self.couplings, self.text_tokens, strict=True)]
        return by_layer(self.backbone.image.norm_in(coupled[0]), coupled)


@dataclass(frozen=True)
class PromptSrcConfig(DeepPromptConfig):
    """Tokens in both towers, regularised towards frozen CLIP."""

    lambda_text: float = setting(25.0, "weight of the distance of text features to frozen CLIP's", low=0.0, high=1e6)
    lambda_image: float = setting(10.0, "weight of the distance of image features to frozen CLIP's", low=0.0, high=1e6)
    lambda_logits: float = setting(1.0, "weight of the divergence from frozen CLIP's predictions", low=0.0, high=1e6)


class PromptSrc(DeepPrompts):
    """L = CE + 25 |w - W0| + 10 |f - f0| + KL(p0 || p), |.| the mean over all elements, KL over batch and classes.

    W0 is the mean of raw frozen text features over sixty templates, f0 and p0 are frozen CLIP's on the same view.
    Differs from the official code: only learned weights are averaged, in fp32 (there the whole state in half precision,
    frozen weights included).
    """

    Config = PromptSrcConfig
    recipe = (
        Recipe(DASSL, lr=0.0025, epochs=20, batch=4, average="gaussian", average_peak=15.0, average_width=1.0)
        .on("few-shot", epochs=50, average_peak=30.0, average_width=30.0)
        .on("cross-dataset", "domain", image_depth=3, text_depth=3, average_peak=6.0, average_width=10.0)
    )
    config: PromptSrcConfig

    def encode_classes(self, names: Sequence[str], template: str) -> ClassTexts:
        return super().encode_classes(names, template)._replace(frozen=ensemble(self, names, SIXTY, normalised=False))

    def loss(self, x: LayerInput, labels: Tensor) -> Loss:
        features, text = self.encode_image(x), self.encode_text(self.classes)
        frozen, target = self.backbone.image.frozen_feature(x), self.classes.frozen
        logits = self.logits(features, text)
        with torch.no_grad():
            expected = self.logits(frozen[:, None], target).log_softmax(-1)
        parts = {
            "cross_entropy": F.cross_entropy(logits, labels),
            "text": self.config.lambda_text * (text - target).abs().mean(),
            "image": self.config.lambda_image * (features[:, 0] - frozen).abs().mean(),
            "answers": self.config.lambda_logits
            * F.kl_div(logits.log_softmax(-1), expected, reduction="sum", log_target=True)
            / logits.numel(),
        }
        return Loss(torch.stack(list(parts.values())).sum(), parts, logits)


@dataclass(frozen=True)
class ProVpConfig(Settings):
    """Progressive image tokens."""

    image_tokens: int = setting(16, "learned tokens per image layer", low=1, high=1000)
    beta: float = setting(
        0.99, "weight of a layer's own tokens, against the output of the layer before", low=0.0, high=1.0
    )
    lambda_ref: float = setting(1.0, "weight of the contrastive loss against frozen features", low=0.0, high=1e6)


class ProVp(ImagePrompts):
    """Tokens enter after ln_pre; class texts are frozen CLIP's.

    L = CE + contrastive loss: among the frozen features of the batch, that of the same image should be nearest (cosines
    without a temperature). Differs from the official code: the last epoch is used (there the best on test images), any
    number of tokens works (there four or fewer fail), and the template is the dataset's own.
    """

    Config = ProVpConfig
    recipe = (
        Recipe(DASSL, lr=0.1, epochs=100, batch=32, weight_decay=1e-3)
        .on("few-shot", image_tokens=50, epochs=200, weight_decay=5e-4)
        .on("few-shot", shots=1, epochs=50, weight_decay=1e-3)
        .on("few-shot", shots=2, epochs=100)
        .on("few-shot", shots=4, epochs=100)
    )
    config: ProVpConfig

    def __init__(self, backbone: Backbone, config: ProVpConfig) -> None:
        super().__init__(backbone, config)
        tower, like = backbone.image, backbone.image.like
        bound = (6 / (3 * 14 * 14 + tower.width)) ** 0.5  # as published: for patches of 14 x 14 pixels
        start = torch.empty(tower.layers, self.config.image_tokens, tower.width, device=like.device, dtype=like.dtype)
        self.image_tokens = nn.Parameter(start.uniform_(-bound, bound))

    def class_feature(self, x: LayerInput) -> Tensor:
        tokens = LearnedTokens(dict(enumerate(self.image_tokens, 1)), self.config.beta)
        return self.backbone.image.features(x, tokens).cls

    def loss(self, x: LayerInput, labels: Tensor) -> Loss:
        features = self.encode_image(x)
        logits = self.logits(features, self.encode_text(self.classes))
        similarity = features[:, 0] @ self.backbone.image.frozen_feature(x).T  # [batch, batch]
        same_image = torch.arange(len(similarity), device=similarity.device)
        parts = {
            "cross_entropy": F.cross_entropy(logits, labels),
            "contrast": self.config.lambda_ref * F.cross_entropy(similarity, same_image),
        }
        return Loss(parts["cross_entropy"] + parts["contrast"], parts, logits)
