"""How much of what a head writes goes with an attribute: omega squared, from sums that stream and add up.

What is known of a picture are a few numbers z: which label it has, or its mean color. The share is the part of a
head's variance, summed over all directions, that a linear fit on z explains, corrected for what any z of that size
would explain by chance. For labels the fit is the mean of each label, and the share is the textbook's

    SSB = sum_v n_v |mean_v - mean|^2    SST = sum |x - mean|^2    MSW = (SST - SSB) / (N - V)
    omega^2 = max(0, (SSB - (V - 1) MSW) / (SST + MSW))

All of it follows from sum z z^T, sum z x^T and sum |x|^2, so pictures stream through once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

GROUPS = 10
_RANK = 1e-10  # of the largest eigenvalue: below it there is only rounding


@dataclass
class Moments:
    """Sums over pictures, in float64, apart for each of some groups of pictures, so that a part can be looked at alone.

    The first `given` numbers of z are known without the attribute (the constant 1, or which set a picture is of).
    """

    outer: Tensor  # sum z z^T, [groups, z, z]
    cross: Tensor  # sum z x^T, [groups, z, layers, heads, width]
    square: Tensor  # sum |x|^2, [groups, layers, heads]
    given: int

    @classmethod
    def empty(cls, z: int, given: int, layers: int, heads: int, width: int) -> "Moments":
        outer, square = torch.zeros(GROUPS, z, z), torch.zeros(GROUPS, layers, heads)
        cross = torch.zeros(GROUPS, z, layers, heads, width)
        return cls(outer.double(), cross.double(), square.double(), given)

    @property
    def count(self) -> int:
        """Pictures so far: each is in one group, and in one of the first `given` numbers."""
        return round(self.outer[:, : self.given, : self.given].sum().item())

    def add(self, z: Tensor, x: Tensor, groups: Tensor) -> None:
        """z [pictures, z]; what heads write, x [pictures, layers, heads, width]; groups [pictures], from 0."""
        x = x.double()
        inside = F.one_hot(groups, GROUPS).double()
        placed = torch.einsum("ng,nz->gzn", inside, z.double())
        self.outer += placed @ z.double()
        self.cross += (placed.flatten(0, 1) @ x.flatten(1)).view_as(self.cross)
        self.square += torch.einsum("ng,nlh->glh", inside, x.square().sum(-1))

    def __add__(self, other: "Moments") -> "Moments":
        return Moments(
            self.outer + other.outer, self.cross + other.cross, self.square + other.square, max(self.given, other.given)
        )

    def share(self, groups: Sequence[int] = range(GROUPS)) -> Tensor:
        """Omega squared of every head in the pictures of these groups, [layers, heads]; zero where none can be told."""
        chosen = list(groups)
        outer, cross, square = (part[chosen].sum(0) for part in (self.outer, self.cross, self.square))
        fit_given, rank_given = _fit(outer[: self.given, : self.given], cross[: self.given])
        fit, rank = _fit(outer, cross)
        count = outer[: self.given, : self.given].sum().item()
        if rank <= rank_given or count <= rank:
            return torch.zeros_like(square)
        total, explained = square - fit_given, fit - fit_given
        noise = (total - explained) / (count - rank)
        share = (explained - (rank - rank_given) * noise) / (total + noise)
        # a head that writes the same for every picture has no variance to share out, only rounding
        return torch.where(total > _RANK * square, share.clamp(min=0), torch.zeros_like(share))


def _fit(outer: Tensor, cross: Tensor) -> tuple[Tensor, int]:
    """Sum of squares of the best linear fit on z, [layers, heads], and how many independent numbers z has."""
    values, vectors = torch.linalg.eigh(outer)
    kept = values > _RANK * values.max()
    along = vectors[:, kept].T @ cross.flatten(1)  # [kept, layers * heads * width]
    fitted = (along.square() / values[kept, None]).sum(0).view_as(cross[0])
    return fitted.sum(-1), int(kept.sum())


def label_numbers(labels: Tensor, classes: int) -> Tensor:
    """z of labels [pictures]: the constant 1 and the label's indicator, [pictures, 1 + classes]."""
    return F.pad(F.one_hot(labels, classes), (1, 0), value=1)


def mean_colors(pixels: Tensor) -> Tensor:
    """Mean L*, a*, b* (CIELAB, D65) of sRGB pixels from 0 to 1, [pictures, 3, height, width] -> [pictures, 3]."""
    x = pixels.clamp(0, 1)
    linear = torch.where(x > 0.04045, ((x + 0.055) / 1.055) ** 2.4, x / 12.92)
    to_xyz = torch.tensor([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]).to(x)
    white = to_xyz.sum(1)[:, None, None]
    xyz = torch.einsum("ij,njhw->nihw", to_xyz, linear) / white
    f = torch.where(xyz > (6 / 29) ** 3, xyz ** (1 / 3), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    lab = torch.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], 1)
    return lab.mean((2, 3))
