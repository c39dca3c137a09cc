"""MaPLe: deep tokens in both towers, the image tokens a linear function of the text tokens (CVPR 2023)."""

from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from dear.clip import Backbone
from dear.core.config import Config as Settings
from dear.core.config import setting
from dear.methods.base import Method
from dear.methods.deep_prompts import DASSL, WORDS, DeepPrompts, initial_text_tokens
from dear.methods.recipe import Recipe


@dataclass(frozen=True)
class MapleConfig(Settings):
    """Coupled tokens in both towers."""

    text_tokens: int = setting(2, f'learned tokens in place of the first words of "{WORDS}"', low=1, high=60)
    depth: int = setting(9, "number of first layers of both towers with their own tokens", low=1, high=1000)
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
        first = self.backbone.image.norm_in(coupled[0])
        return {1: first} | {1 + i: tokens for i, tokens in enumerate(coupled) if i}
