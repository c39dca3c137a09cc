"""Learned tokens in the first layers of a tower, fresh ones in each: VPT and independent vision-language prompting.

VPT: Jia et al., ECCV 2022, on CLIP as in MaPLe's comparison. IVLP: Rasheed et al., CVPR 2023, and MaPLe's and
PromptSRC's baseline.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip import Backbone, LearnedTokens
from dear.clip.image import LayerInput, Observer
from dear.core.config import Config, setting
from dear.methods.base import Method, Texts

WORDS = "a photo of a"
DASSL = {
    "optimizer": "sgd", "weight_decay": 5e-4, "crop": 0.08, "drop_last": True, "warmup_epochs": 1, "warmup_lr": 1e-5,
}  # fmt: skip
"""What the recipes of CoOp's and MaPLe's descendants share."""


@dataclass(frozen=True)
class DeepPromptConfig(Config):
    """Tokens in both towers."""

    image_tokens: int = setting(4, "learned tokens in each of the first image layers", low=1, high=1000)
    image_depth: int = setting(9, "image layers with tokens of their own, from the first on", low=1, high=1000)
    text_tokens: int = setting(4, f'learned tokens in the place of "{WORDS}"', low=1, high=60)
    text_depth: int = setting(9, "text layers with tokens of their own, from the first on", low=1, high=1000)
    token_std: float = setting(0.02, "standard deviation of tokens that are no words at the start", low=0.0, high=10.0)


def random_tokens(like: Tensor, depth: int, count: int, width: int, std: float) -> Tensor:
    """[depth, count, width] of normal noise, on the device and in the precision of `like`."""
    return std * torch.randn(depth, count, width, device=like.device, dtype=like.dtype)


class ImagePrompts(Method):
    """Tokens of their own for the first image layers."""

    first_layer = 1
    image_tokens: nn.Parameter  # [depth, tokens, width]

    def image_layers(self) -> dict[int, Tensor]:
        """The tokens of each image layer; those of the first go through CLIP's first LayerNorm with the patches."""
        first = self.backbone.image.visual.ln_pre(self.image_tokens[0])
        return {1: first} | {1 + i: tokens for i, tokens in enumerate(self.image_tokens) if i}

    def projected(self, entry: LayerInput, observe: Observer | None = None) -> Tensor:
        """The class feature, not normalised, [batch, dim]."""
        tower, tokens = self.backbone.image, LearnedTokens(self.image_layers())
        cls, _ = tower.read_with_tokens(entry, tokens, read_tokens=False, observe=observe)
        return tower.project(cls)

    def image_features(self, entry: LayerInput, observe: Observer | None = None) -> Tensor:
        return F.normalize(self.projected(entry, observe), dim=-1)[:, None]


class DeepPrompts(ImagePrompts):
    """IVLP: in each tower, layer l <= depth gets tokens of its own in place of what came out; then they are carried on.

    Differs from the official code: all in fp32 (there half precision without a master copy). The sentence is always
    "a photo of a {}.", whose first words the text tokens replace; with more tokens than it has, the words are
    placeholders and the start is random.
    """

    Settings: ClassVar[type[Config]] = DeepPromptConfig
    recipe: ClassVar[Mapping[str, Any]] = {**DASSL, "lr": 0.0025, "epochs": 20, "batch": 4}
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    first_text_layer = 1
    config: DeepPromptConfig

    def __init__(self, backbone: Backbone, config: Config, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(backbone, config)
        image, text, like = backbone.image, backbone.text, backbone.image.visual.proj
        depth, text_depth = min(self.config.image_depth, image.layers), min(self.config.text_depth, text.layers)
        std, count = self.config.token_std, self.config.text_tokens
        self.image_tokens = nn.Parameter(random_tokens(like, depth, self.config.image_tokens, image.width, std))
        start = random_tokens(like, text_depth, count, text.width, std)
        words = text.words(WORDS)[:count]
        if len(words) == count:
            start[0] = words
        self.text_tokens = nn.Parameter(start)

    def sentences(self, names: Sequence[str], template: str) -> tuple[list[str], Sequence[int]]:
        count = self.config.text_tokens
        lead = WORDS if len(self.backbone.text.words(WORDS)) >= count else " ".join(["X"] * count)
        return [f"{lead} {name}." for name in names], range(1, 1 + count)

    def text_layers(self, texts: Texts) -> dict[int, Tensor]:
        """The tokens of each text layer; at the first they get the positions of the words they replace."""
        first = self.backbone.text.placed(self.text_tokens[0], texts.prompts)
        return {1: first} | {1 + i: tokens for i, tokens in enumerate(self.text_tokens) if i}

    def text_features(self, texts: Texts | None = None) -> Tensor:
        text, texts = self.backbone.text, texts or self.texts
        eot = text.read_eot(texts.states, texts.prompts, 1, LearnedTokens(self.text_layers(texts)))
        return F.normalize(text.project(eot), dim=-1)


@dataclass(frozen=True)
class VptConfig(Config):
    """Tokens in the image tower."""

    image_tokens: int = setting(8, "learned tokens in each of the first image layers", low=1, high=1000)
    image_depth: int = setting(12, "image layers with tokens of their own; 1: VPT-shallow", low=1, high=1000)
    token_std: float = setting(0.02, "their standard deviation at the start", low=0.0, high=10.0)


class VptDeep(ImagePrompts):
    """Only image tokens; the text is frozen CLIP's.

    Differs from the official code for CLIP: the text is the dataset's own template (there "a photo of a {}." for all).
    """

    Settings = VptConfig
    recipe: ClassVar[Mapping[str, Any]] = {**DASSL, "lr": 0.0025, "epochs": 5, "batch": 4}
    config: VptConfig

    def __init__(self, backbone: Backbone, config: Config, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(backbone, config)
        tower, depth = backbone.image, min(self.config.image_depth, backbone.image.layers)
        start = random_tokens(tower.visual.proj, depth, self.config.image_tokens, tower.width, self.config.token_std)
        self.image_tokens = nn.Parameter(start)


class VptShallow(VptDeep):
    """One set of tokens at the first layer, carried on."""

    recipe: ClassVar[Mapping[str, Any]] = {**VptDeep.recipe, "image_depth": 1}
