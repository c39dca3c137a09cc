"""What an adapted model says about one image. Plain numbers: an exported model answers so without PyTorch."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Vote:
    """What one component said by itself, and how much it counts."""

    component: str  # "cls", "color", ...
    weight: float
    choice: str
    probability: float  # of its own choice
    for_answer: float  # the probability it gave to the final answer


@dataclass(frozen=True)
class Answer:
    choice: str
    probability: float
    top: tuple[tuple[str, float], ...]
    votes: tuple[Vote, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{name}  {100 * p:.1f}%" for name, p in self.top]
        said = [
            f"  {v.component:<10} weight {v.weight:.2f}  says {v.choice} ({100 * v.probability:.0f}%)"
            for v in self.votes
        ]
        return "\n".join(lines + said)
