"""Blocks of timm under the names of OpenCLIP's `ResidualAttentionBlock`, which the towers read.

Parameters are used in place, never copied. What a block has beside those names (gates, norms of queries and keys, keys
that heads share) is not modelled: `why_unknown` names it.
"""

from typing import Any

import torch
from torch import Tensor, nn


class TimmBlock:
    """x + ls_1(out_proj(attention(ln_1(x)))), then x + ls_2(mlp(ln_2(x))).

    EVA02-E normalises behind attention and MLP instead of before: these norms are ls_1 and ls_2 here. LayerScale of EVA
    is a parameter; of other blocks, a module.
    """

    def __init__(self, block: Any) -> None:
        self.module, self.attn, self.mlp = block, TimmAttention(block.attn), block.mlp
        if type(block).__name__ == "EvaBlockPostNorm":
            self.ln_1 = self.ln_2 = nn.Identity()
            self.ls_1, self.ls_2 = block.norm1, block.norm2
        else:
            self.ln_1, self.ln_2 = block.norm1, block.norm2
            self.ls_1 = _scale(block, "ls1", "gamma_1")
            self.ls_2 = _scale(block, "ls2", "gamma_2")


class TimmAttention:
    """Queries, keys and values as one product, whatever the block stores."""

    def __init__(self, attn: Any) -> None:
        self.module, self.num_heads = attn, attn.num_heads
        # EVA02-B and -L normalise the merged heads before the output projection.
        has_norm = not isinstance(getattr(attn, "norm", nn.Identity()), nn.Identity)
        self.inner_norm: Any = attn.norm if has_norm else None
        self.out_proj: Any = attn.proj

    @property
    def in_proj_weight(self) -> Tensor:
        """[3 width, width]; three matrices in one where a block has them apart."""
        attn = self.module
        if attn.qkv is not None:
            return attn.qkv.weight
        return torch.cat([attn.q_proj.weight, attn.k_proj.weight, attn.v_proj.weight])

    @property
    def in_proj_bias(self) -> Tensor | None:
        """[3 width]; EVA's keys have none."""
        attn = self.module
        if attn.qkv is None:
            parts = [attn.q_proj.bias, attn.k_proj.bias, attn.v_proj.bias]
        elif attn.qkv.bias is not None or getattr(attn, "q_bias", None) is None:
            return attn.qkv.bias
        else:
            parts = [attn.q_bias, None, attn.v_bias]
        given = next((part for part in parts if part is not None), None)
        if given is None:
            return None
        bias = torch.cat([torch.zeros_like(given) if part is None else part for part in parts])
        return bias.to(self.out_proj.weight.dtype)


class _Scale:
    def __init__(self, owner: Any, name: str) -> None:
        self._owner, self._name = owner, name

    def __call__(self, x: Tensor) -> Tensor:
        return x * getattr(self._owner, self._name)


def _scale(block: Any, module: str, parameter: str) -> Any:
    if getattr(block, parameter, None) is not None:
        return _Scale(block, parameter)
    return getattr(block, module, nn.Identity())


def why_unknown(block: Any) -> str | None:
    """The reason why `TimmBlock` does not model a block of timm; None: it does."""
    if type(block).__name__ not in ("Block", "EvaBlock", "EvaBlockPostNorm") or not type(block).__module__.startswith(
        "timm.models."
    ):
        return f"its blocks are {type(block).__name__}"
    attn = block.attn
    if type(attn).__name__ not in ("Attention", "EvaAttention", "AttentionRope"):
        return f"its attention is {type(attn).__name__}"
    if getattr(attn, "gate", None) is not None:
        return "its attention has a gate"
    for name in ("q_norm", "k_norm"):
        if not isinstance(getattr(attn, name, nn.Identity()), nn.Identity):
            return "its attention normalises queries and keys"
    if getattr(attn, "num_kv_groups", 1) != 1:
        return "its heads share keys"
    width = attn.proj.out_features
    if attn.head_dim * attn.num_heads != width:
        return "its heads do not add up to its width"
    return None
