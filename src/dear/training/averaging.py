"""Weights averaged over the epochs: uniform, or gaussian (PromptSRC's Gaussian aggregation)."""

import math

import torch
from torch import Tensor, nn

from dear.training.config import TrainConfig


def epoch_weights(config: TrainConfig, epochs: int) -> list[float]:
    """The weight of each epoch in the average, summing to one.

    Peak and width of the gaussian are for `config.epochs`, and scaled if another number of epochs is trained.
    """
    if config.average == "uniform":
        return [1 / epochs] * epochs
    scale = epochs / config.epochs if config.epochs else 1.0
    peak, width = scale * config.average_peak, 2 * (scale * config.average_width) ** 2
    distances = [(epoch - peak) ** 2 / width for epoch in range(1, epochs + 1)]
    density = [math.exp(min(distances) - d) for d in distances]  # scaled, so that a narrow one does not vanish
    return [value / math.fsum(density) for value in density]


class WeightAverage:
    """A running sum of the learned parameters, in fp32 or better."""

    def __init__(self, model: nn.Module, config: TrainConfig, epochs: int) -> None:
        self.weights = epoch_weights(config, epochs)
        self.sums: dict[str, Tensor] = {
            name: torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32))
            for name, p in model.named_parameters()
        }

    @torch.no_grad()
    def add(self, model: nn.Module, epoch: int) -> None:
        """Adds the parameters at the end of `epoch`, counted from 0."""
        for name, parameter in model.named_parameters():
            self.sums[name] += self.weights[epoch] * parameter

    @torch.no_grad()
    def put_into(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            parameter.copy_(self.sums[name])
