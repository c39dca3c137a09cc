"""Weights averaged over the epochs: alike, or by a bell (PromptSRC's Gaussian aggregation)."""

import math

import torch
from torch import Tensor, nn

from dear.training.config import TrainConfig


def epoch_weights(config: TrainConfig, epochs: int) -> list[float]:
    """How much the weights at the end of each epoch count, summing to one.

    A bell is placed among `config.epochs`; where another number of them is trained, it keeps its place in the run.
    """
    if config.average == "uniform":
        return [1 / epochs] * epochs
    share = epochs / config.epochs if config.epochs else 1.0
    peak, width = share * config.average_peak, 2 * (share * config.average_width) ** 2
    distances = [(epoch - peak) ** 2 / width for epoch in range(1, epochs + 1)]
    bell = [math.exp(min(distances) - d) for d in distances]  # scaled, so that a narrow one does not vanish
    return [share / math.fsum(bell) for share in bell]


class WeightAverage:
    """A running sum of the learned parameters in fp32 or better; frozen weights are left alone."""

    def __init__(self, model: nn.Module, config: TrainConfig, epochs: int) -> None:
        self.weights = epoch_weights(config, epochs)
        self.sums: dict[str, Tensor] = {
            name: torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32))
            for name, p in model.named_parameters()
        }

    @torch.no_grad()
    def add(self, model: nn.Module, epoch: int) -> None:
        """At the end of `epoch`, counted from 0."""
        for name, parameter in model.named_parameters():
            self.sums[name] += self.weights[epoch] * parameter

    @torch.no_grad()
    def put_into(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            parameter.copy_(self.sums[name])
