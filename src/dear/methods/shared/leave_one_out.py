"""Exact leave-one-out: what a closed form would say of each labelled image, had it not seen that one.

Each class here is a fit, with the scores of new images and of its own images left out, at the cost of one fit instead
of one per image. `tests/methods/test_leave_one_out.py` compares them with refits. What is fitted is in fp64, what
is said of images left out in the precision of the features.

Left out, the class of an image has n - 1 images and every other class n. With few images that alone turns a score
against the own class, and settings chosen by such scores trust the images too little. `Gaussians` has scores whose
expectation does not depend on n; the others leave out an image of each small class at once (`rounds_of`).
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 1000  # images at a time, where all would take much memory
_SMALL = 8  # images of a class, at most, that are left out together with those of other classes


def class_means(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Means [classes, dim] and numbers of images [classes]; the mean of a class without images is zero."""
    counts = torch.bincount(labels, minlength=classes).to(features)
    sums = features.new_zeros(classes, features.shape[1]).index_add(0, labels, features)
    return sums / counts.clamp(min=1)[:, None], counts


def places_in_class(labels: Tensor, by: Tensor) -> Tensor:
    """The place of each image [images] among those of its class, in the order of `by` [images]."""
    order = by.argsort()
    order = order[labels[order].argsort(stable=True)]
    sizes = torch.bincount(labels)
    starts = (sizes.cumsum(0) - sizes)[labels[order]]
    return torch.empty_like(labels).scatter(0, order, torch.arange(len(labels), device=labels.device) - starts)


def rounds_of(features: Tensor, labels: Tensor) -> Tensor:
    """Which images are left out together [images]: one of every class that has few; 0: this image alone.

    They are dealt by a random direction of the features [images, dim], so that the order of images does not matter.
    """
    direction = torch.randn(features.shape[1], generator=torch.Generator().manual_seed(0)).to(features)
    places, sizes = places_in_class(labels, features @ direction), torch.bincount(labels)[labels]
    return torch.where((sizes > 1) & (sizes <= _SMALL), places + 1, 0)


def by_round(rounds: Tensor, rows: Tensor) -> Iterator[tuple[bool, Tensor, Tensor, Tensor]]:
    """Whether images are left out together, these [block], which of `rows` are among them, and where in the block."""
    for number in rounds[rows].unique().tolist():
        asked = (rounds[rows] == number).nonzero()[:, 0]
        block = (rounds == number).nonzero()[:, 0] if number else rows[asked]
        place = torch.searchsorted(block, rows[asked]) if number else torch.arange(len(asked), device=rows.device)
        yield number > 0, block, asked, place


class Gaussians:
    """Gaussian discriminant analysis: a mean per class and one covariance, S / (N - C) + shrink * its mean eigenvalue.

    S [dim, dim] is the scatter of N features around their C class means, P the inverse of the covariance. The score of
    a class with n images and mean m is x P m - m P m / 2 + tr(P Sigma) / (2 n): the last term, `spread` / (2 n), makes
    up for m P m being too large by tr(P Sigma) / n on average, so that classes with few images are not at a
    disadvantage, and an image left out is not beside its own class. Where all n are equal it changes nothing.
    """

    def __init__(self, features: Tensor, labels: Tensor, classes: int) -> None:
        exact = features.double()
        means, self.counts = class_means(exact, labels, classes)
        self.labels, self.spare = labels, max(1, len(labels) - int((self.counts > 0).sum()))
        residuals = exact - means[labels]
        self.scatter, self.basis = torch.linalg.eigh(residuals.T @ residuals)  # all else in this basis
        self.scatter, self.means = self.scatter.clamp(min=0), means @ self.basis
        self.scatter *= self.scatter.sum() > 1e-12 * exact.square().sum()  # else equal images, and rounding
        self.features, self.residuals = (part.to(features) @ self.basis.to(features) for part in (features, residuals))

    def weights(self, shrink: float, spread: float | None = None) -> tuple[Tensor, Tensor]:
        """Weight [classes, dim] and bias [classes] of the scores, which sum to zero over the classes with images."""
        spread = self.spread(shrink) if spread is None else spread
        if not self.scatter.any():  # one image per class: no covariance
            return torch.zeros_like(self.means), torch.zeros_like(self.means[:, 0])
        precision = self.spare / (self.scatter + shrink * self.scatter.mean())
        weight, present = self.means * precision, self.counts > 0
        bias = (spread / self.counts.clamp(min=1) - (weight * self.means).sum(1)) / 2
        weight = (weight - weight[present].mean(0)) @ self.basis.T
        bias = bias - bias[present].mean()
        return weight * present[:, None], bias * present

    def spread(self, shrink: float) -> float:
        """tr(P Sigma), by the squared distances of images from the means of their classes, in fits without them."""
        rows = (self.counts[self.labels] > 1).nonzero()[:, 0]
        rows = rows[:: 1 + len(rows) // (4 * BLOCK)]  # thousands are enough for a mean
        gamma, spare, inverse = self._without(shrink, rows)
        along = (self.residuals[rows].square() * inverse).sum(1)
        known = inverse.any(1)
        return (spare * gamma * along / (1 - gamma * along))[known].sum().item() / max(1, int(known.sum()))

    def _without(self, shrink: float, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The fits without one image of `rows` each, but for the change by its residual r: gamma, N - C, inverse.

        S loses gamma r r^T with gamma = n / (n - 1), n the images of the class [rows]; `inverse` [rows, dim] is that of
        S, shrunk as without the image. By Woodbury, P = (N - C) (inverse + kappa a a^T) with a = inverse r. It is zero
        where nothing would be left of S: the fit has no covariance then.
        """
        r, counts = self.residuals[rows], self.counts[self.labels[rows]].to(self.residuals)
        gamma = torch.where(counts > 1, counts / (counts - 1).clamp(min=1), 0)
        trace = self.scatter.sum().to(r) - gamma * r.square().sum(1)
        spare = torch.where(counts > 1, self.spare - 1, self.spare).clamp(min=1)
        inverse = 1 / (self.scatter.to(r) + shrink * trace[:, None] / len(self.scatter))
        rounding = torch.finfo(r.dtype).eps ** 0.75 * self.scatter.sum().to(r)
        return gamma, spare, torch.where((trace > rounding)[:, None], inverse, 0)

    def left_out(self, shrink: float, rows: Tensor, spread: float | None = None) -> Tensor:
        """Scores [rows, classes] of the images `rows`, each by the fit without it, but with the same `spread`.

        A class whose only image it is scores zero.
        """
        spread = self.spread(shrink) if spread is None else spread
        own, x, r = self.labels[rows], self.features[rows], self.residuals[rows]
        means, images = self.means.to(x), self.counts.to(x).repeat(len(rows), 1)
        images = images.scatter_add(1, own[:, None], -torch.ones_like(images[:, :1]))  # of each class, without this one
        gamma, spare, inverse = self._without(shrink, rows)
        a = inverse * r
        kappa = gamma / (1 - gamma * (r * a).sum(1))

        def score(means: Tensor, product: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
            """Scores x P mu - mu P mu / 2 for P = inverse + kappa a a^T."""
            along = product(a, means)
            linear = product(x * inverse, means) + (kappa * (x * a).sum(1))[:, None] * along
            return linear - (product(inverse, means.square()) + kappa[:, None] * along.square()) / 2

        scores = score(means, lambda left, right: left @ right.T)
        mean = means[own] - r / images.gather(1, own[:, None]).clamp(min=1)
        alone = score(mean, lambda left, right: (left * right).sum(1, keepdim=True))
        scores = spare[:, None] * scores.scatter(1, own[:, None], alone) + spread / 2 / images.clamp(min=1)
        present = (images > 0) & inverse.any(1, keepdim=True)
        scores = scores - (scores * present).sum(1, keepdim=True) / present.sum(1, keepdim=True).clamp(min=1)
        return scores * present


class KernelRidge:
    """Ridge regression of targets [images, outputs] on the kernel exp(-beta (1 - cosine)).

    `cosines` [images, landmarks], in fp64, are those with the images that span the solution, which are at the positions
    `landmarks`. With all of them it is kernel ridge regression itself, with fewer the Nystroem approximation, whose map
    of images does not depend on targets.
    """

    def __init__(
        self, cosines: Tensor, targets: Tensor, landmarks: Tensor, beta: float, rounds: Tensor | None = None
    ) -> None:
        """`rounds` [images]: see `rounds_of`; None: each is left out alone."""
        self.cosines, self.targets, self.beta = cosines, targets, beta
        self.rounds = landmarks.new_zeros(len(cosines)) if rounds is None else rounds
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

    def left_out(self, ridge: float, rows: Tensor, used: Tensor | None = None) -> Tensor:
        """Predictions [rows, outputs] for the images `rows`, each by the fit without its round: y - (1 - H)^-1 e.

        `used` [images]: the fit is to these alone (None: to all), and its predictions for others as they are.
        """
        answers, rounds, scale = torch.empty_like(self.targets[rows]), self.rounds, (self.spectrum + ridge).rsqrt()
        to_map, solution = self.to_map * scale, scale[:, None] * self.projected
        if used is not None:
            rounds, rest = rounds.where(used, -1), self.kernel(self.cosines[~used]) @ self.to_map
            factor = torch.linalg.cholesky((self.spectrum + ridge).diag() - rest.T @ rest)
            turn = torch.linalg.solve_triangular(factor, torch.eye(len(factor)).to(factor), upper=False).T
            to_map, solution = self.to_map @ turn, turn.T @ (self.projected - rest.T @ self.targets[~used].to(rest))
        for together, block, asked, place in by_round(rounds, rows):
            y = self.targets[block].to(scale if together else answers)
            mapped = (self.kernel(self.cosines[block]) @ to_map).to(y)  # [block, rank]; H is its square
            residuals = y - mapped @ solution.to(y)
            if together:
                residuals = torch.linalg.solve(torch.eye(len(block)).to(y) - mapped @ mapped.T, residuals)
            elif rounds[block[0]] == 0:
                residuals = residuals / (1 - mapped.square().sum(1, keepdim=True))
            answers[asked] = (y - residuals)[place].to(answers)
        return answers


class TextAndMeans:
    """Class vectors t + strength * n / (n + prior) * mean of the n images of a class, compared by cosine.

    The more images a class has, the more they count beside its text [classes, dim]. `rounds`: see `rounds_of`.
    """

    def __init__(self, features: Tensor, labels: Tensor, text: Tensor, rounds: Tensor | None = None) -> None:
        self.means, self.counts = class_means(features, labels, len(text))
        self.rounds = torch.zeros_like(labels) if rounds is None else rounds
        self.features, self.labels, self.text = features, labels, text

    def _share(self, counts: Tensor, strength: float, prior: float) -> Tensor:
        return strength * counts / (counts + prior).clamp(min=1)

    def vectors(self, strength: float, prior: float) -> Tensor:
        """Class vectors, normalised, [classes, dim]."""
        return self._vectors(self.means, self.counts, strength, prior)

    def _vectors(self, means: Tensor, counts: Tensor, strength: float, prior: float) -> Tensor:
        return F.normalize(self.text + self._share(counts, strength, prior)[:, None] * means, dim=1)

    def left_out(self, strength: float, prior: float, rows: Tensor) -> Tensor:
        """Cosines [rows, classes] of the images `rows` with the class vectors made without their rounds."""
        answers = self.features.new_empty(len(rows), len(self.text))
        for together, block, asked, place in by_round(self.rounds, rows):
            x, own = self.features[block], self.labels[block]
            if together:
                gone, less = class_means(x, own, len(self.text))
                rest = self.counts - less
                means = (self.means * self.counts[:, None] - gone * less[:, None]) / rest.clamp(min=1)[:, None]
                cosines = x @ self._vectors(means, rest, strength, prior).T
            else:
                cosines = x @ self.vectors(strength, prior).T
                rest = self.counts[own] - 1
                mean = (self.means[own] * self.counts[own, None] - x) / rest.clamp(min=1)[:, None]
                vector = F.normalize(self.text[own] + self._share(rest, strength, prior)[:, None] * mean, dim=1)
                cosines = cosines.scatter(1, own[:, None], (x * vector).sum(1, keepdim=True))
            answers[asked] = cosines[place]
        return answers
