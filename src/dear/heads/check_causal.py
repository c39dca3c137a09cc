"""Causal check of a role map: mean-ablate the heads of a concept and see which attribute is lost (Attribute World).

Mean ablation replaces each head's output, at every token, by its mean over the pictures: the layers after it get an
input of the usual kind, without information about the picture. The heads of a concept are all heads with this dominant
concept, whatever their role: the specialised fifth of a small backbone is only a handful of heads, so that most
concepts would have none. The control is as many random heads of the same layers (the concept's own among them).
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip import Backbone
from dear.core.errors import DearError
from dear.core.metrics import accuracy
from dear.core.progress import Progress
from dear.core.table import Table
from dear.data.dataset import Example
from dear.data.loading import evaluation_batches
from dear.data.world.tasks import world_task
from dear.data.world.vocabulary import VALUES, Scene
from dear.heads.contributions import run_layer_heads
from dear.heads.role_map import Head, RoleMap

TASK_OF = {"color": "colors", "shape": "shapes", "texture": "textures", "object": "objects", "location": "places"}
_BATCH = 64


@dataclass(frozen=True)
class ConceptEffect:
    """Points of accuracy that each attribute loses without the heads of a concept, and without as many random heads."""

    concept: str
    heads: tuple[Head, ...]
    drop: Mapping[str, float]
    random_mean: Mapping[str, float]
    random_std: Mapping[str, float]

    def excess(self, attribute: str) -> float:
        """Points lost beyond those without random heads."""
        return self.drop[attribute] - self.random_mean[attribute]


@dataclass(frozen=True)
class CausalResult:
    """`accuracy`: zero-shot accuracy (%) on each attribute with all heads."""

    pictures: int
    draws: int
    accuracy: Mapping[str, float]
    effects: tuple[ConceptEffect, ...]

    def to_json(self) -> dict[str, Any]:
        chosen = "heads whose dominant concept it is, of any role; random: as many of the same layers"
        return {"chosen": chosen, **asdict(self)}

    def table(self) -> Table:
        """One row per concept, one column per attribute: points lost (without random heads: mean ± std)."""
        table = Table(["without heads of", "heads", *self.accuracy])
        for effect in self.effects:
            control = {a: f"{effect.random_mean[a]:.1f} ± {effect.random_std[a]:.1f}" for a in self.accuracy}
            cells = [f"{effect.drop[a]:.1f} ({control[a]})" for a in self.accuracy]
            table.add(effect.concept, len(effect.heads), *cells)
        return table

    def verdict(self) -> str:
        """The concepts whose heads are needed for their own attribute, in two or three sentences."""
        own = [e for e in self.effects if e.concept in self.accuracy]
        causal = [e.concept for e in own if e.excess(e.concept) > 2 * e.random_std[e.concept]]
        lines = [f"Own attribute loses more than two std beyond random heads: {', '.join(causal) or 'none'}."]
        others = [e.excess(a) for e in own for a in self.accuracy if a != e.concept]
        if own and others:
            on_own, on_others = statistics.fmean(e.excess(e.concept) for e in own), statistics.fmean(others)
            lines.append(
                f"Beyond random heads, their own attribute loses {on_own:.1f} points, the others {on_others:.1f}."
            )
        if missing := [a for a in self.accuracy if a not in {e.concept for e in own}]:
            lines.append(f"No head has this dominant concept: {', '.join(missing)}.")
        return " ".join(lines)


def causal_check(backbone: Backbone, role_map: RoleMap, pictures: int = 960, draws: int = 8) -> CausalResult:
    """Zero-shot accuracy on the five attributes without the heads of each concept, on held-out pictures."""
    tower = backbone.image
    role_map.check_backbone(backbone.identity.to_json(), tower.layers, tower.heads)
    groups = {c: [at for at, head in sorted(role_map.roles.items()) if head.concept == c] for c in role_map.concepts}
    groups = {concept: heads for concept, heads in groups.items() if heads}
    if not groups:
        raise DearError("No head of this role map has a concept, so there is nothing to test.")
    trial = _Trial(backbone, role_map.layers[0], pictures)
    whole = trial.accuracies([])
    effects = []
    with Progress("ablations", len(groups) * (1 + draws), "set", leave=True) as bar:
        for concept, heads in groups.items():
            rng = Random(concept)
            sets = [heads, *(random_heads(heads, role_map.heads, rng) for _ in range(draws))]
            drops = []
            for chosen in sets:
                without = trial.accuracies(chosen)
                drops.append({a: whole[a] - without[a] for a in whole})
                bar.update()
            of_random = {a: [drop[a] for drop in drops[1:]] for a in whole}
            mean = {a: statistics.fmean(values) for a, values in of_random.items()}
            std = {a: statistics.stdev(values) for a, values in of_random.items()}
            effects.append(ConceptEffect(concept, tuple(heads), drops[0], mean, std))
    return CausalResult(len(trial.states), draws, whole, tuple(effects))


def random_heads(like: Sequence[Head], heads: int, rng: Random) -> list[Head]:
    """As many heads per layer as `like` has, drawn from all `heads` of the layer."""
    layers = [layer for layer, _ in like]
    return [(layer, h) for layer in sorted(set(layers)) for h in rng.sample(range(heads), layers.count(layer))]


def mean_outputs(backbone: Backbone, states: Tensor, first_layer: int) -> dict[int, Tensor]:
    """Mean outputs over pictures: layer -> [heads, tokens, head_dim]; of CLS alone in the last layer, if it is read."""
    tower = backbone.image
    totals: dict[int, Tensor] = {}
    for x in states.split(_BATCH):
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
    for x in states.split(_BATCH):
        for layer in range(first_layer, tower.layers + 1):
            x, _ = run_layer_heads(tower, layer, x, without(layer))
        features.append(F.normalize(tower.project(tower.pool(x)), dim=-1))
    return torch.cat(features)


class _Trial:
    """Held-out pictures, encoded up to the first layer of the map; each is classified by all five attributes."""

    @torch.no_grad()
    def __init__(self, backbone: Backbone, first_layer: int, pictures: int) -> None:
        self.backbone, self.first_layer = backbone, first_layer
        tasks = {attribute: world_task(name) for attribute, name in TASK_OF.items()}
        self.texts = {a: F.normalize(backbone.text.encode(task.prompts), dim=-1) for a, task in tasks.items()}
        tests = [example for task in tasks.values() for example in task.test]
        pictures = min(pictures, len(tests))
        chosen: list[Example] = [tests[i * len(tests) // pictures] for i in range(pictures)]
        scenes = [example.picture for example in chosen]
        self.labels = {
            a: torch.tensor([VALUES[a].index(getattr(s.traits, a)) for s in scenes if isinstance(s, Scene)])
            for a in tasks
        }
        batches = evaluation_batches(chosen, backbone.preprocess, "pictures", _BATCH)
        states = [backbone.image.trunk(pixels.to(backbone.device), first_layer - 1) for pixels, _ in batches]
        self.states = torch.cat(states)
        self.means = mean_outputs(backbone, self.states, first_layer)

    @torch.no_grad()
    def accuracies(self, heads: Sequence[Head]) -> dict[str, float]:
        """Zero-shot accuracy (%) on each attribute without `heads`."""
        features = features_without(self.backbone, self.states, self.first_layer, heads, self.means)
        return {a: accuracy((features @ text.T).cpu(), self.labels[a]) for a, text in self.texts.items()}
