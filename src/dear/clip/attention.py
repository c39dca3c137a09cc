"""Attention and blocks on OpenCLIP's frozen weights, with masks per head and only the queries that are needed.

The blocks are OpenCLIP's own (`ResidualAttentionBlock`): their parameters are used in place, never copied.
Sequences are [batch, tokens, width]; heads are [batch, heads, tokens, head_dim].

The residual stream is fp32. Where the weights of a block are half (see `half`), what a linear layer gets is cast to
half, and attention runs in half; nothing else does. So no autocast is needed, and no weight is ever cast in a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip.products import linear, run_frozen


@dataclass(frozen=True)
class QueryGroup:
    """The next `count` queries, and the mask they share, broadcast to [batch, heads, count, keys].

    Boolean (True: may attend) or additive, as in `scaled_dot_product_attention`; None: they attend to all keys.
    """

    count: int
    mask: Tensor | None = None


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[batch, tokens, width] -> [batch, heads, tokens, head_dim]."""
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


def merge_heads(x: Tensor) -> Tensor:
    """[batch, heads, tokens, head_dim] -> [batch, tokens, width]."""
    return x.transpose(-3, -2).flatten(-2)


def normed_input(block: Any, x: Tensor) -> Tensor:
    """The input of a block's attention: states after its first LayerNorm, in the precision of its weights."""
    return block.ln_1(x).to(block.attn.in_proj_weight.dtype)


def project_queries(attn: Any, x: Tensor) -> Tensor:
    """[..., tokens, width] -> [..., heads, tokens, head_dim]."""
    width = attn.out_proj.in_features
    bias = None if attn.in_proj_bias is None else attn.in_proj_bias[:width]
    queries = linear(x, attn.in_proj_weight[:width], bias)
    if (term := getattr(attn, "term", None)) is not None:  # see `low_rank`
        queries = queries + term(0, x)  # computed in the precision of x
    return split_heads(queries, attn.num_heads)


def project_keys_values(attn: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """[..., tokens, width] -> keys and values, each [..., heads, tokens, head_dim]."""
    width = attn.out_proj.in_features
    bias = None if attn.in_proj_bias is None else attn.in_proj_bias[width:]
    keys, values = linear(x, attn.in_proj_weight[width:], bias).chunk(2, dim=-1)
    if (term := getattr(attn, "term", None)) is not None:
        keys, values = keys + term(1, x), values + term(2, x)
    return split_heads(keys, attn.num_heads), split_heads(values, attn.num_heads)


def attend(q: Tensor, k: Tensor, v: Tensor, groups: Sequence[QueryGroup]) -> Tensor:
    """Scaled dot-product attention, one call per group of queries. All [batch, heads, tokens, head_dim].

    A mask shared by all queries of a group stays [1, heads, 1, keys] and is never expanded to [batch * heads, q, k].
    """
    masks = [m if m is None or m.dtype is torch.bool else m.to(q.dtype) for m in (group.mask for group in groups)]
    if len(groups) == 1:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=masks[0])
    parts = q.split([group.count for group in groups], dim=-2)
    pairs = zip(parts, masks, strict=True)
    return torch.cat([F.scaled_dot_product_attention(part, k, v, attn_mask=mask) for part, mask in pairs], dim=-2)


def finish_block(block: Any, residual: Tensor, heads_out: Tensor) -> Tensor:
    """The rest of a block after attention: output projection, residual, MLP. `heads_out` has its heads merged."""
    if (norm := getattr(block.attn, "inner_norm", None)) is not None:  # of EVA02
        heads_out = norm(heads_out)
    out = block.attn.out_proj
    x = residual + block.ls_1(linear(heads_out.to(out.weight.dtype), out.weight, out.bias))
    return x + run_mlp(block, x)


def run_mlp(block: Any, x: Tensor) -> Tensor:
    """The addition of a block's MLP to states [..., width]."""
    return block.ls_2(run_frozen(block.mlp, block.ln_2(x).to(block.attn.out_proj.weight.dtype)))


def attention_weights(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    """Attention [batch, heads, queries, keys], rows summing to one, at least fp32; `mask` boolean, True: may attend."""
    exact = torch.promote_types(q.dtype, torch.float32)
    scores = q.to(exact) @ k.to(exact).transpose(-1, -2) / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(-1)
