"""TEXTSPAN (Gandelsman et al., ICLR 2024): the texts that span a head's contributions, from second moments alone.

The published algorithm stores every contribution and rewrites all of them at each pick. But the std of a projection,
the right singular vectors and the mean are functions of n, sum x and sum x x^T, so one pass over the images suffices
and memory does not grow with their number.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dear.core.errors import DearError

# Smaller shares are rounding errors: in float64 sums the eigenvalues of sum x x^T are exact to about 1e-16 of the
# largest; in the published float32 code a std is exact to about 1e-6 of the data, a variance to 1e-12.
_NULL_DIRECTION = 1e-14
_NULL_SCORE = 1e-12
_TIE = 1e-9


@dataclass(frozen=True)
class SecondMoments:
    """Moments of one head: `count` contributions x, `total` = sum x [dim], `outer` = sum x x^T [dim, dim]."""

    count: int
    total: Tensor
    outer: Tensor


@dataclass(frozen=True)
class TextSpan:
    """The picked texts, best first, and the share of the head's variance that each one adds (sum <= 1)."""

    indices: list[int]
    variance: list[float]


class RunningMoments:
    """Running second moments of every head of some layers, in float64, of a size that does not depend on the images.

    `dim` is the width of the contributions in the joint space, or of their coordinates in an orthonormal basis of a
    head's span. With the texts in the same basis, both give the same picks; coordinates take less memory.
    """

    def __init__(self, layers: Sequence[int], heads: int, dim: int) -> None:
        self.layers = tuple(layers)  # counted from 1
        self.count = 0
        self.total = torch.zeros(len(self.layers), heads, dim, dtype=torch.float64)
        self.outer = torch.zeros(len(self.layers), heads, dim, dim, dtype=torch.float64)

    def update(self, contributions: Tensor) -> None:
        """Adds `contributions` [images, layers, heads, dim]: all of them, or none if one is not finite."""
        if contributions.ndim != 4 or contributions.shape[1:] != self.total.shape:
            raise ValueError(
                f"contributions of shape {tuple(contributions.shape)} do not fit {tuple(self.total.shape)}"
            )
        contributions = contributions.detach().to(self.total.device)
        if not contributions.isfinite().all():
            raise DearError(
                "A head's contribution is not finite; run the backbone in float32 instead of half precision."
            )
        for layer in range(len(self.layers)):  # layer by layer, to keep the float64 copy small
            x = contributions[:, layer].transpose(0, 1).double()
            self.total[layer] += x.sum(1)
            self.outer[layer].baddbmm_(x.transpose(1, 2), x)
        self.count += len(contributions)

    def of(self, layer: int, head: int) -> SecondMoments:
        """Moments of one head; `layer` counts from 1, `head` from 0."""
        at = self.layers.index(layer)
        return SecondMoments(self.count, self.total[at, head], self.outer[at, head])

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors for safetensors."""
        return {
            "layers": torch.tensor(self.layers),
            "count": torch.tensor(self.count),
            "total": self.total,
            "outer": self.outer,
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if tuple(state["layers"].tolist()) != self.layers or state["outer"].shape != self.outer.shape:
            raise DearError(
                "The saved moments belong to other layers or another backbone; remove the file and start again."
            )
        self.count = int(state["count"])
        self.total.copy_(state["total"])
        self.outer.copy_(state["outer"])


@torch.no_grad()
def textspan(moments: SecondMoments, texts: Tensor, rank: int, picks: int = 20) -> TextSpan:
    """Greedy choice of the texts along which the head's contributions vary most.

    `texts` [texts, dim] has unit rows; `rank` is the head's dimension. The texts are projected on the span of the top
    `rank` right singular vectors of the uncentred contributions and not normalised again. Then, `picks` times: take
    the text along which the centred data have the largest std, and remove its direction.

    Ties go to the lowest index. Directions without data are not part of the span, even below `rank` (the published code
    would take arbitrary ones). The result is shorter than `picks` if no text has any variance left, and empty for a
    head that writes the same for every image.
    """
    if len(texts) < picks:
        raise DearError(f"{picks} phrases for each head cannot be picked from {len(texts)}; give more phrases.")
    if moments.count == 0:
        raise DearError("There is no image to describe the heads by; give at least one readable image.")
    second = moments.outer / moments.count
    mean = moments.total / moments.count
    power = float(second.trace())
    eigenvalues, vectors = torch.linalg.eigh(second)  # ascending; eigenvectors = right singular vectors of the data
    basis = vectors[:, -rank:][:, eigenvalues[-rank:] > _NULL_DIRECTION * eigenvalues[-1]]  # [dim, r]

    # From here on all is inside the span: r coordinates instead of dim. With the covariance as a product
    # factor @ factor^T, the variance along text t is |t factor|^2: a sum of squares, without cancellation.
    residual = texts.to(second) @ basis  # [texts, r]
    covariance = basis.T @ (second - torch.outer(mean, mean)) @ basis
    variances, axes = torch.linalg.eigh(covariance)
    spread = residual @ (axes * variances.clamp(min=0).sqrt())  # [texts, r]
    total_variance = power - float(mean @ mean)

    picked: list[int] = []
    shares: list[float] = []
    while len(picked) < picks:
        scores = spread.square().sum(1)
        largest = float(scores.max())
        if largest <= _NULL_SCORE * power:
            break
        best = int((scores >= largest * (1 - _TIE)).nonzero()[0])
        direction, along = residual[best].clone(), spread[best].clone()
        length = float(direction @ direction)
        picked.append(best)
        shares.append(largest / length / total_variance)
        # Once texts are orthogonal to a direction, the data need not lose it: their projections are the same.
        overlap = residual @ direction / length
        residual.addr_(overlap, direction, alpha=-1)
        spread.addr_(overlap, along, alpha=-1)
    return TextSpan(picked, shares)
