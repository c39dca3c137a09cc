"""The probe of an image tower: a constant query that attends to its tokens once, behind the last layer.

p = out(attention(query, norm(tokens))); then p + MLP(p) in SigLIP and PE-Core, a LayerNorm of p in CoCa.
Parameters are used in place, never copied.
"""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip.attention import split_heads


class ProbePool:
    """OpenCLIP's `AttentionalPooler` (CoCa). Of its queries only the first reaches the feature: the others are not
    computed."""

    mlp: Any = None  # the MLP behind attention, with its norm

    def __init__(self, visual: Any) -> None:
        pool = visual.attn_pool
        self.module, self.heads = pool.attn, pool.attn.num_heads
        self.norm: Any = pool.ln_k  # of the tokens
        self.out: Any = pool.attn.out_proj
        self.last_norm: Any = visual.ln_post  # of p
        self._query = pool

    @property
    def width(self) -> int:
        """Width of the pooled vector p."""
        return self.out.out_features

    def query(self) -> Tensor:
        """The query, [1, width of p]."""
        return F.linear(self._query.ln_q(self._query.query[:1]), self._matrices()[0], self._biases()[0])

    def key(self) -> tuple[Tensor, Tensor]:
        """Matrix [width of p, width] and bias of the keys."""
        return self._matrices()[1], self._biases()[1]

    def value(self) -> tuple[Tensor, Tensor]:
        """Matrix [width of p, width] and bias of the values."""
        return self._matrices()[2], self._biases()[2]

    def _matrices(self) -> tuple[Tensor, ...]:
        attn = self.module  # torch keeps three matrices where keys have another width
        if attn.in_proj_weight is not None:
            return attn.in_proj_weight.chunk(3)
        return attn.q_proj_weight, attn.k_proj_weight, attn.v_proj_weight

    def _biases(self) -> tuple[Tensor, ...]:
        return self.module.in_proj_bias.chunk(3)

    def of_heads(self) -> Tensor:
        """Value and output matrices of each head, one after the other, [heads, width, width of p]."""
        value = self.value()[0].unflatten(0, (self.heads, -1))
        return value.mT @ self.out.weight.T.unflatten(0, (self.heads, -1))

    def attention(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, keys and values over tokens [batch, tokens, width], each [batch, heads, ..., head_dim]."""
        normed = self.norm(tokens)
        query = self.query().expand(tokens.shape[0], 1, -1)  # `len` would fix the batch of an ONNX graph
        q, k, v = (
            split_heads(part, self.heads)
            for part in (query, F.linear(normed, *self.key()), F.linear(normed, *self.value()))
        )
        return q, k, v

    def finish(self, pooled: Tensor) -> Tensor:
        """p [..., width of p] -> what the last matrix of the tower gets."""
        return self.last_norm(pooled)

    def of_one_token(self) -> Tensor:
        """The linear part of the pool of one token alone, [width, width of p]: attention over one key has the weight 1.

        A LayerNorm behind it is linear but for the length of p, which a normalised feature does not show.
        """
        value, norm = self.value()[0], self.last_norm
        matrix = value.T @ self.out.weight.T
        return matrix if norm is None else (matrix - matrix.mean(1, keepdim=True)) * norm.weight


class TimmProbePool(ProbePool):
    """timm's `AttentionPoolLatent`."""

    last_norm = None

    def __init__(self, trunk: Any) -> None:
        self.module = self.mlp = trunk.attn_pool
        self.heads, self.norm, self.out = self.module.num_heads, trunk.norm, self.module.proj
        self._last = trunk.fc_norm

    def query(self) -> Tensor:
        return self.module.q(self.module.latent)[0]

    def _matrices(self) -> tuple[Tensor, ...]:
        return self.module.q.weight, *self.module.kv.weight.chunk(2)

    def _biases(self) -> tuple[Tensor, ...]:
        return self.module.q.bias, *self.module.kv.bias.chunk(2)

    def finish(self, pooled: Tensor) -> Tensor:
        return self._last(pooled + self.mlp_of(pooled))

    def mlp_of(self, pooled: Tensor) -> Tensor:
        """The addition of the MLP to p, [..., width]."""
        return self.module.mlp(self.module.norm(pooled))


def is_known_pool(visual: Any) -> bool:
    """Whether the attention pool of OpenCLIP's own ViT is a `ProbePool`: one pool, read at its first query."""
    return (
        visual.attn_pool_contrastive is None
        and visual.pool_type == "tok"
        and type(visual.attn_pool.attn) is nn.MultiheadAttention
    )
