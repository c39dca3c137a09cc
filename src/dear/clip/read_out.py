"""The two ends of an image tower: what is before its first layer, and what reads the class feature after its last."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip.attention import merge_heads
from dear.clip.half import in_own_precision
from dear.clip.layer_input import LayerInput, observer_of_this_thread
from dear.clip.probe import ProbePool

READ_CLS = "cls"
"""The state of the CLS token is read: OpenAI's and OpenCLIP's own ViTs, EVA, MobileCLIP B and L."""
MEAN = "mean"
"""The mean over the patches: CLIPA, ViTamin."""
PROBE = "probe"
"""A constant query that attends to all tokens once: SigLIP, PE-Core, CoCa."""


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
