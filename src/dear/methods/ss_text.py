"""SS-Text: class texts plus means of the images, weighed by their number (Silva-Rodríguez et al., MICCAI 2025)."""

from functools import partial

from torch import Tensor

from dear.methods.shared.closed_form import ClosedForm, Head
from dear.methods.shared.leave_one_out import TextAndMeans

_STRENGTHS = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
_PRIORS = (0.0, 1.0, 4.0, 16.0)


class SSTextHead(Head):
    shift: Tensor  # of the class vectors by the images, [training classes, dim]

    def set_sizes(self, classes: int, stored: int) -> None:
        self.register_buffer("shift", self.mix.new_zeros(classes, self.dim))

    def fit(self, features: Tensor, labels: Tensor, text: Tensor) -> None:
        vectors, tau = TextAndMeans(features, labels, text), self.temperature

        def parts(strength: float, prior: float, rows: Tensor) -> list[Tensor]:
            return [tau * vectors.left_out(strength, prior, rows)]

        priors = _PRIORS if len(vectors.counts.unique()) > 1 else _PRIORS[:1]  # else k only changes g
        choices = {(g, k): partial(parts, g, k) for g in _STRENGTHS for k in priors}
        chosen = self.choose(choices, labels, (0.25, 0.0), [1.0])
        self.shift = (vectors.vectors(*chosen) - text).to(self.mix)

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
