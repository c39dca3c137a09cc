"""Learned tokens in the first layers of a tower, new ones in each: VPT and independent vision-language prompting.

VPT: Jia et al., ECCV 2022, on CLIP as in MaPLe's comparison. IVLP: Rasheed et al., CVPR 2023, and MaPLe's and
PromptSRC's baseline.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from dear.clip import Backbone, LearnedTokens
from dear.clip.layer_input import LayerInput
from dear.clip.text import ClassTexts
from dear.core.config import Config as Settings
from dear.core.config import setting
from dear.methods.base import Method, normalized
from dear.methods.recipe import Recipe

WORDS = "a photo of a"
DASSL = Recipe(optimizer="sgd", weight_decay=5e-4, crop=0.08, drop_last=True, warmup_epochs=1, warmup_lr=1e-5)
"""The settings shared by the recipes of CoOp, MaPLe and the methods built on them."""


@dataclass(frozen=True)
class DeepPromptConfig(Settings):
    """Tokens in both towers."""

    image_tokens: int = setting(4, "learned tokens per image layer", low=1, high=1000)
    image_depth: int = setting(9, "number of first image layers with their own tokens", low=1, high=1000)
    text_tokens: int = setting(4, f'learned tokens in place of "{WORDS}"', low=1, high=60)
    text_depth: int = setting(9, "number of first text layers with their own tokens", low=1, high=1000)
    token_std: float = setting(
        0.02, "initial standard deviation of tokens that do not start as words", low=0.0, high=10.0
    )


class ImagePrompts(Method):
    """Learned tokens in the first image layers, new ones in each."""

    first_layer = 1
    image_tokens: nn.Parameter  # [depth, tokens, width]

    def image_layers(self) -> dict[int, Tensor]:
        """The tokens of each image layer; those of the first go through ln_pre, as the patches do."""
        first = self.backbone.image.norm_in(self.image_tokens[0])
        return {1: first} | {1 + i: tokens for i, tokens in enumerate(self.image_tokens) if i}

    def class_feature(self, x: LayerInput) -> Tensor:
        """Not normalised, [batch, dim]."""
        return self.backbone.image.features(x, LearnedTokens(self.image_layers())).cls

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
        lead = WORDS if len(self.backbone.text.word_embeddings(WORDS)) >= count else " ".join(["X"] * count)
        return [f"{lead} {name}." for name in names], range(1, 1 + count)

    def text_layers(self, classes: ClassTexts) -> dict[int, Tensor]:
        """The tokens of each text layer; at the first they get the positions of the words they replace."""
        first = self.backbone.text.add_positions(self.text_tokens[0], classes.prompts)
        return {1: first} | {1 + i: tokens for i, tokens in enumerate(self.text_tokens) if i}

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
        12, "number of first image layers with their own tokens; 1: VPT-shallow", low=1, high=1000
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
