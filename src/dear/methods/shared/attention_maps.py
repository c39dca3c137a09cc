"""Attention of components to the patches, for the pictures of `dear explain`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dear.clip.attention import attention_weights
from dear.clip.layer_input import LayerInput, observing
from dear.clip.masks import Masks
from dear.clip.read_out import PROBE, READ_CLS
from dear.core.names import CLS

if TYPE_CHECKING:
    from dear.clip.image import ImageTower
    from dear.heads.role_map import Head
    from dear.methods.base import Method

_REGISTER = 2.0  # times the median length; 1 in 200 patches of photos is between 1.5 and 2


def registers(states: Tensor, prefix: int) -> Tensor:
    """Patches whose states do not describe their place, [batch, patches], True: much longer than the median.

    states [batch, prefix + patches, width]. Large ViTs use a few background patches to store information on the whole
    image (Darcet et al., 2024). In OpenAI's ViT-B/16 their states are 20 times as long as others before layer 9, 2 to
    10 times before the last, and the tokens of all attributes attend to them most.
    """
    lengths = states[:, prefix:].norm(dim=-1)
    middle = (lengths.shape[1] - 1) // 2  # sorted: CUDA's median of rows is not deterministic
    return lengths > _REGISTER * lengths.sort(dim=1).values[:, middle : middle + 1]


def without_registers(maps: Mapping[str, Tensor], states: Tensor, tower: "ImageTower") -> dict[str, Tensor]:
    """Attention to patches [batch, patches] -> [batch, rows, columns], zero at the registers among their `states`."""
    visible = ~registers(states, tower.prefix)
    return {name: (values * visible).unflatten(1, tower.grid) for name, values in maps.items()}


def read_queries(x: LayerInput) -> Tensor:
    """Queries of what becomes the class feature, CLS or every patch, [batch, heads, queries, head_dim]."""
    return x.cls_q if x.tower.read == READ_CLS else x.q[:, :, x.tower.prefix :]


def read_attention(x: LayerInput, states: Tensor) -> Tensor:
    """Attention of what reads the class feature, mean over heads, [batch, patches].

    `x`: the input of the last layer; `states`: all tokens after it.
    """
    tower = x.tower
    if tower.read == PROBE:
        queries, keys, _ = tower.probe(states)  # type: ignore[attr-defined]
    else:
        queries, keys = read_queries(x), x.kv[0]
    patches = tower.originals - tower.prefix
    return attention_weights(queries, keys, None)[..., -patches:].mean((1, 2))


def read_place(tower: "ImageTower") -> str:
    """The place of that attention, in words."""
    return "behind the last layer, by its probe" if tower.read == PROBE else "in the last layer"


@torch.no_grad()
def cls_attention(method: "Method", pixels: Tensor) -> Tensor:
    """Attention of what reads the class feature, mean over heads, without registers, [batch, rows, columns].

    That is CLS or the mean patch in the last layer, or the probe after it. The sum is at most 1.
    """
    tower = method.backbone.image
    patches = tower.originals - tower.prefix
    maps: list[Tensor] = []

    def add(original: LayerInput, _: LayerInput | None) -> None:
        if original.layer == tower.layers + (tower.read == PROBE):
            queries = original.cls_q if tower.read == READ_CLS else original.q
            weights = attention_weights(queries, original.kv[0], None)[:, :, -patches:]
            after = original.kv[0].shape[2] - original.states.shape[1]  # learned tokens that a probe sees
            maps.append(weights[..., weights.shape[-1] - after - patches : weights.shape[-1] - after].mean((1, 2)))

    x = method.layer_input(pixels)
    with observing(add):
        if x.layer <= tower.layers:
            method.encode_image(x)
        if not maps:  # no learned part reaches CLS
            tower.encode(pixels)
    return without_registers({CLS: maps[0]}, tower.trunk(pixels, tower.layers - 1), tower)[CLS]


@torch.no_grad()
def head_attention(method: "Method", pixels: Tensor, heads: "Mapping[str, Sequence[Head]]") -> dict[str, Tensor]:
    """Attention of CLS or the mean patch in the frozen tower, mean over the heads under each name.

    Without registers, [batch, rows, columns].
    """
    tower = method.backbone.image
    first = min(layer for places in heads.values() for layer, _ in places)
    sums = {name: torch.zeros(len(pixels), tower.originals - tower.prefix, device=pixels.device) for name in heads}
    for x in tower.walk(LayerInput(tower, first, tower.trunk(pixels, first - 1))):
        weights = attention_weights(read_queries(x), x.kv[0], None)[..., tower.prefix :].mean(2)
        for name, places in heads.items():
            for head in (head for at, head in places if at == x.layer):
                sums[name] += weights[:, head] / len(places)  # [batch, patches]
    return without_registers(sums, x.states, tower)


@torch.no_grad()
def token_attention(
    method: "Method", pixels: Tensor, heads: "Mapping[str, Sequence[Head]]", token_of: Sequence[str], masks: Masks
) -> dict[str, Tensor]:
    """Attention of each component's learned tokens to the patches, [batch, rows, columns], summing to at most one.

    Averaged over the component's `heads`; `token_of` names the component of each token. Attention to `registers` is
    left out: it is the same for every token and does not depend on the place.
    """
    tower = method.backbone.image
    first, patches = tower.prefix, tower.originals - tower.prefix
    sums = {name: torch.zeros(len(pixels), patches, device=pixels.device) for name in heads}

    def add(original: LayerInput, learned: LayerInput | None) -> None:
        if learned is None:
            return
        keys = original.kv[0]
        learned_keys, queries = (t.expand(len(keys), *t.shape[1:]) for t in (learned.kv[0], learned.q))
        weights = attention_weights(queries, torch.cat([keys, learned_keys], 2), masks[learned.layer][1])
        for name, component_heads in heads.items():
            tokens = [i for i, component in enumerate(token_of) if component == name]
            for layer, head in component_heads:
                if layer == learned.layer:
                    sums[name] += weights[:, head, tokens, first : first + patches].mean(1) / len(component_heads)

    x = method.layer_input(pixels)
    with observing(add):
        method.encode_image(x)
    return without_registers(sums, tower.trunk(pixels, method.first_layer - 1), tower)
