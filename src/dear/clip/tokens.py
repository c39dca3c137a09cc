"""Learned tokens from layer to layer: replaced, carried on, or mixed (Eq. 5 and 6 of DeAR)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True)
class LearnedTokens:
    """Tokens that enter a tower at the first layer of `raw`.

    A later layer gets `beta * raw[layer] + (1 - beta) * output of the layer before`, or that output alone if it has no
    raw tokens. So beta 1 replaces the tokens at each layer, beta 0 carries them on, and values between mix both.
    """

    raw: Mapping[int, Tensor]  # layer, from 1 -> [tokens, width]; in a text tower also [prompts, tokens, width]
    beta: float = 1.0

    @classmethod
    def in_all(cls, raw: Tensor, layers: Iterable[int], beta: float) -> "LearnedTokens":
        """Tokens with the same raw values in each of the layers."""
        return cls(dict.fromkeys(layers, raw), beta)

    def __len__(self) -> int:
        return next(iter(self.raw.values())).shape[-2]

    def of(self, prompts: Tensor) -> "LearnedTokens":
        """The tokens of some prompts."""
        return replace(self, raw={at: raw[prompts] if raw.dim() == 3 else raw for at, raw in self.raw.items()})

    def into(self, layer: int, carried: Tensor | None) -> Tensor:
        """The tokens that `layer` gets; `carried`: the output of the layer before, None where they enter."""
        if carried is None:
            return self.raw[layer]
        if layer not in self.raw or self.beta == 0:
            return carried
        raw = self.raw[layer]
        return raw if self.beta == 1 else self.beta * raw + (1 - self.beta) * carried

    def replaced_at(self, layer: int) -> bool:
        """Whether the output of the layer before is not used: in that layer the tokens are keys and values only."""
        return self.beta == 1 and layer in self.raw
