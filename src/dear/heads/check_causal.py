"""Causal check of a role map: mean-ablate the heads of a concept and see which attribute is lost (Attribute World).

Mean ablation replaces each head's output, at every token, by its mean over the pictures: the layers after it get an
input of the usual kind, without information about the picture. The heads of a concept are all heads with this dominant
concept, whatever their role: the specialised fifth of a small backbone is only a handful of heads, so that most
concepts would have none. The control is as many random heads of the same layers (the concept's own among them).
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip import Backbone
from dear.core.metrics import accuracy
from dear.data.dataset import Example
from dear.data.loading import evaluation_batches
from dear.data.world.tasks import world_task
from dear.data.world.vocabulary import VALUES, Scene
from dear.heads.checks import ABLATION, RoleCheck, checked_groups, measured_groups
from dear.heads.contributions import run_layer_heads
from dear.heads.pictures import spread_evenly
from dear.heads.role_map import Head, RoleMap
from dear.heads.stream import STREAM_BATCH

TASK_OF = {"color": "colors", "shape": "shapes", "texture": "textures", "object": "objects", "location": "places"}


@torch.no_grad()
def causal_check(backbone: Backbone, role_map: RoleMap, pictures: int = 960, draws: int = 8) -> RoleCheck:
    """Points of zero-shot accuracy on the five attributes that are lost without the heads of each concept.

    The held-out pictures are encoded up to the first layer of the map once; all five attributes are asked of each.
    """
    heads_of = {c: [at for at, head in role_map.roles.items() if head.concept == c] for c in role_map.concepts}
    groups = checked_groups(role_map, backbone, heads_of)
    first_layer = role_map.layers[0]
    tasks = {attribute: world_task(name) for attribute, name in TASK_OF.items()}
    texts = {a: F.normalize(backbone.text.encode(task.prompts), dim=-1) for a, task in tasks.items()}
    chosen: Sequence[Example] = spread_evenly([example for task in tasks.values() for example in task.test], pictures)
    scenes = [example.picture for example in chosen]
    labels = {
        a: torch.tensor([VALUES[a].index(getattr(s.traits, a)) for s in scenes if isinstance(s, Scene)]) for a in tasks
    }
    batches = evaluation_batches(chosen, backbone.preprocess, "pictures", STREAM_BATCH)
    states = torch.cat([backbone.image.trunk(pixels.to(backbone.device), first_layer - 1) for pixels, _ in batches])
    means = mean_outputs(backbone, states, first_layer)

    def accuracies(heads: Sequence[Head]) -> dict[str, float]:
        features = features_without(backbone, states, first_layer, heads, means)
        return {a: accuracy((features @ text.T).cpu(), labels[a]) for a, text in texts.items()}

    whole = accuracies([])

    def lost(heads: Sequence[Head]) -> dict[str, float]:
        return {attribute: whole[attribute] - left for attribute, left in accuracies(heads).items()}

    found = measured_groups(groups, role_map.heads, draws, lost, "ablations")
    counts, sources = dict.fromkeys(whole, len(states)), dict.fromkeys(whole, "Attribute World")
    return RoleCheck(ABLATION, counts, sources, draws, whole, found)


def mean_outputs(backbone: Backbone, states: Tensor, first_layer: int) -> dict[int, Tensor]:
    """Mean outputs over pictures: layer -> [heads, tokens, head_dim]; of CLS alone in the last layer, if it is read."""
    tower = backbone.image
    totals: dict[int, Tensor] = {}
    for x in states.split(STREAM_BATCH):
        for layer in range(first_layer, tower.layers + 1):
            x, of_heads = run_layer_heads(tower, layer, x)
            total = of_heads.sum(0)
            totals[layer] = totals[layer] + total if layer in totals else total
    return {layer: total / len(states) for layer, total in totals.items()}


def features_without(
    backbone: Backbone, states: Tensor, first_layer: int, heads: Sequence[Head], means: Mapping[int, Tensor]
) -> Tensor:
    """Normalised image features with `heads` mean-ablated: states before `first_layer` -> [pictures, dim]."""
    tower = backbone.image

    def without(layer: int) -> Callable[[Tensor], Tensor]:
        ablated = torch.zeros(tower.heads, 1, 1, dtype=torch.bool, device=states.device)
        ablated[[head for at, head in heads if at == layer]] = True
        return lambda outputs: torch.where(ablated, means[layer], outputs)

    features = []
    for x in states.split(STREAM_BATCH):
        for layer in range(first_layer, tower.layers + 1):
            x, _ = run_layer_heads(tower, layer, x, without(layer))
        features.append(F.normalize(tower.project(tower.pool(x)), dim=-1))
    return torch.cat(features)
