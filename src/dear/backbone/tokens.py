"""How learned tokens live on from layer to layer: Eq. 5 and 6."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class LearnedTokens:
    """Tokens that enter a tower at some layer and are mixed back with themselves before every later one."""

    raw: Tensor  # [tokens, width]
    beta: float

    def __len__(self) -> int:
        return self.raw.shape[0]

    def mixed(self, carried: Tensor) -> Tensor:
        """Eq. 5/6, input to every layer after the first: beta * raw + (1 - beta) * output of the layer before."""
        return self.beta * self.raw + (1 - self.beta) * carried
