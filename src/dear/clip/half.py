"""Half precision: the weights of the blocks' linear layers are cast once, when a backbone is loaded for a GPU.

Autocast would cast each frozen weight again in every step, because it remembers trained ones only: a quarter of all
kernels. LayerNorms, embeddings, the patch convolution and the projections to the joint space stay fp32, so the residual
stream, features, logits and losses are fp32 too.

A tower that is called as a whole has no blocks that we walk: all its linear layers and convolutions are cast once, and
it runs under autocast, for which their weights then need no cast.
"""

from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from dear.clip.products import EXACT, fold
from dear.core.runtime import rounding

M = TypeVar("M", bound=nn.Module)
Forward = TypeVar("Forward", bound=Callable[..., Any])


def in_own_precision(forward: Forward) -> Forward:
    """A method of a tower whose products are as exact as the tower's `precision`, whatever else the process does."""

    @wraps(forward)
    def run(tower: Any, *args: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():  # the flags around the compiled code apply
            return forward(tower, *args, **options)
        with rounding(tower.precision):
            return forward(tower, *args, **options)

    return run  # type: ignore[return-value]


def has_inner_norm(block: Any) -> bool:
    """Whether a LayerNorm stands between linear layers of its attention or MLP (EVA02, ViTamin).

    Such a block stays fp32, because the norm would get half numbers.
    """
    module = getattr(block, "module", block)
    inside = [*module.attn.modules(), *module.mlp.modules()]
    return any(isinstance(part, nn.LayerNorm) for part in inside)


def halve_blocks(blocks: Iterable[Any], dtype: torch.dtype) -> None:
    """Replaces the weights and biases of all linear layers in the blocks by half ones; fp32 values stay on the host."""
    for block in blocks:
        if has_inner_norm(block):
            continue
        for module in getattr(block, "module", block).modules():  # of a `TimmBlock`: its own block
            if isinstance(module, nn.Linear) or hasattr(module, "in_proj_weight"):
                for name, parameter in list(module.named_parameters(recurse=False)):
                    half = nn.Parameter(parameter.detach().to(dtype), requires_grad=False)
                    setattr(half, EXACT, parameter.detach().cpu())
                    setattr(module, name, half)
        if next(getattr(block, "module", block).parameters()).is_cpu:
            fold(block.mlp)


def halve_layers(tower: nn.Module, dtype: torch.dtype) -> None:
    """Replaces the weights of all linear layers, convolutions and attentions of a tower that runs under autocast."""
    for module in tower.modules():
        if isinstance(module, nn.Linear | _ConvNd) or hasattr(module, "in_proj_weight"):
            for name, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter(parameter.detach().to(dtype), requires_grad=False))


def exact_copy(module: M) -> M:
    """A copy of frozen blocks in fp32, for methods that train it or compute with its weights."""
    copy = deepcopy(module)
    for part, original in zip(copy.modules(), module.modules(), strict=True):
        for name, parameter in original.named_parameters(recurse=False):
            exact: Tensor | None = getattr(parameter, EXACT, None)
            if exact is not None:
                setattr(part, name, nn.Parameter(exact.to(parameter.device), requires_grad=False))
    return copy
