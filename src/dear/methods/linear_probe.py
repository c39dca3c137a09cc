"""Logistic regression on frozen class features (CLIP, A.3)."""

from torch import Tensor, nn
from torch.nn import functional as F

from dear.core.metrics import accuracy
from dear.methods.base import LabelledImages
from dear.methods.shared.per_class import OnlyTrained, frozen_features
from dear.methods.shared.stacking import minimise

_DECAYS = tuple(10.0**power for power in range(-6, 3))


class LinearProbe(OnlyTrained):
    """The weight decay is chosen on the validation images; without any, it is the middle of the range."""

    weight: nn.Parameter  # [trained classes, dim]
    bias: nn.Parameter  # [trained classes]

    def set_sizes(self, classes: int) -> None:
        like = self.backbone.image.like
        self.set_weights(like.new_zeros(classes, self.backbone.dim), like.new_zeros(classes))

    def set_weights(self, weight: Tensor, bias: Tensor) -> None:
        """Sets the parameters, which L-BFGS fits, not the training loop."""
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = nn.Parameter(bias, requires_grad=False)

    def before_training(self, images: LabelledImages) -> None:
        features, labels = frozen_features(self, images.train())
        fits = {decay: logistic(features, labels, len(images.classes), decay) for decay in _DECAYS}
        best = _DECAYS[len(_DECAYS) // 2]
        features, labels = frozen_features(self, images.val())
        if len(labels):
            best = max(fits, key=lambda decay: accuracy(features @ fits[decay][0].T + fits[decay][1], labels))
        self.trained = images.classes
        self.set_weights(*fits[best])

    def logits(self, features: Tensor, text: Tensor, inference: str | None = None) -> Tensor:
        rows = self.trained_rows(self.classes.names)
        return features[:, 0] @ self.weight[rows].T + self.bias[rows]


def logistic(images: Tensor, labels: Tensor, classes: int, decay: float) -> tuple[Tensor, Tensor]:
    """Weight [classes, dim], under an L2 penalty, and bias [classes] of a multinomial logistic regression."""
    weight, bias = images.new_zeros(classes, images.shape[1]), images.new_zeros(classes)

    def loss() -> Tensor:
        return F.cross_entropy(images @ weight.T + bias, labels) + decay * weight.square().sum()

    minimise([weight, bias], loss, max_iter=300)
    return weight, bias
