"""Direct contribution of each head to the image feature (method.md 1.1); with MLPs and embedding they sum to it.

The residual stream at CLS is a sum of terms: the embedding (after ln_pre) and the output of every head and every MLP.
For the mean and std of one picture, the final LayerNorm is linear, and so are the projection and the division by the
feature's length. The mean and the bias of that LayerNorm belong to no term: the embedding, every attention layer and
every MLP get an equal share of them, and the heads of a layer share equally, as in the published code of TEXTSPAN.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip import Backbone
from dear.clip.attention import QueryGroup, attend, finish_block, merge_heads, run_mlp
from dear.clip.image import ImageTower, last_third
from dear.clip.layer_input import LayerInput
from dear.clip.read_out import READ_CLS
from dear.core.errors import DearError


class Decomposition(NamedTuple):
    """The terms of the normalised image feature, in the joint space."""

    embedding: Tensor  # [images, dim]
    heads: Tensor  # [images, layers, heads, dim]
    mlps: Tensor  # [images, layers, dim]
    constant: Tensor | None = None  # biases, where they are not shared out among the terms, [images, dim]
    pool_mlp: Tensor | None = None  # the MLP behind a probe, [images, dim]

    def feature(self) -> Tensor:
        """The sum of all terms, which is the normalised image feature: [images, dim]."""
        whole = self.embedding + self.heads.sum((1, 2)) + self.mlps.sum(1)
        return sum((part for part in (self.constant, self.pool_mlp) if part is not None), whole)


class HeadContributions:
    """Contributions of the heads from `first_layer` on, computed while the image is encoded.

    A contribution is linear in a few numbers, the head's *code*: its output at CLS divided by the scale of the feature,
    and three numbers that all heads of a picture share (for the bias of the output projection, and for the mean and the
    bias of the final LayerNorm). The *map* of a head is the matrix from code to contribution: output projection,
    LayerNorm and the projection to the joint space, folded into one. So `codes @ maps` are the contributions, and a
    pass over many pictures stores head_dim + 3 numbers per head instead of dim.
    """

    def __new__(cls, backbone: Backbone, *args: Any, **options: Any) -> "HeadContributions":
        """Makes a `TokenContributions` for a tower that is not read by a plain CLS."""
        if cls is HeadContributions and not is_plain(backbone):
            from dear.heads.token_contributions import TokenContributions

            return super().__new__(TokenContributions)
        return super().__new__(cls)

    def __init__(self, backbone: Backbone, first_layer: int | None = None) -> None:
        self.tower = backbone.image
        self.first_layer = check_first_layer(self.tower, first_layer)
        self.layers = tuple(range(self.first_layer, self.tower.layers + 1))
        with torch.no_grad():
            maps = [_head_maps(self.tower, block) for block in self.tower.blocks[self.first_layer - 1 :]]
        self.maps = torch.stack(maps)  # [layers, heads, head_dim + 3, dim]

    def rank(self, outer: Tensor) -> int:
        """Dimensions of a head's contributions, by its second moments."""
        return self.tower.head_dim

    def codes(self, pixels: Tensor) -> Tensor:
        """Normalised pixels [images, 3, height, width] -> [images, layers, heads, head_dim + 3]."""
        return self.codes_and_feature(pixels)[0]

    @torch.no_grad()
    def codes_and_feature(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """The codes, and from the same pass the normalised image feature [images, dim]."""
        cls, outputs = self.tower.head_outputs(pixels, self.first_layer)
        return _head_codes(outputs, *_scales(self.tower, cls)), F.normalize(self.tower.project(cls), dim=-1)

    def contributions(self, pixels: Tensor) -> Tensor:
        """Normalised pixels [images, 3, height, width] -> [images, layers, heads, dim]."""
        return torch.einsum("nlhc,lhcd->nlhd", self.codes(pixels), self.maps)

    def sum_of(self, heads: Sequence[tuple[int, int]], codes: Tensor) -> Tensor:
        """Summed contributions of (layer, head) pairs; codes [images, layers, heads, head_dim + 3] -> [images, dim]."""
        at = self.places(heads)
        return codes.flatten(1, 2).index_select(1, at).flatten(1) @ self.maps.flatten(0, 1)[at].flatten(0, 1)

    def places(self, heads: Sequence[tuple[int, int]]) -> Tensor:
        """The numbers of (layer, head) pairs among all heads of `layers`, on the device of the tower."""
        return self.tower.index([(layer - self.first_layer) * self.tower.heads + head for layer, head in heads])

    @cached_property
    def span(self) -> tuple[Tensor, Tensor]:
        """The subspace that each head can write to, as a QR decomposition of its map, in float64 on the CPU.

        basis [layers, heads, dim, width] has orthonormal columns, width = head_dim + 3, and codes @ triangle^T are
        coordinates in it: contributions = coordinates @ basis^T. Coordinates have the lengths and angles of the
        contributions in fewer numbers.
        """
        basis, triangle = torch.linalg.qr(self.maps.cpu().double().mT)
        return basis, triangle

    def coordinates_and_outputs(self, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
        """Coordinates in the span of each head, [images, layers, heads, width] in float64, from normalised pixels.

        Also the sum over the images of what heads put out at CLS, [layers, heads, head_dim]; None for towers that read
        another token.
        """
        codes = self.codes(pixels).cpu().double()
        # The scale of the feature is the first of the shared numbers.
        return torch.einsum("nlhc,lhkc->nlhk", codes, self.span[1]), (codes[..., :-3] / codes[..., -3:-2]).sum(0)


@torch.no_grad()
def decompose(backbone: Backbone, pixels: Tensor) -> Decomposition:
    """All terms of the normalised image feature of pixels [images, 3, height, width]."""
    if not is_plain(backbone):
        from dear.heads.token_contributions import decompose_tokens

        return decompose_tokens(backbone, pixels)
    heads = HeadContributions(backbone, 1)
    tower = heads.tower
    embedding, outputs, mlps, x = layer_terms(tower, pixels.to(backbone.device))
    scale, constants = _scales(tower, x[:, 0])
    gain, shares = _fold(tower)
    first, *others = [(term[:, 0] * scale[:, None]) @ gain + constants @ shares for term in (embedding, *mlps)]
    at_cls = torch.stack([of_heads[:, :, 0] for of_heads in outputs], 1)
    by_head = torch.einsum("nlhc,lhcd->nlhd", _head_codes(at_cls, scale, constants), heads.maps)
    return Decomposition(first, by_head, torch.stack(others, 1))


def is_plain(backbone: Backbone) -> bool:
    """Whether the image tower is OpenCLIP's own ViT, read at CLS; one without layers is refused later."""
    tower = getattr(backbone.image, "plain", backbone.image)  # under a tower with gains
    return not tower.layers or (type(tower) is ImageTower and tower.read == READ_CLS)


def check_first_layer(tower: ImageTower, first_layer: int | None) -> int:
    """`first_layer`, or the default for None; refuses a layer that the backbone does not have."""
    if not tower.layers:
        raise DearError(
            "The image tower of this backbone is called as a whole, so its heads are not known: choose one whose image "
            "tower is full in `dear backbones`."
        )
    if first_layer is None:
        return last_third(tower.layers)
    if not 1 <= first_layer <= tower.layers:
        raise DearError(
            f"The backbone has layers 1 to {tower.layers}, so the analysis can't start at layer {first_layer}."
        )
    return first_layer


def run_layer_heads(
    tower: ImageTower, layer: int, x: Tensor, change: Callable[[Tensor], Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """One layer on [images, tokens, width]; also the outputs of its heads, [images, heads, queries, head_dim].

    Where CLS is read, the last layer computes its query only. `change` may replace the outputs before they are merged.
    """
    entry, only_cls = LayerInput(tower, layer, x), layer == tower.layers and tower.read == READ_CLS
    q, residual = (entry.cls_q, x[:, :1]) if only_cls else (entry.q, x)
    of_heads = attend(q, *entry.kv, [QueryGroup(q.shape[2])])
    if change is not None:
        of_heads = change(of_heads)
    return finish_block(tower.blocks[layer - 1], residual, merge_heads(of_heads)), of_heads


def layer_terms(tower: ImageTower, pixels: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor], Tensor]:
    """The terms of the residual stream: the embedding, then per layer the outputs of heads, and the output of the MLP.

    Last come the states after the last layer; where CLS is read, that layer has CLS alone.
    """
    x = embedding = tower.embed(pixels)
    outputs, mlps = [], []
    block: Any
    for layer, block in enumerate(tower.blocks, 1):
        before = x
        x, of_heads = run_layer_heads(tower, layer, x)
        merged = merge_heads(of_heads)
        if (norm := getattr(block.attn, "inner_norm", None)) is not None:
            merged = norm(merged)
        attended = before[:, : merged.shape[1]] + block.ls_1(block.attn.out_proj(merged))
        outputs.append(of_heads)
        mlps.append(run_mlp(block, attended))
    return embedding, outputs, mlps, x


def _fold(tower: ImageTower) -> tuple[Tensor, Tensor]:
    """LayerNorm and projection as one matrix, gain [width, dim], and shares of its mean and bias, [2, dim].

    The attention of each layer, each MLP and the embedding get one share.
    """
    visual: Any = tower.visual
    norm, projection = visual.ln_post, visual.proj
    gain = norm.weight[:, None] * projection
    return gain, torch.stack([-gain.sum(0), norm.bias @ projection]) / (2 * tower.layers + 1)


def _scales(tower: ImageTower, cls: Tensor) -> tuple[Tensor, Tensor]:
    """CLS states [images, width] -> 1 / (std * length) [images], and the factors of `_fold`'s shares [images, 2]."""
    norm: Any = tower.visual.ln_post
    variance, mean = torch.var_mean(cls, dim=-1, correction=0)
    length = tower.project(cls).norm(dim=-1)
    scale = 1 / ((variance + norm.eps).sqrt() * length)
    return scale, torch.stack([mean * scale, 1 / length], -1)


def _head_maps(tower: ImageTower, block: Any) -> Tensor:
    """Matrices from code to contribution for the heads of one block: [heads, head_dim + 3, dim]."""
    gain, shares = _fold(tower)
    weight, bias = (part.to(gain.dtype) for part in (block.attn.out_proj.weight, block.attn.out_proj.bias))
    own = (block.ls_1(weight.T) @ gain).unflatten(0, (tower.heads, -1))
    of_layer = torch.cat([(block.ls_1(bias) @ gain)[None], shares]) / tower.heads  # shared equally by the heads
    return torch.cat([own, of_layer.expand(tower.heads, -1, -1)], 1)


def _head_codes(outputs: Tensor, scale: Tensor, constants: Tensor) -> Tensor:
    """Outputs [images, layers, heads, head_dim], scale [images], constants [images, 2] -> codes, longer by 3."""
    shared = torch.cat([scale[:, None], constants], -1)[:, None, None].expand(*outputs.shape[:3], -1)
    return torch.cat([outputs * scale[:, None, None, None], shared], -1)
