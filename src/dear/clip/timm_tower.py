"""Image towers of timm (ViT and EVA): SigLIP, PE-Core, EVA, MobileCLIP B and L, ViTamin, BiomedCLIP."""

import hashlib
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip.attention import merge_heads, split_heads
from dear.clip.blocks import TimmBlock, why_unknown
from dear.clip.half import exact_copy
from dear.clip.image import ImageTower
from dear.clip.layer_input import LayerInput, observer_of_this_thread
from dear.clip.read_out import CLS, MEAN, PROBE

_READS = {"token": CLS, "avg": MEAN, "map": PROBE}


class TimmTower(ImageTower):
    """OpenCLIP's `TimmModel` as a list of blocks.

    What reads the class feature is CLS, the mean over patches, or a probe: a constant query that attends to the tokens
    once, after the last layer (SigLIP, PE-Core). Tokens in front of the patches are CLS and registers.
    """

    def __init__(self, visual: Any) -> None:
        trunk = visual.trunk
        self.visual, self.vit = visual, trunk
        self.read = PROBE if trunk.attn_pool is not None else _READS[trunk.global_pool]
        self.norm_first = self.read == MEAN and not isinstance(trunk.norm, nn.Identity)
        self.grid, self.prefix = tuple(trunk.patch_embed.grid_size), trunk.num_prefix_tokens
        self.image_size = tuple(trunk.patch_embed.img_size)
        self._linears: list[nn.Linear] = [
            module for module in (trunk.head, getattr(visual.head, "proj", None)) if isinstance(module, nn.Linear)
        ]
        self._set_blocks([TimmBlock(block) for block in trunk.blocks])
        self.dim = self._linears[-1].out_features if self._linears else self.width

    @property
    def layout(self) -> str:
        rope = getattr(self.vit, "rope", None)
        table = hashlib.sha256(rope.get_embed().float().cpu().numpy().tobytes()).hexdigest() if rope is not None else ""
        return f"{super().layout}{table and f', rotated by {table[:16]}'}"

    @property
    def like(self) -> Tensor:
        return self.vit.blocks[0].norm1.weight

    @property
    def class_embedding(self) -> list[float]:
        return []

    def embed(self, pixels: Tensor) -> Tensor:
        placed = self.vit._pos_embed(self.vit.patch_embed(pixels))
        return self.vit.norm_pre(placed[0] if isinstance(placed, tuple) else placed)  # EVA also gives its rotations

    def norm_in(self, tokens: Tensor) -> Tensor:
        return self.vit.norm_pre(tokens)

    def norm_out(self, states: Tensor) -> Tensor:
        return self.vit.norm(states) if self.read == PROBE else self.vit.fc_norm(self.vit.norm(states))

    # --- copies --------------------------------------------------------------------------------------------

    def copied(self, first: int) -> "TimmTower":
        """A tower with copies of the layers from `first` on and of all behind them; what is before is shared."""
        shared: list[Any] = [block.module for block in self.blocks[: first - 1]]
        ends = {id(module) for module in self.end_modules()}
        shared += [part for part in self.vit.children() if part is not self.vit.blocks and id(part) not in ends]
        shared += [parameter for _, parameter in self.vit.named_parameters(recurse=False)]
        visual = deepcopy(self.visual, {id(part): part for part in shared})
        for number in range(first - 1, self.layers):
            visual.trunk.blocks[number] = exact_copy(self.vit.blocks[number])
        return TimmTower(visual)

    def end_modules(self) -> list[nn.Module]:
        """Norms, pool and projections behind the last layer."""
        parts = [self.vit.norm, self.vit.fc_norm, self.vit.attn_pool, self.vit.head, self.visual.head]
        return [part for part in parts if part is not None]

    # --- rotations (RoPE) ----------------------------------------------------------------------------------

    def rotate(self, x: Tensor) -> Tensor:
        """Rotates queries or keys [batch, heads, tokens, head_dim] of patches by their places.

        Tokens in front of the patches have no place, and neither have learned ones, which are never rotated.
        """
        if getattr(self.vit, "rope", None) is None:
            return x
        from timm.layers import apply_rot_embed_cat

        table = self.vit.rope.get_embed().to(x)
        half = getattr(self.vit.blocks[0].attn, "rotate_half", False)
        return torch.cat([x[:, :, : self.prefix], apply_rot_embed_cat(x[:, :, self.prefix :], table, half=half)], 2)

    # --- reading out ---------------------------------------------------------------------------------------

    def pool(self, states: Tensor, learned: Tensor | None = None) -> Tensor:
        if self.read != PROBE:
            return super().pool(states)
        q, k, v = self.probe(states, learned)
        if (observer := observer_of_this_thread.get()) is not None:  # as one more layer, with heads of its own
            seen = LayerInput(self, self.layers + 1, self._probed(states))
            seen.q, seen.kv = q, (k, v)
            observer(seen, None)
        return self.vit.attn_pool.proj(merge_heads(F.scaled_dot_product_attention(q, k, v)))[:, 0]

    def probe(self, states: Tensor, learned: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Query of the probe, keys and values of the tokens that it attends to, [batch, pool heads, ..., head_dim]."""
        pool = self.vit.attn_pool
        states = self._probed(states)
        tokens = states if learned is None else torch.cat([states, learned], 1)
        keys, values = pool.kv(self.vit.norm(tokens)).chunk(2, -1)
        query = pool.q(pool.latent).expand(tokens.shape[0], -1, -1)  # `len` would fix the batch of an ONNX graph
        q, k, v = (split_heads(part, pool.num_heads) for part in (query, keys, values))
        return q, k, v

    def _probed(self, states: Tensor) -> Tensor:
        return states if getattr(self.vit, "pool_include_prefix", True) else states[:, self.prefix :]

    def head_input(self, pooled: Tensor) -> Tensor:
        if self.read == PROBE:
            return self.vit.fc_norm(pooled + self.pool_mlp(pooled))
        return super().head_input(pooled)

    def pool_mlp(self, pooled: Tensor) -> Tensor:
        """What the probe's MLP adds to the pooled state, [..., width]."""
        return self.vit.attn_pool.mlp(self.vit.attn_pool.norm(pooled))

    @property
    def head_matrix(self) -> Tensor:
        matrix = torch.eye(self.width, device=self.like.device, dtype=self.like.dtype) if not self._linears else None
        for linear in self._linears:
            matrix = linear.weight.T if matrix is None else matrix @ linear.weight.T
        assert matrix is not None
        return matrix

    @property
    def head_bias(self) -> Tensor | None:
        bias: Tensor | None = None
        for linear in self._linears:
            bias = linear(bias) if bias is not None else linear.bias
        return bias

    @property
    def projection(self) -> Tensor:
        """[width, dim], behind `norm_out`: of a token alone. Under a probe it is the linear part of the pool of one
        token: attention over one key has the weight 1."""
        if self.read != PROBE:
            return self.head_matrix
        pool = self.vit.attn_pool
        value = pool.kv.weight[len(pool.kv.weight) // 2 :]
        matrix = value.T @ pool.proj.weight.T
        return matrix @ self.head_matrix if self._linears else matrix


def why_called(visual: Any) -> str | None:
    """Why the layers of a `TimmModel` are not known here; None: they are."""
    trunk = visual.trunk
    if type(trunk).__name__ not in ("VisionTransformer", "Eva") or not type(trunk).__module__.startswith(
        "timm.models."
    ):
        return f"it is timm's {type(trunk).__name__}"
    if trunk.attn_pool is None and trunk.global_pool not in _READS:
        return f"it pools by {trunk.global_pool!r}"
    if not set(dict(visual.head.named_children())) <= {"drop", "proj"}:
        return "its projection is not linear"
    rope = getattr(trunk, "rope", None)
    if rope is not None and (getattr(trunk, "rope_mixed", False) or not hasattr(rope, "feat_shape")):
        return "its rotations differ between layers"
    pool = trunk.attn_pool
    if pool is not None and (
        pool.pos_embed is not None
        or pool.latent_len != 1
        or pool.mlp is None
        or not isinstance(pool.k_norm, nn.Identity)
    ):
        return "its pool is of another kind"
    return next((reason for block in trunk.blocks if (reason := why_unknown(block))), None)
