"""The linear layers of frozen blocks on a CPU, by whichever of PyTorch's libraries is faster on this processor."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from dear.core.processor import this_processor

LARGE = 2**18  # numbers of a weight, from which the time of its products is worth a thought
_QUICK = 1.702  # quick GELU is y sigmoid(1.702 y), and so silu(1.702 y) / 1.702
EXACT = "exact"  # attribute of a half parameter: its fp32 value, in host memory
_FOLDED = "folded"  # attribute of a half weight: it contains that factor


def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None, *activation: str) -> Tensor:
    """x W^T + b, [..., out], and an activation of it."""
    then, kind = activation or ("none", "")
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, then, [], kind)


class _FrozenLinear(torch.autograd.Function):
    """x W^T + b by oneDNN, with a gradient of x alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return _by_onednn(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _by_onednn(gradient, ctx.saved_tensors[0].T, None), None, None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`: x [..., in], weight [out, in] -> [..., out]."""
    usual = x.dtype is not torch.float32 or not x.is_cpu or weight.numel() < LARGE or weight.requires_grad
    if usual or torch.compiler.is_compiling() or not this_processor().takes_onednn:
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled() and x.requires_grad:
        return _FrozenLinear.apply(x, weight, bias)  # type: ignore[no-untyped-call, no-any-return]
    return _by_onednn(x, weight, bias)


def _layers_of(mlp: Any) -> tuple[nn.Linear, Any, nn.Linear] | None:
    """Two linear layers and what is between them; None: it is something else."""
    if hasattr(mlp, "c_fc"):
        return mlp.c_fc, mlp.gelu, mlp.c_proj
    plain = type(mlp).__name__ == "Mlp" and isinstance(mlp.norm, nn.Identity)  # timm's
    return (mlp.fc1, mlp.act, mlp.fc2) if plain and isinstance(mlp.fc1, nn.Linear) and not mlp.training else None


def _is_quick(first: nn.Linear, activation: Any, second: nn.Linear) -> bool:
    has_biases = first.bias is not None and second.bias is not None
    return has_biases and type(activation).__name__ == "QuickGELU"


def fold(mlp: Any) -> None:
    """Puts the factors of quick GELU into the half weights of an MLP, so that a product contains its activation."""
    parts = _layers_of(mlp)
    if parts is None or not _is_quick(*parts):
        return
    first, _, second = parts
    for parameter, factor in ((first.weight, _QUICK), (first.bias, _QUICK), (second.weight, 1 / _QUICK)):
        parameter.copy_(getattr(parameter, EXACT) * factor)
    setattr(first.weight, _FOLDED, True)


def run_frozen(mlp: Any, x: Tensor) -> Tensor:
    """An MLP of a frozen block, [..., width] -> [..., width]."""
    parts = _layers_of(mlp)
    if parts is None or not x.is_cpu or torch.compiler.is_compiling():
        return mlp(x)
    first, activation, second = parts
    if hasattr(first.weight, _FOLDED):
        if torch.is_grad_enabled() and x.requires_grad:
            inner = F.silu(F.linear(x, first.weight, first.bias))
        else:
            inner = _by_onednn(x, first.weight, first.bias, "swish", "")
        return F.linear(inner, second.weight, second.bias)
    inner = linear(x, first.weight, first.bias)
    if not _is_quick(*parts):
        return linear(activation(inner), second.weight, second.bias)
    inner = F.silu(inner * _QUICK) if inner.requires_grad else F.silu(inner.mul_(_QUICK), inplace=True)
    return torch.add(second.bias, linear(inner, second.weight), alpha=1 / _QUICK)
