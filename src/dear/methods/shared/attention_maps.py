"""Where components look: attention over the patches, for pictures of why."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dear.clip.attention import attention_weights
from dear.clip.image import LayerInput
from dear.clip.masks import Masks

if TYPE_CHECKING:
    from dear.heads.role_map import Head
    from dear.methods.base import Method

_REGISTER = 5.0  # times the median length


def registers(states: Tensor) -> Tensor:
    """Patches that no longer show what lies under them, [batch, patches]: states many times longer than most.

    states [batch, 1 + patches, width]. Large ViTs use a few background patches to store what concerns the whole image
    (Darcet et al., 2024). In OpenAI's ViT-B/16 their states are 20 times as long as others, and every token of every
    attribute looks at them first.
    """
    lengths = states[:, 1:].norm(dim=-1)
    return lengths > _REGISTER * lengths.median(dim=1, keepdim=True).values


@torch.no_grad()
def cls_attention(method: "Method", pixels: Tensor) -> Tensor:
    """CLS in the last layer, mean over heads, without registers, [batch, rows, columns], summing to at most one."""
    tower = method.backbone.image
    rows, columns = tower.grid
    found: list[Tensor] = []

    def observe(original: LayerInput, _: LayerInput | None) -> None:
        if original.layer == tower.layers:
            found.append(attention_weights(original.q[:, :, :1], original.k, None)[:, :, 0, 1:].mean(1))

    entry = method.trunk(pixels)
    if entry.layer > tower.layers:  # nothing learned reaches CLS
        entry = tower.enter(tower.embed(pixels), 1)
        tower.read_cls(entry, observe)
    else:
        method.image_features(entry, observe)
    states = tower.trunk(pixels, tower.layers - 1)
    return (found[0] * ~registers(states)).unflatten(1, (rows, columns))


@torch.no_grad()
def token_attention(
    method: "Method",
    pixels: Tensor,
    heads: "Mapping[str, Sequence[Head]]",
    token_of: Sequence[str],
    masks: Masks,
) -> dict[str, Tensor]:
    """Attention of each component's learned tokens over the patches, [batch, rows, columns], summing to at most one.

    Averaged over the component's `heads`; `token_of` names the component of each token. Attention to `registers` is
    left out: it is the same for every token and says nothing about a place.
    """
    tower = method.backbone.image
    rows, columns = tower.grid
    sums = {name: torch.zeros(len(pixels), rows, columns, device=pixels.device) for name in heads}

    def observe(original: LayerInput, learned: LayerInput | None) -> None:
        if learned is None:
            return
        weights = attention_weights(learned.q, torch.cat([original.k, learned.k], 2), masks[learned.layer][1])
        for name, chosen in heads.items():
            own = [i for i, of in enumerate(token_of) if of == name]
            for layer, head in chosen:
                if layer == learned.layer:
                    seen = weights[:, head, own, 1 : 1 + rows * columns].mean(1)
                    sums[name] += seen.unflatten(-1, (rows, columns)) / len(chosen)

    method.image_features(method.trunk(pixels), observe)
    kept = ~registers(method.states(pixels)).unflatten(1, (rows, columns))
    return {name: values * kept for name, values in sums.items()}
