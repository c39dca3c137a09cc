"""LP++: a linear probe plus class texts with a learned multiplier per class (Huang et al., CVPR 2024)."""

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.core.metrics import accuracy
from dear.methods.base import LabelledImages
from dear.methods.shared.per_class import OnlyTrained, frozen_features

_EPOCHS, _EVERY = 300, 10  # full batches; of which every tenth moves the multipliers


class LpPlusPlus(OnlyTrained):
    """logits = f V + b + a_c cos(f, w_c), without a temperature; V, b and a learned from full batches.

    V starts at the sums of the shots of a class, a at 250 times the mean cosine of shots and their texts. Step sizes
    follow from the features: 4 N / lambda_max(F^T F) with momentum for V and b, N / (4 max_c sum_i cos_ic^2) for a.
    Each step of a uses the *sum of all its gradients so far*: the official code never resets them.

    The epoch is the best on the validation images of the draw, the later of equals, as there (with as many validation
    images as shots); without any, the last. Differs: the image as it is (there one random crop), fp32 (there half), one
    template on ImageNet (there the mean of seven).
    """

    weight: Tensor  # [training classes, dim]
    bias: Tensor  # [training classes]
    multiplier: Tensor  # [training classes]

    def set_sizes(self, classes: int) -> None:
        like = self.backbone.image.like
        self.register_buffer("weight", like.new_zeros(classes, self.backbone.dim))
        self.register_buffer("bias", like.new_zeros(classes))
        self.register_buffer("multiplier", like.new_zeros(classes))

    def before_training(self, images: LabelledImages) -> None:
        self.trained = images.classes
        features, labels = frozen_features(self, images.train())
        held_out, truth = frozen_features(self, images.val())
        text = self.encode_text(self.classes)
        cosines = features @ text.T
        weight, bias, multiplier = self._start(features, labels, cosines)
        square = cosines.square().sum(0).max()
        rate = 4 * len(features) / torch.linalg.eigvalsh(features.T @ features)[-1].item()
        optimizer = torch.optim.SGD([weight, bias], rate, momentum=0.9)
        best = -1.0
        for epoch in range(1, _EPOCHS + 1):
            optimizer.zero_grad()
            with torch.enable_grad():
                F.cross_entropy(features @ weight.T + bias + multiplier * cosines, labels).backward()
            optimizer.step()
            with torch.no_grad():
                if epoch % _EVERY == 0 and multiplier.grad is not None:
                    multiplier -= len(features) / (4 * square) * multiplier.grad  # summed since the first epoch
                scores = held_out @ weight.T + bias + multiplier * (held_out @ text.T)
                reached = accuracy(scores, truth) if len(truth) else float(epoch)
                if reached >= best:
                    best = reached
                    self.weight, self.bias, self.multiplier = (
                        part.detach().clone() for part in (weight, bias, multiplier)
                    )

    def _start(self, features: Tensor, labels: Tensor, cosines: Tensor) -> list[Tensor]:
        classes, bound = cosines.shape[1], features.shape[1] ** -0.5
        members = F.one_hot(labels, classes).to(features)
        own = (members * cosines).sum(0) / members.sum(0)
        start = 250 * own.nanmean()  # a class without shots has no mean
        bias = torch.empty(classes).uniform_(-bound, bound).to(features)
        return [part.requires_grad_() for part in (members.T @ features, bias, start.expand(classes).clone())]

    def logits(self, features: Tensor, text: Tensor, inference: str | None = None) -> Tensor:
        rows = self.trained_rows(self.classes.names)
        plain = features[:, 0] @ text.T
        return features[:, 0] @ self.weight[rows].T + self.bias[rows] + self.multiplier[rows] * plain
