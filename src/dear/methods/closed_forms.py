"""GDA, ProKeR and SS-Text: zero-shot plus a correction that is solved exactly, without training."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from dear.core.config import Config as Settings
from dear.core.config import setting
from dear.core.runtime import with_fp64
from dear.methods.base import LabelledImages, Method
from dear.methods.recipe import Recipe
from dear.methods.shared.closed_form import ClosedForm, CorrectionHead
from dear.methods.shared.fair_lists import Refit
from dear.methods.shared.leave_one_out import Gaussians, KernelRidge, TextAndMeans, rounds_of
from dear.methods.shared.per_class import frozen_features

SHRINKS = (0.01, 0.1, 1.0, 10.0, 100.0)


@dataclass(frozen=True)
class GdaConfig(Settings):
    """Classes that have no images."""

    neighbours: int = setting(
        0, "estimate mean and covariance of novel classes from this many nearest images; 0: zero-shot", low=0
    )


class GdaHead(CorrectionHead):
    weight: Tensor  # [training classes, dim]
    bias: Tensor  # [training classes]

    def set_sizes(self, classes: int, stored: int) -> None:
        self.register_buffer("weight", self.mix.new_zeros(classes, self.dim))
        self.register_buffer("bias", self.mix.new_zeros(classes))

    def fit(self, features: Tensor, labels: Tensor, text: Tensor) -> Refit:
        gaussians, plain = Gaussians(features, labels, len(text)), self.zero_shot(features, text)

        def parts(shrink: float, rows: Tensor) -> list[Tensor]:
            return [plain[rows], gaussians.left_out(shrink, rows)]

        shrink = self.choose({r: partial(parts, r) for r in SHRINKS}, labels, SHRINKS[0], [1.0, 0.0])
        self.take(gaussians, shrink)
        return partial(gaussians_refit, features, labels, len(text), shrink)

    def take(self, gaussians: Gaussians, shrink: float) -> None:
        """Sets the correction to the scores of a fit."""
        weight, bias = gaussians.weights(shrink)
        self.weight, self.bias = weight.to(self.mix), bias.to(self.mix)

    def correction(self, features: Tensor) -> Tensor:
        return features @ self.weight.T + self.bias


class Gda(ClosedForm):
    """logits = a tau f W + b (f P mu - mu P mu / 2 + s / 2n): mean mu of n images, one P = (S / (N - C) + r I)^-1.

    As published under base-to-novel (`neighbours`), the mean of a novel class is that of the training features nearest
    to its text, a fifth of it the text itself, and P the mean over classes of their shrunk precisions around the text.

    Differs from the official code: a, b and r are chosen by leave-one-out (there: b on the whole validation split, on
    ImageNet on *test* images, and r follows from N; from base to novel a pseudo-inverse without r); one view per image
    (there ten, of which one image of a class has a covariance; here GDA with one image per class is zero-shot); s
    = tr(P Sigma) makes up for what few images add to mu P mu (there 0: a small class is hardly answered); one template
    on ImageNet (there the mean of seven).
    """

    Head = GdaHead
    Config = GdaConfig
    recipe = Recipe(epochs=0).on("base-to-novel", neighbours=64)
    config: GdaConfig
    images: Tensor  # features of the training images, if novel classes need them, [images, dim]
    _novel: tuple[Tensor, Tensor] | None = None

    def set_sizes(self, classes: int, shots: int = 0) -> None:
        super().set_sizes(classes, shots)
        self.register_buffer("images", self.head.mix.new_zeros(shots, self.backbone.dim))

    def sizes(self) -> dict[str, int]:
        return {"shots": len(self.images)}

    @classmethod
    def for_unseen(cls, config: GdaConfig) -> tuple[type[Method], Settings]:
        return (cls if config.neighbours else Method), config

    def before_training(self, images: LabelledImages) -> None:
        super().before_training(images)
        if self.config.neighbours:
            self.images, _ = frozen_features(self, images.train())

    def set_classes(self, names: Sequence[str], template: str) -> None:
        super().set_classes(names, template)
        self._novel = None
        if len(self.images) > 1 and not set(names) & set(self.trained):
            with torch.no_grad():
                images, text = (with_fp64(part).double() for part in (self.images, self.encode_text(self.classes)))
                weight, bias = gaussians_of_texts(images, text, self.config.neighbours)
            self._novel = weight.to(self.images), bias.to(self.images)

    def novel_correction(self, features: Tensor) -> Tensor | None:
        return None if self._novel is None else features @ self._novel[0].T + self._novel[1]


def gaussians_refit(
    features: Tensor, labels: Tensor, classes: int, shrink: float, used: Tensor, rows: Tensor
) -> Tensor:
    """Scores [rows, classes] by GDA of the images `used` [images], each of these left out of it."""
    fit = Gaussians(features[used], labels[used], classes)
    weight, bias = fit.weights(shrink)
    scores, own = features[rows] @ weight.to(features).T + bias.to(features), used[rows]
    scores[own] = fit.left_out(shrink, (used.cumsum(0) - 1)[rows[own]])
    return scores


def gaussians_of_texts(images: Tensor, text: Tensor, neighbours: int) -> tuple[Tensor, Tensor]:
    """Weight [classes, dim] and bias [classes] for classes of which there are only texts [classes, dim]."""
    dim = text.shape[1]
    nearest = images[(text @ images.T).topk(min(neighbours, len(images))).indices]  # [classes, neighbours, dim]
    means = 0.8 * nearest.mean(1) + 0.2 * text
    precision = images.new_zeros(dim, dim)
    for around, centre in zip(nearest, text, strict=True):
        scatter = (around - centre).T @ (around - centre)
        ridge = scatter.trace() / (len(around) - 1) * torch.eye(dim).to(scatter)
        precision += dim * torch.cholesky_inverse(torch.linalg.cholesky(scatter + ridge)) / len(text)
    weight = means @ precision
    return weight, -(weight * means).sum(1) / 2


_BETAS = (0.3, 1.0, 3.0)
_RIDGES = (0.002, 0.01, 0.05, 0.25)  # the authors chose betas from 0.1 to 6 and ridges from 0.001 to 0.4
_LANDMARKS = 1000


class ProKeRHead(CorrectionHead):
    landmarks: Tensor  # [stored images, dim]
    values: Tensor  # [stored images, training classes]
    beta: Tensor  # []

    @property
    def stored(self) -> int:
        return len(self.landmarks)

    def set_sizes(self, classes: int, stored: int) -> None:
        like = self.mix
        self.register_buffer("landmarks", like.new_zeros(stored, self.dim))
        self.register_buffer("values", like.new_zeros(stored, classes))
        self.register_buffer("beta", like.new_tensor(1.0))

    def fit(self, features: Tensor, labels: Tensor, text: Tensor) -> Refit:
        plain = self.zero_shot(features, text)
        residuals = plain / -self.temperature
        residuals[torch.arange(len(labels), device=labels.device), labels] += 1
        order = torch.randperm(len(features), generator=torch.Generator().manual_seed(0))
        landmarks = order[:_LANDMARKS].to(features.device)
        cosines, rounds = features.double() @ features[landmarks].double().T, rounds_of(features, labels)

        @cache
        def fitted(beta: float) -> KernelRidge:
            return KernelRidge(cosines, residuals, landmarks, beta, rounds)

        def parts(beta: float, ridge: float, rows: Tensor) -> list[Tensor]:
            return [plain[rows], fitted(beta).left_out(ridge, rows)]

        choices = {(beta, ridge): partial(parts, beta, ridge) for beta in _BETAS for ridge in _RIDGES}
        published = (3.0, 0.05)  # for one image per class
        beta, ridge = self.choose(choices, labels, published, [1.0, self.temperature * published[1]], rounds)
        self.landmarks, self.beta = features[landmarks].to(self.mix), self.mix.new_tensor(beta)
        self.values = fitted(beta).weights(ridge).to(self.mix)
        return lambda used, rows: fitted(beta).left_out(ridge, rows, used)

    def correction(self, features: Tensor) -> Tensor:
        return (-self.beta * (1 - features @ self.landmarks.T)).exp() @ self.values


class ProKeR(ClosedForm):
    """logits = a tau z + b k(f, F) (K + lambda I)^-1 (Y - Z), k = exp(-beta (1 - cosine)), z = f W, Z = F W.

    b = a tau lambda is the published form. Differs from the official code: a, b, beta and lambda are chosen by
    leave-one-out (there: beta and lambda on the whole validation split, or on ImageNet's *test* images for all sets);
    one view per image (there ten); one template on ImageNet (there the mean of seven). With one image per class they
    are the published ones. Of more than 1000 images, 1000 span the solution (Nystroem).
    """

    Head = ProKeRHead


_STRENGTHS = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
_PRIORS = (0.0, 1.0, 4.0, 16.0)


class SSTextHead(CorrectionHead):
    shift: Tensor  # of the class vectors by the images, [training classes, dim]

    def set_sizes(self, classes: int, stored: int) -> None:
        self.register_buffer("shift", self.mix.new_zeros(classes, self.dim))

    def fit(self, features: Tensor, labels: Tensor, text: Tensor) -> Refit:
        rounds, tau = rounds_of(features, labels), self.temperature
        vectors, plain = TextAndMeans(features, labels, text, rounds), self.zero_shot(features, text)

        def parts(strength: float, prior: float, rows: Tensor) -> list[Tensor]:
            return [tau * vectors.left_out(strength, prior, rows)]

        priors = _PRIORS if len(vectors.counts.unique()) > 1 else _PRIORS[:1]  # else k only changes g
        choices = {(g, k): partial(parts, g, k) for g in _STRENGTHS for k in priors}
        chosen = self.choose(choices, labels, (0.25, 0.0), [1.0], rounds)
        self.shift = (vectors.vectors(*chosen) - text).to(self.mix)

        def refit(used: Tensor, rows: Tensor) -> Tensor:  # the vector of a class does not depend on other classes
            without = vectors.left_out(*chosen, rows)
            return tau * without.where(used[rows, None], features[rows] @ vectors.vectors(*chosen).T) - plain[rows]

        return refit

    def correction(self, features: Tensor) -> Tensor:
        return self.zero_shot(features, self.shift)


class SSText(ClosedForm):
    """logits = a tau cos(f, w + g n / (n + k) m) with the mean m of the n images of a class: for unbalanced classes.

    A class without images keeps its text w. Differs from the official code, which was written for medical models: g, k
    and the temperature are chosen by leave-one-out, with one image per class g = 1/4 (there g n / (n + k) is tau n, by
    which a text of CLIP counts less than a hundredth, or in SS-Text+ tau n^2 / N for N images); texts and images are
    normalised (there as the encoder gives them); and vectors are not pushed apart (as "repel" does in SS-Text+).
    """

    Head = SSTextHead
