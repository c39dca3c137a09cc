"""ProKeR: kernel ridge regression of what zero-shot leaves to explain (Bendou et al., CVPR 2025)."""

from functools import cache, partial

import torch
from torch import Tensor

from dear.methods.shared.closed_form import ClosedForm, Head
from dear.methods.shared.leave_one_out import KernelRidge

_BETAS = (0.3, 1.0, 3.0)
_RIDGES = (0.002, 0.01, 0.05, 0.25)  # the authors chose betas from 0.1 to 6 and ridges from 0.001 to 0.4
_LANDMARKS = 1000


class ProKeRHead(Head):
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

    def fit(self, features: Tensor, labels: Tensor, text: Tensor) -> None:
        plain = self.zero_shot(features, text)
        residuals = plain / -self.temperature
        residuals[torch.arange(len(labels), device=labels.device), labels] += 1
        order = torch.randperm(len(features), generator=torch.Generator().manual_seed(0))
        landmarks = order[:_LANDMARKS].to(features.device)
        cosines = features.double() @ features[landmarks].double().T

        @cache
        def fitted(beta: float) -> KernelRidge:
            return KernelRidge(cosines, residuals, landmarks, beta)

        def parts(beta: float, ridge: float, rows: Tensor) -> list[Tensor]:
            return [plain[rows], fitted(beta).left_out(ridge, rows)]

        choices = {(beta, ridge): partial(parts, beta, ridge) for beta in _BETAS for ridge in _RIDGES}
        published = (3.0, 0.05)  # for one image per class
        beta, ridge = self.choose(choices, labels, published, [1.0, self.temperature * published[1]])
        self.landmarks, self.beta = features[landmarks].to(self.mix), self.mix.new_tensor(beta)
        self.values = fitted(beta).weights(ridge).to(self.mix)

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
