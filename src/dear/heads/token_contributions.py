"""Contributions of heads where the class feature is not read by a plain CLS: the mean, a probe, or EVA's inner norms.

Let x_t be what a term (the embedding, a head, an MLP) adds to the residual stream at token t. For the numbers that one
picture holds fixed (the weights alpha of a probe, the std of every LayerNorm, the length of the feature), the way from
the stream to the feature is linear, and a term's contribution is

    sum_j G_j [ gamma * c( sum_t w_jt x_t ) ],    c(x) = x - mean(x)

with gamma of the last LayerNorm. CLS: w = 1 / std at CLS. Mean over T patches: w = 1 / (T std). Probe: for each of its
heads j, w_jt = alpha_jt / std_t, and G_j its value and output matrices. Biases belong to no term and are one constant.
Behind the probe of SigLIP there is an MLP, which is not linear: it is a term of its own. With `through="gate"` it is
shared out instead: GELU(z) = z Phi(z), which is linear for the Phi of the picture. Behind the probe of CoCa there is a
LayerNorm, whose std is held too.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dear.clip import Backbone
from dear.clip.attention import attention_weights, merge_heads
from dear.clip.read_out import MEAN, PROBE, READ_CLS
from dear.core.errors import DearError
from dear.heads.contributions import Decomposition, HeadContributions, check_first_layer, layer_terms, run_layer_heads


class TokenContributions(HeadContributions):
    """`HeadContributions` of any image tower whose layers are known.

    A contribution is no linear function of a few numbers of its head here, so codes are the contributions themselves,
    and maps are identities.
    """

    def __init__(self, backbone: Backbone, first_layer: int | None = None, through: str = "own") -> None:
        if through not in ("own", "gate"):
            raise DearError(f'through must be "own" or "gate", not {through!r}.')
        self.tower: Any = backbone.image
        self.through = through
        self.first_layer = check_first_layer(self.tower, first_layer)
        self.layers = tuple(range(self.first_layer, self.tower.layers + 1))
        like, shape = self.tower.like, (len(self.layers), self.tower.heads, -1, -1)
        self.maps = torch.eye(self.tower.dim, device=like.device, dtype=like.dtype).expand(shape)

    @property
    def span(self) -> tuple[Tensor, Tensor]:
        identity = self.maps.cpu().double()
        return identity, identity

    def rank(self, outer: Tensor) -> int:
        """Dimensions that hold 99% of a head's second moments [dim, dim]: a probe can spread a head over all."""
        if self.tower.read != PROBE:
            return self.tower.head_dim
        values = torch.linalg.eigvalsh(outer).flip(0).clamp(min=0).cumsum(0)
        return int((values < 0.99 * values[-1]).sum()) + 1

    def codes_and_feature(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        return self._codes(pixels)[:2]

    @torch.no_grad()
    def _codes(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Codes, feature, and the outputs of heads where they are read, [images, layers, heads, head_dim]."""
        if not self.tower.why_no_sum:  # heads write to the state that is read: as if it were one token
            cls, found = self.tower.head_outputs(pixels, self.first_layer)
            read = _Reading(self.tower, cls[:, None], self.through, cls)
            terms = [
                read.of_heads(layer, out[:, :, None]) for layer, out in zip(self.layers, found.unbind(1), strict=True)
            ]
            return torch.stack(terms, 1), read.feature, found
        x = self.tower.trunk(pixels, self.first_layer - 1)
        outputs = []
        for layer in self.layers:
            x, of_heads = run_layer_heads(self.tower, layer, x)
            outputs.append(of_heads)
        read = _Reading(self.tower, x, self.through)
        tokens = read.weights.shape[-1]
        terms = [read.of_heads(layer, out[:, :, :tokens]) for layer, out in zip(self.layers, outputs, strict=True)]
        return torch.stack(terms, 1), read.feature, None

    def sum_of(self, heads: Any, codes: Tensor) -> Tensor:
        return codes.flatten(1, 2).index_select(1, self.places(heads)).sum(1)

    def coordinates_and_outputs(self, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
        codes, _, outputs = self._codes(pixels)
        return codes.cpu().double(), None if outputs is None else outputs.cpu().double().sum(0)


class _Reading:
    """The way from the residual stream to the feature, with all that some pictures hold fixed."""

    def __init__(self, tower: Any, states: Tensor, through: str, pooled: Tensor | None = None) -> None:
        """states [images, tokens, width]: CLS alone where it is read; `pooled`: `states` are this read state alone."""
        self.tower, self.through = tower, through
        norm = self.norm = final_norm(tower)
        if tower.read == READ_CLS or pooled is not None:
            weights = 1 / _std(states[:, :1], norm)[:, None]
        elif tower.read == MEAN:
            patches = states.new_zeros(states.shape[:2])
            patches[:, tower.prefix :] = 1 / (states.shape[1] - tower.prefix)
            of_mean = _std(states if tower.norm_first else tower.pool(states)[:, None], norm)
            weights = (patches / of_mean)[:, None]
        else:
            q, k, _ = tower.probe(states)
            alpha = attention_weights(q, k, None)[:, :, 0]
            weights = F.pad(alpha, (states.shape[1] - alpha.shape[-1], 0)) / _std(states, norm)[:, None]
        self.weights = weights  # [images, J, tokens]
        self.pooled = tower.pool(states) if pooled is None else pooled
        whole = tower.project(self.pooled)
        self.length = whole.norm(dim=-1)
        self.feature = whole / self.length[:, None]
        self.reader = tower.reader
        if self.reader is not None:
            self._hold_pool()

    def of_heads(self, layer: int, outputs: Tensor) -> Tensor:
        """Outputs [images, heads, tokens, head_dim] of a layer -> contributions [images, heads, dim]."""
        block, heads = self.tower.blocks[layer - 1], self.tower.heads
        out, inner, total = block.attn.out_proj, getattr(block.attn, "inner_norm", None), self.weights.sum(-1)
        post = isinstance(block.ls_1, nn.LayerNorm)
        matrix, bias, weights = out.weight.to(outputs), out.bias.to(outputs), self.weights
        if inner is not None:
            weights = weights / _std(merge_heads(outputs), inner)[:, None]
        elif post:
            weights = weights / _std(out(merge_heads(outputs)), block.ls_1)[:, None]
        summed = torch.einsum("njt,nhtd->nhjd", weights, outputs)
        # Each head in its own slice of the merged heads, zeros elsewhere: [images, heads, J, width].
        merged = torch.zeros(*summed.shape[:3], heads, summed.shape[-1], device=summed.device, dtype=summed.dtype)
        index = torch.arange(heads, device=summed.device)
        merged[:, index, :, index] = summed.transpose(0, 1)
        merged = merged.flatten(3)
        if inner is not None:
            merged = inner.weight * (merged - merged.sum(-1, keepdim=True) / merged.shape[-1])
            own = inner.bias.view(heads, -1)
            shares = torch.block_diag(*own)  # [heads, width]: each head gets its own slice of the bias
            merged = merged + total[:, None, :, None] * shares[None, :, None]
        of_bias = weights.sum(-1) if post else total
        added = merged @ matrix.T + of_bias[:, None, :, None] * bias / heads
        if post:
            norm = block.ls_1
            added = norm.weight * _centred(added) + total[:, None, :, None] * norm.bias / heads
        else:
            added = block.ls_1(added)
        return self.finish(added)

    def of_states(self, states: Tensor) -> Tensor:
        """Contribution [images, dim] of a term that adds [images, tokens, width] to the stream."""
        return self.finish(torch.einsum("njt,ntd->njd", self.weights, states))

    def finish(self, summed: Tensor) -> Tensor:
        """Weighted sums over tokens, [images, ..., J, width] -> contributions [images, ..., dim]."""
        scaled = self.norm.weight * _centred(summed)
        if self.reader is None:
            return self._project(scaled.squeeze(-2))
        return self._project(self._behind_pool(torch.einsum("n...jd,jde->n...e", scaled, self.reader.of_heads())))

    def constant(self) -> Tensor:
        """The part of the feature that belongs to no term, [images, dim]."""
        offset, reader, bias = self.norm.bias, self.reader, self.tower.head_bias
        if reader is not None:
            offset = self._behind_pool(reader.out(F.linear(offset, *reader.value())).expand(len(self.length), -1))
            if reader.last_norm is not None:
                offset = offset + reader.last_norm.bias
            elif self.through == "gate":
                mlp = reader.mlp.mlp
                offset = offset + (self.gate * mlp.fc1(reader.mlp.norm.bias)) @ mlp.fc2.weight.T + mlp.fc2.bias
        offset = offset.expand(len(self.length), -1)
        return self._project(offset) + (0 if bias is None else bias / self.length[:, None])

    def pool_mlp(self) -> Tensor | None:
        """The term of the probe's MLP, [images, dim]; None: there is none, or it is shared out."""
        if self.reader is None or self.reader.mlp is None or self.through == "gate":
            return None
        return self._project(self.reader.mlp_of(self.pooled))

    def _project(self, x: Tensor) -> Tensor:
        return x @ self.tower.head_matrix / self.length.view(-1, *[1] * (x.dim() - 1))

    def _hold_pool(self) -> None:
        """The std of the norm behind the pool, and Phi of GELU(z) = z Phi(z) in its MLP, [images, hidden]."""
        if self.reader.last_norm is not None:
            self.pool_std = _std(self.pooled, self.reader.last_norm)
            return
        pool = self.reader.mlp
        hidden = pool.mlp.fc1(pool.norm(self.pooled))
        self.gate = torch.where(hidden == 0, 0.5, pool.mlp.act(hidden) / hidden)
        self.pool_std = _std(self.pooled, pool.norm)

    def _behind_pool(self, x: Tensor) -> Tensor:
        """The linear part of what is behind the pool, on terms of the pooled state, [images, ..., width]."""
        places = [1] * (x.dim() - 2)
        if (last := self.reader.last_norm) is not None:
            return last.weight * _centred(x) / self.pool_std.view(-1, *places, 1)
        if self.through != "gate":
            return x
        pool = self.reader.mlp
        normed = pool.norm.weight * _centred(x) / self.pool_std.view(-1, *places, 1)
        hidden = (normed @ pool.mlp.fc1.weight.T) * self.gate.view(len(self.gate), *places, -1)
        return x + hidden @ pool.mlp.fc2.weight.T


@torch.no_grad()
def decompose_tokens(backbone: Backbone, pixels: Tensor, through: str = "own") -> Decomposition:
    """All terms of the normalised image feature of pixels [images, 3, height, width]."""
    tower: Any = backbone.image
    embedding, outputs, mlps, x = layer_terms(tower, pixels.to(backbone.device))
    read = _Reading(tower, x, through)
    tokens = read.weights.shape[-1]
    heads = torch.stack([read.of_heads(layer, out[:, :, :tokens]) for layer, out in enumerate(outputs, 1)], 1)
    return Decomposition(
        read.of_states(embedding[:, :tokens]),
        heads,
        torch.stack([read.of_states(mlp[:, :tokens]) for mlp in mlps], 1),
        read.constant(),
        read.pool_mlp(),
    )


def final_norm(tower: Any) -> Any:
    """The last LayerNorm over the tokens, or over their mean."""
    if tower.reader is not None:
        return tower.reader.norm
    if not hasattr(tower, "vit"):
        return tower.visual.ln_post
    return tower.vit.fc_norm if isinstance(tower.vit.norm, nn.Identity) else tower.vit.norm


def _std(x: Tensor, norm: Any) -> Tensor:
    """The std over the last axis by which a LayerNorm divides, [...]."""
    return (x.var(-1, correction=0) + norm.eps).sqrt()


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)
