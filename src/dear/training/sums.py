"""Sums over an epoch that stay on the device: reading a number makes the host wait until the device has come to it."""

import torch
from torch import Tensor

from dear.methods.base import Loss


class EpochSums:
    """Losses and correct predictions of the steps so far.

    A loss that is not finite makes its sum not finite for good, so one reading checks all steps before it.
    """

    def __init__(self, device: torch.device) -> None:
        self._dtype = torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64
        self._names: list[str] = []
        self._sums: Tensor | None = None
        self.images = 0

    @torch.no_grad()
    def add(self, loss: Loss, labels: Tensor) -> None:
        """Adds a step; `labels` [batch], or what the method has in their place."""
        images = len(labels)
        predictions = loss.logits.argmax(-1).view(-1, images)  # [views, batch]
        correct = (predictions == (labels if loss.targets is None else loss.targets)).sum()
        values = {"loss": loss.total, **loss.parts}
        sums = torch.stack([value.to(self._dtype) for value in values.values()]) * images
        sums = torch.cat([sums, correct.to(self._dtype)[None] / len(predictions)])
        self._names = [*values, "accuracy"]
        self._sums = sums if self._sums is None else self._sums + sums
        self.images += images

    def means(self) -> dict[str, float]:
        """Mean loss, its parts, and accuracy (%) of all images so far; the host waits once."""
        assert self._sums is not None
        means = {name: total / self.images for name, total in zip(self._names, self._sums.tolist(), strict=True)}
        return means | {"accuracy": 100 * means["accuracy"]}
