"""Settings of the method: every open reading of the paper is one of them. docs/method.md gives the reasons."""

from dataclasses import dataclass

from dear.config import Config, setting


@dataclass(frozen=True)
class DearConfig(Config):
    """The method (Eq. 5-19)."""

    first_layer: int | None = setting(
        None, "first adapted image layer J, from 1; default: the last third, 9 of 12", low=1
    )
    tokens_per_attribute: int = setting(1, "learnable tokens for each core attribute", low=1)
    text_tokens: int = setting(5, "learnable tokens on the text side, between BOT and the words", low=1)
    token_std: float = setting(0.02, "standard deviation of the tokens at the start", low=0.0)
    beta: float = setting(
        0.9, "weight of the raw token between layers: 1 re-injects it, 0 carries on", low=0.0, high=1.0
    )
    isolation: str = setting(
        "one_way",
        "generalization heads: one_way hides attribute tokens from the image; two_way also the image from them",
        choices=("one_way", "two_way"),
    )
    routing: str = setting(
        "open",
        "strict: a token reads the image only in heads of its attribute and in mixed heads",
        choices=("open", "strict"),
    )
    projection_start: str = setting(
        "copy", "P_attr starts as a copy of CLIP's image projection, or at random", choices=("copy", "random")
    )
    fusion_init: float = setting(0.9, "fusion weight of the class feature at the start", low=0.01, high=0.99)
    fusion_loss: str = setting(
        "linear", "L_fusion: linear is 1 - alpha_cls, log is -log alpha_cls", choices=("linear", "log")
    )
    lambda_reg: float = setting(1.0, "weight of the self-regularisation", low=0.0)
    lambda_fusion: float = setting(0.7, "weight of L_fusion", low=0.0)
