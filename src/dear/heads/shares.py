"""The share of a head's variance that goes with an attribute: omega squared, from sums over pictures that add up.

Each picture has a few numbers z: its label, one-hot, or its mean color. The share is the part of a head's variance,
summed over all directions, that a linear fit on z explains, corrected for what any z of that size would explain by
chance. For labels the fit is the mean of each label, and the share is the textbook's

    SSB = sum_v n_v |mean_v - mean|^2    SST = sum |x - mean|^2    MSW = (SST - SSB) / (N - V)
    omega^2 = max(0, (SSB - (V - 1) MSW) / (SST + MSW))

All of it follows from sum z z^T, sum z x^T and sum |x|^2, so one pass over the pictures suffices.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

PICTURE_GROUPS = 10
_RANK = 1e-10  # eigenvalues below this share of the largest are rounding errors


@dataclass
class AttributeMoments:
    """Sums over pictures for one attribute and all heads, in float64, separate for each of ten groups of pictures.

    The first `nuisance` numbers of z say nothing about the attribute (the constant 1, or the label within which color
    is measured): what they explain is taken off first.
    """

    outer: Tensor  # sum z z^T, [groups, z, z]
    cross: Tensor  # sum z x^T, [groups, z, layers, heads, width]
    square: Tensor  # sum |x|^2, [groups, layers, heads]
    nuisance: int

    @classmethod
    def empty(cls, z: int, nuisance: int, layers: int, heads: int, width: int) -> "AttributeMoments":
        outer, square = torch.zeros(PICTURE_GROUPS, z, z), torch.zeros(PICTURE_GROUPS, layers, heads)
        cross = torch.zeros(PICTURE_GROUPS, z, layers, heads, width)
        return cls(outer.double(), cross.double(), square.double(), nuisance)

    @property
    def count(self) -> int:
        """Number of pictures: each is in one group, and one of its nuisance numbers is 1."""
        return round(self.outer[:, : self.nuisance, : self.nuisance].sum().item())

    def add(self, z: Tensor, x: Tensor, groups: Tensor) -> None:
        """Adds z [pictures, z] with contributions x [pictures, layers, heads, width] and groups [pictures], from 0."""
        x = x.double()
        in_group = F.one_hot(groups, PICTURE_GROUPS).double()
        z_by_group = torch.einsum("ng,nz->gzn", in_group, z.double())
        self.outer += z_by_group @ z.double()
        self.cross += (z_by_group.flatten(0, 1) @ x.flatten(1)).view_as(self.cross)
        self.square += torch.einsum("ng,nlh->glh", in_group, x.square().sum(-1))

    def share(self, groups: Sequence[int] = range(PICTURE_GROUPS)) -> Tensor:
        """Omega squared of every head in the pictures of these groups, [layers, heads]; zero if it is undefined."""
        chosen = list(groups)
        outer, cross, square = (part[chosen].sum(0) for part in (self.outer, self.cross, self.square))
        fit_nuisance, rank_nuisance = _fit(outer[: self.nuisance, : self.nuisance], cross[: self.nuisance])
        fit, rank = _fit(outer, cross)
        count = outer[: self.nuisance, : self.nuisance].sum().item()
        if rank <= rank_nuisance or count <= rank:
            return torch.zeros_like(square)
        total, explained = square - fit_nuisance, fit - fit_nuisance
        noise = (total - explained) / (count - rank)
        share = (explained - (rank - rank_nuisance) * noise) / (total + noise)
        # a head that writes the same for every picture has no variance, only rounding errors
        return torch.where(total > _RANK * square, share.clamp(min=0), torch.zeros_like(share))


@dataclass
class HeadMoments:
    """The measurements of one pass over the probes: for each attribute the moments of all heads."""

    layers: tuple[int, ...]
    moments: dict[str, AttributeMoments] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)  # names of pictures that could not be decoded
    colored: list[int] = field(default_factory=list)  # per probe, the number of pictures measured for color by pixels
    pictures: int = 0
    outputs: Tensor | None = None  # sum over them of what heads put out at CLS, [layers, heads, head_dim]

    def shares(self, groups: Sequence[int] = range(PICTURE_GROUPS)) -> Tensor:
        """Omega squared, [attributes, layers, heads], in some groups of the pictures."""
        return torch.stack([moments.share(groups) for moments in self.moments.values()])


def _fit(outer: Tensor, cross: Tensor) -> tuple[Tensor, int]:
    """Sum of squares of the best linear fit on z, [layers, heads], and the rank of z."""
    values, vectors = torch.linalg.eigh(outer)
    positive = values > _RANK * values.max()
    along = vectors[:, positive].T @ cross.flatten(1)  # [rank, layers * heads * width]
    fitted = (along.square() / values[positive, None]).sum(0).view_as(cross[0])
    return fitted.sum(-1), int(positive.sum())


def label_numbers(labels: Tensor, classes: int) -> Tensor:
    """z of labels [pictures]: the constant 1 and the label, one-hot, [pictures, 1 + classes]."""
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
