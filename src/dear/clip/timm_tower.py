"""Image towers of timm (ViT and EVA): SigLIP, PE-Core, EVA, MobileCLIP B and L, ViTamin, BiomedCLIP."""

import hashlib
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dear.clip.half import exact_copy, in_own_precision
from dear.clip.image import ImageTower
from dear.clip.read_out import MEAN, PROBE, READ_CLS, TimmProbePool

_READS = {"token": READ_CLS, "avg": MEAN, "map": PROBE}


class TimmBlock:
    """A block under the names of OpenCLIP's `ResidualAttentionBlock`; parameters are used in place, never copied.

    x + ls_1(out_proj(attention(ln_1(x)))), then x + ls_2(mlp(ln_2(x))). What a block has beside that (gates, norms of
    queries and keys, keys that heads share) is not modelled: `why_unknown` names it.

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


def _scaled(owner: Any, name: str, x: Tensor) -> Tensor:
    return x * getattr(owner, name)


def _scale(block: Any, module: str, parameter: str) -> Any:
    if getattr(block, parameter, None) is not None:
        return partial(_scaled, block, parameter)
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


class TimmTower(ImageTower):
    """OpenCLIP's `TimmModel` as a list of blocks.

    What reads the class feature is CLS, the mean over patches, or a probe: a constant query that attends to the tokens
    once, after the last layer (SigLIP, PE-Core). Tokens in front of the patches are CLS and registers.
    """

    def __init__(self, visual: Any) -> None:
        trunk = visual.trunk
        self.visual, self.vit = visual, trunk
        self.reader = TimmProbePool(trunk) if trunk.attn_pool is not None else None
        self.read = PROBE if self.reader else _READS[trunk.global_pool]
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

    @in_own_precision
    def embed(self, pixels: Tensor) -> Tensor:
        placed = self.vit._pos_embed(self.vit.patch_embed(pixels))
        return self.vit.norm_pre(placed[0] if isinstance(placed, tuple) else placed)  # EVA also gives its rotations

    def norm_in(self, tokens: Tensor) -> Tensor:
        return self.vit.norm_pre(tokens)

    def norm_out(self, states: Tensor) -> Tensor:
        return self.vit.norm(states) if self.reader else self.vit.fc_norm(self.vit.norm(states))

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

    def _probed(self, states: Tensor) -> Tensor:
        return states if getattr(self.vit, "pool_include_prefix", True) else states[:, self.prefix :]

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
