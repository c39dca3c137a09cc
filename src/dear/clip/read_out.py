"""The two ends of an image tower: what is before its first layer, and what reads the class feature after its last."""

from typing import Any

from torch import Tensor

CLS = "cls"
"""The state of the CLS token is read: OpenAI's and OpenCLIP's own ViTs, EVA, MobileCLIP B and L."""
MEAN = "mean"
"""The mean over the patches: CLIPA, ViTamin."""
PROBE = "probe"
"""A constant query that attends to all tokens once: SigLIP, PE-Core."""


class PlainEnds:
    """The ends of OpenCLIP's VisionTransformer. Other towers override what differs."""

    visual: Any
    prefix: int  # tokens in front of the patches
    read = CLS
    norm_first = False  # whether the last LayerNorm is before a mean, not after it

    @property
    def layout(self) -> str:
        """What decides features beside weights and activation, for the backbone's identity."""
        return f"image read by {self.read}"

    @property
    def like(self) -> Tensor:
        """A weight, for its device and precision."""
        return self.visual.proj

    @property
    def projection(self) -> Tensor:
        """[width, dim], behind `norm_out`: of a token alone."""
        return self.visual.proj

    @property
    def head_matrix(self) -> Tensor:
        """The last matrix of the tower, behind `head_input`, [..., dim]."""
        return self.visual.proj

    @property
    def head_bias(self) -> Tensor | None:
        """What is added behind the last matrix, [dim]."""
        return None

    @property
    def class_embedding(self) -> list[float]:
        """By which a role map knows a renamed copy of its backbone; empty: there is none."""
        return self.visual.class_embedding.tolist()

    def norm_in(self, tokens: Tensor) -> Tensor:
        """The LayerNorm before the first layer, which tokens that are learned at the first layer pass too."""
        return self.visual.ln_pre(tokens)

    def norm_out(self, states: Tensor) -> Tensor:
        """The LayerNorm after the last layer, [..., width]."""
        return self.visual.ln_post(states)

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
        if self.read == CLS:
            return states[:, 0]
        patches = states[:, self.prefix :]
        return (self.norm_out(patches) if self.norm_first else patches).mean(1)

    def head_input(self, pooled: Tensor) -> Tensor:
        """The state that is read [..., width] -> what the last matrix gets."""
        return pooled if self.norm_first else self.norm_out(pooled)

    def project(self, cls: Tensor) -> Tensor:
        """Eq. 10: the state that is read [batch, width] -> class feature [batch, dim], not normalised."""
        feature, bias = self.head_input(cls) @ self.head_matrix, self.head_bias
        return feature if bias is None else feature + bias
