"""Exact leave-one-out: what a closed form would say of each labelled image, had it not seen that one.

Each class here is a fit, with the scores of new images and of its own images left out, at the cost of one fit instead
of one per image. `tests/methods/test_leave_one_out.py` compares them with refits. What is fitted is in fp64, what
is said of images left out in the precision of the features.
"""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 1000  # images at a time, where all would take much memory


def class_means(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Means [classes, dim] and numbers of images [classes]; the mean of a class without images is zero."""
    counts = torch.bincount(labels, minlength=classes).to(features)
    sums = features.new_zeros(classes, features.shape[1]).index_add(0, labels, features)
    return sums / counts.clamp(min=1)[:, None], counts


class Gaussians:
    """Gaussian discriminant analysis: a mean per class and one covariance, S / (N - C) + shrink * its mean eigenvalue.

    S [dim, dim] is the scatter of N features around their C class means.
    """

    def __init__(self, features: Tensor, labels: Tensor, classes: int) -> None:
        exact = features.double()
        means, self.counts = class_means(exact, labels, classes)
        self.labels, self.spare = labels, max(1, len(labels) - int((self.counts > 0).sum()))
        residuals = exact - means[labels]
        self.scatter, self.basis = torch.linalg.eigh(residuals.T @ residuals)  # all else in this basis
        self.scatter, self.means = self.scatter.clamp(min=0), means @ self.basis
        self.features, self.residuals = (part.to(features) @ self.basis.to(features) for part in (features, residuals))

    def weights(self, shrink: float) -> tuple[Tensor, Tensor]:
        """Weight [classes, dim] and bias [classes] of the scores, which sum to zero over the classes with images."""
        if not self.scatter.any():  # one image per class: no covariance
            return torch.zeros_like(self.means), torch.zeros_like(self.means[:, 0])
        precision = self.spare / (self.scatter + shrink * self.scatter.mean())
        weight, present = self.means * precision, self.counts > 0
        bias = -(weight * self.means).sum(1) / 2
        weight = (weight - weight[present].mean(0)) @ self.basis.T
        bias = bias - bias[present].mean()
        return weight * present[:, None], bias * present

    def left_out(self, shrink: float, rows: Tensor) -> Tensor:
        """Scores [rows, classes] of the images `rows`, each by the fit without it.

        Without image i of a class of n, S loses n / (n - 1) r r^T, r its residual: a change of rank one (Woodbury).
        A class whose only image it is scores zero.
        """
        if not self.scatter.any():
            return self.features.new_zeros(len(rows), len(self.means))
        own, x, r = self.labels[rows], self.features[rows], self.residuals[rows]
        means, scatter, counts = (part.to(x) for part in (self.means, self.scatter, self.counts[own]))
        several = counts > 1
        gamma = torch.where(several, counts / (counts - 1).clamp(min=1), 0)
        trace = scatter.sum() - gamma * r.square().sum(1)
        spare = torch.where(several, self.spare - 1, self.spare).clamp(min=1)
        inverse = 1 / (scatter + shrink * trace[:, None] / len(scatter))  # [rows, dim]
        a = inverse * r
        kappa = gamma / (1 - gamma * (r * a).sum(1))

        def score(means: Tensor, product: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
            """Scores x P mu - mu P mu / 2 for P = inverse + kappa a a^T."""
            along = product(a, means)
            linear = product(x * inverse, means) + (kappa * (x * a).sum(1))[:, None] * along
            return linear - (product(inverse, means.square()) + kappa[:, None] * along.square()) / 2

        scores = score(means, lambda left, right: left @ right.T)
        mean = means[own] - r / (counts - 1).clamp(min=1)[:, None]
        alone = score(mean, lambda left, right: (left * right).sum(1, keepdim=True))
        scores = spare[:, None] * scores.scatter(1, own[:, None], alone)
        present = (self.counts > 0).repeat(len(rows), 1).scatter(1, own[:, None], several[:, None])
        scores = scores - (scores * present).sum(1, keepdim=True) / present.sum(1, keepdim=True)
        return scores * present


class KernelRidge:
    """Ridge regression of targets [images, outputs] on the kernel exp(-beta (1 - cosine)).

    `cosines` [images, landmarks], in fp64, are those with the images that span the solution, which are at the positions
    `landmarks`. With all of them it is kernel ridge regression itself, with fewer the Nystroem approximation, whose map
    of images does not depend on targets.
    """

    def __init__(self, cosines: Tensor, targets: Tensor, landmarks: Tensor, beta: float) -> None:
        self.cosines, self.targets, self.beta = cosines, targets, beta
        values, vectors = torch.linalg.eigh(self.kernel(cosines[landmarks]))
        keep = values > values[-1] * len(values) * torch.finfo(values.dtype).eps
        self.to_map, self.spectrum = vectors[:, keep] / values[keep].sqrt(), values[keep]  # [landmarks, rank], [rank]
        squares = values.new_zeros(len(landmarks), len(landmarks))
        products = values.new_zeros(len(landmarks), targets.shape[1])
        for part, y in zip(cosines.split(BLOCK), targets.split(BLOCK), strict=True):
            columns = self.kernel(part)  # [block, landmarks]
            squares.addmm_(columns.T, columns)
            products.addmm_(columns.T, y.to(columns))
        if len(landmarks) < len(cosines):  # else the mapped features are orthogonal as they are
            spectrum, turn = torch.linalg.eigh(self.to_map.T @ squares @ self.to_map)
            self.to_map, self.spectrum = self.to_map @ turn, spectrum.clamp(min=0)
        self.projected = self.to_map.T @ products  # [rank, outputs]

    def kernel(self, cosines: Tensor) -> Tensor:
        return (cosines - 1).mul_(self.beta).exp_()

    def weights(self, ridge: float) -> Tensor:
        """Weights of the landmarks, [landmarks, outputs]: predictions are kernel @ weights."""
        return self.to_map @ (self.projected / (self.spectrum + ridge)[:, None])

    def left_out(self, ridge: float, rows: Tensor) -> Tensor:
        """Predictions [rows, outputs] for the images `rows`, each by the fit without it: y - e / (1 - h)."""
        targets, scale = self.targets[rows], (self.spectrum + ridge).rsqrt()
        mapped = (self.kernel(self.cosines[rows]) @ self.to_map * scale).to(targets)  # [rows, rank], well scaled
        leverage = mapped.square().sum(1, keepdim=True)
        return targets - (targets - mapped @ (scale[:, None] * self.projected).to(targets)) / (1 - leverage)

    @cached_property
    def mapped(self) -> Tensor:
        """The images, mapped so that the kernel is a product, [images, rank]."""
        return torch.cat([self.kernel(part) @ self.to_map for part in self.cosines.split(BLOCK)])

    def refit(self, ridge: float, used: Tensor, rows: Tensor) -> Tensor:
        """Predictions [rows, outputs] by the fit to the images `used` [images], each of these without itself."""
        rest = self.mapped[~used]
        factor = torch.linalg.cholesky((self.spectrum + ridge).diag() - rest.T @ rest)
        weights = torch.cholesky_solve(self.projected - rest.T @ self.targets[~used].to(rest), factor)
        answers, targets = self.mapped[rows] @ weights, self.targets[rows].to(rest)
        leverage = torch.linalg.solve_triangular(factor, self.mapped[rows].T, upper=False).square().sum(0)[:, None]
        own = targets - (targets - answers) / (1 - leverage)
        return torch.where(used[rows, None], own, answers).to(self.targets)


class TextAndMeans:
    """Class vectors t + strength * n / (n + prior) * mean of the n images of a class, compared by cosine.

    The more images a class has, the more they count beside its text [classes, dim].
    """

    def __init__(self, features: Tensor, labels: Tensor, text: Tensor) -> None:
        self.means, self.counts = class_means(features, labels, len(text))
        self.features, self.labels, self.text = features, labels, text

    def _share(self, counts: Tensor, strength: float, prior: float) -> Tensor:
        return strength * counts / (counts + prior).clamp(min=1)

    def vectors(self, strength: float, prior: float) -> Tensor:
        """Class vectors, normalised, [classes, dim]."""
        share = self._share(self.counts, strength, prior)
        return F.normalize(self.text + share[:, None] * self.means, dim=1)

    def left_out(self, strength: float, prior: float, rows: Tensor) -> Tensor:
        """Cosines [rows, classes] of the images `rows` with the class vectors made without them."""
        own, x = self.labels[rows], self.features[rows]
        share = self._share(self.counts, strength, prior)
        lengths = (self.text + share[:, None] * self.means).norm(dim=1).clamp(min=1e-12)
        cosines = (x @ self.text.T + share * (x @ self.means.T)) / lengths
        rest = self.counts[own] - 1
        mean = (self.means[own] * self.counts[own, None] - x) / rest.clamp(min=1)[:, None]
        vector = F.normalize(self.text[own] + self._share(rest, strength, prior)[:, None] * mean, dim=1)
        return cosines.scatter(1, own[:, None], (x * vector).sum(1, keepdim=True))
