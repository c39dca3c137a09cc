"""The two ends of an image tower: what is before its first layer, and what reads the class feature after its last."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip.attention import merge_heads, split_heads
from dear.clip.half import in_own_precision
from dear.clip.layer_input import LayerInput, observer_of_this_thread

READ_CLS = "cls"
"""The state of the CLS token is read: OpenAI's and OpenCLIP's own ViTs, EVA, MobileCLIP B and L."""
MEAN = "mean"
"""The mean over the patches: CLIPA, ViTamin."""
PROBE = "probe"
"""A constant query that attends to all tokens once: SigLIP, PE-Core, CoCa."""


class ProbePool:
    """OpenCLIP's `AttentionalPooler` (CoCa): a constant query that attends to the tokens once, behind the last layer.

    p = out(attention(query, norm(tokens))); then p + MLP(p) in SigLIP and PE-Core, a LayerNorm of p in CoCa. Of CoCa's
    queries only the first reaches the feature: the others are not computed. Parameters are used in place.
    """

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


class PlainEnds:
    """The ends of OpenCLIP's VisionTransformer. Other towers override what differs."""

    visual: Any
    blocks: Sequence[Any]
    layers: int
    precision = torch.float32  # of its linear layers
    prefix: int  # tokens in front of the patches
    read = READ_CLS
    norm_first = False  # whether the last LayerNorm is before a mean, not after it
    reader: ProbePool | None = None  # set where a probe reads

    @property
    def layout(self) -> str:
        """A text for the backbone's identity: all that decides features beside weights and activation."""
        return f"image read by {self.read}"

    @property
    def like(self) -> Tensor:
        """A weight, for its device and precision."""
        return self.visual.proj

    @property
    def projection(self) -> Tensor:
        """[width, dim], behind `norm_out`: of a token alone."""
        return self.reader.of_one_token() @ self.head_matrix if self.reader else self.head_matrix

    @property
    def head_matrix(self) -> Tensor:
        """The last matrix of the tower, behind `head_input`, [..., dim]."""
        return self.visual.proj

    @property
    def head_bias(self) -> Tensor | None:
        """The bias behind the last matrix, [dim]."""
        return None

    @cached_property
    def why_no_sum(self) -> str:
        """The reason why heads do not add up linearly in the state that is read; "": they do."""
        if self.reader:
            return "its class feature is read by a probe, which weighs tokens anew for each picture"
        if self.norm_first:
            return "its patches are normalised before their mean is read"
        if any(
            getattr(block.attn, "inner_norm", None) or isinstance(block.ls_1, nn.LayerNorm) for block in self.blocks
        ):
            return "what its heads put out is normalised together"
        return "" if self.blocks else "its image tower is called as a whole"

    @property
    def class_embedding(self) -> list[float]:
        """Values of the CLS embedding, which identify renamed weights; empty if the tower has none."""
        return self.visual.class_embedding.tolist()

    def norm_in(self, tokens: Tensor) -> Tensor:
        """The LayerNorm before the first layer, which tokens that are learned at the first layer pass too."""
        return self.visual.ln_pre(tokens)

    def norm_out(self, states: Tensor) -> Tensor:
        """The LayerNorm after the last layer, [..., width]."""
        return self.reader.norm(states) if self.reader else self.visual.ln_post(states)

    @in_own_precision
    def embed(self, pixels: Tensor) -> Tensor:
        """Normalised pixels [batch, 3, height, width] -> CLS and patches [batch, 1 + patches, width]."""
        return self.visual._embeds(pixels)

    def rotate(self, x: Tensor) -> Tensor:
        """Rotates queries or keys [batch, heads, tokens, head_dim] by their places, in a tower that does (RoPE)."""
        return x

    def pool(self, states: Tensor, learned: Tensor | None = None) -> Tensor:
        """States after the last layer [batch, tokens, width] -> the one that is read, [batch, width].

        `learned`: states of learned tokens, which a probe attends to as well.
        """
        if self.reader:
            q, k, v = self.probe(states, learned)
            if (observer := observer_of_this_thread.get()) is not None:  # as one more layer, with heads of its own
                seen = LayerInput(self, self.layers + 1, self._probed(states))  # type: ignore[arg-type]
                seen.q, seen.kv = q, (k, v)
                observer(seen, None)
            return self.reader.out(merge_heads(F.scaled_dot_product_attention(q, k, v)))[:, 0]
        if self.read == READ_CLS:
            return states[:, 0]
        patches = states[:, self.prefix :]
        return (self.norm_out(patches) if self.norm_first else patches).mean(1)

    def probe(self, states: Tensor, learned: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Query of the probe, keys and values of the tokens that it attends to, [batch, its heads, ..., head_dim]."""
        assert self.reader is not None
        states = self._probed(states)
        return self.reader.attention(states if learned is None else torch.cat([states, learned], 1))

    def _probed(self, states: Tensor) -> Tensor:
        """The tokens that a probe attends to."""
        return states

    def head_input(self, pooled: Tensor) -> Tensor:
        """The state that is read [..., width] -> what the last matrix gets."""
        if self.reader:
            return self.reader.finish(pooled)
        return pooled if self.norm_first else self.norm_out(pooled)

    @in_own_precision
    def project(self, cls: Tensor) -> Tensor:
        """Eq. 10: the state that is read [batch, width] -> class feature [batch, dim], not normalised."""
        feature, bias = self.head_input(cls) @ self.head_matrix, self.head_bias
        return feature if bias is None else feature + bias
