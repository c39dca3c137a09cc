"""The components of a method one by one: what each is worth alone, and how much two of them say the same."""

from collections.abc import Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from dear.core.metrics import accuracy


class Apart:
    """Gathers, batch by batch, what the components of a method say about images."""

    def __init__(self, components: Sequence[str]) -> None:
        self.components = tuple(components)
        self._votes: list[Tensor] = []
        self._cosines: list[Tensor] = []

    def add(self, features: Tensor, votes: Tensor) -> None:
        """Features, normalised, [batch, components, dim], and votes [batch, components, classes]."""
        self._votes.append(votes.cpu())
        self._cosines.append((features @ features.mT).cpu())

    def found(self, labels: Tensor) -> dict[str, Any]:
        """Accuracy (%) by one component's votes alone; mean cosine of two features of an image, the class feature (the
        first) aside, or None where there are no two."""
        votes, cosines = torch.cat(self._votes), torch.cat(self._cosines).mean(0)
        alone = {name: accuracy(votes[:, i], labels) for i, name in enumerate(self.components)}
        pairs = [cosines[i, j].item() for i, j in combinations(range(1, len(self.components)), 2)]
        return {"alone": alone, "cosine": fmean(pairs) if pairs else None}
