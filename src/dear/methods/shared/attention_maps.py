"""Attention of components to the patches, for the pictures of `dear explain`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dear.clip.attention import attention_weights
from dear.clip.layer_input import LayerInput, observing
from dear.clip.masks import Masks

if TYPE_CHECKING:
    from dear.heads.role_map import Head
    from dear.methods.base import Method

_REGISTER = 5.0  # times the median length


def registers(states: Tensor) -> Tensor:
    """Patches whose states do not describe their place, [batch, patches], True: much longer than the median.

    states [batch, 1 + patches, width]. Large ViTs use a few background patches to store information on the whole image
    (Darcet et al., 2024). In OpenAI's ViT-B/16 their states are 20 times as long as others, and the tokens of all
    attributes attend to them most.
    """
    lengths = states[:, 1:].norm(dim=-1)
    return lengths > _REGISTER * lengths.median(dim=1, keepdim=True).values


@torch.no_grad()
def cls_attention(method: "Method", pixels: Tensor) -> Tensor:
    """Attention of CLS in the last layer, mean over heads, without registers, [batch, rows, columns]; sum at most 1."""
    tower = method.backbone.image
    maps: list[Tensor] = []

    def add(original: LayerInput, _: LayerInput | None) -> None:
        if original.layer == tower.layers:
            maps.append(attention_weights(original.cls_q, original.kv[0], None)[:, :, 0, 1:].mean(1))

    x = method.layer_input(pixels)
    with observing(add):
        if x.layer <= tower.layers:
            method.encode_image(x)
        if not maps:  # no learned part reaches CLS
            tower.encode(pixels)
    states = tower.trunk(pixels, tower.layers - 1)
    return (maps[0] * ~registers(states)).unflatten(1, tower.grid)


@torch.no_grad()
def token_attention(
    method: "Method",
    pixels: Tensor,
    heads: "Mapping[str, Sequence[Head]]",
    token_of: Sequence[str],
    masks: Masks,
) -> dict[str, Tensor]:
    """Attention of each component's learned tokens to the patches, [batch, rows, columns], summing to at most one.

    Averaged over the component's `heads`; `token_of` names the component of each token. Attention to `registers` is
    left out: it is the same for every token and does not depend on the place.
    """
    tower = method.backbone.image
    patches = tower.originals - 1
    sums = {name: torch.zeros(len(pixels), *tower.grid, device=pixels.device) for name in heads}

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
                    attention = weights[:, head, tokens, 1 : 1 + patches].mean(1)
                    sums[name] += attention.unflatten(-1, tower.grid) / len(component_heads)

    x = method.layer_input(pixels)
    with observing(add):
        method.encode_image(x)
    visible = ~registers(tower.trunk(pixels, method.first_layer - 1)).unflatten(1, tower.grid)
    return {name: values * visible for name, values in sums.items()}
