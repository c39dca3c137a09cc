"""Checks of a role map: the heads of each attribute, measured on every attribute beside as many random heads.

There are two: `check_search` searches held-out pictures by the heads, `check_causal` ablates the heads.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from dear.core.errors import DearError
from dear.core.progress import Progress
from dear.core.table import Table
from dear.heads.role_map import Head, RoleMap

if TYPE_CHECKING:
    from dear.clip import Backbone

SEARCH, ABLATION = "search", "points lost"
CLASS = "class feature"
_EXPLAINED = {
    SEARCH: "the {nearest} nearest pictures by the summed contributions of an attribute's heads",
    ABLATION: "points of zero-shot accuracy lost without the heads with the dominant concept of the row",
}


@dataclass(frozen=True)
class HeadGroup:
    """The heads of one attribute: their measure of every attribute, and the same of as many random heads."""

    attribute: str
    heads: tuple[Head, ...]
    values: Mapping[str, float]
    random_mean: Mapping[str, float]
    random_std: Mapping[str, float]


@dataclass(frozen=True)
class RoleCheck:
    """A check of a role map on held-out pictures.

    SEARCH measures what the nearest pictures have in common, and `whole` is the same by the class feature. ABLATION
    measures points of zero-shot accuracy (%) that are lost, and `whole` is the accuracy with all heads.
    """

    kind: str
    pictures: Mapping[str, int]  # for each attribute
    sources: Mapping[str, str]  # of the pictures for each attribute
    draws: int  # of random heads
    whole: Mapping[str, float]
    groups: tuple[HeadGroup, ...]
    by_distance: tuple[str, ...] = ()  # attributes for which less is better
    nearest: int = 0  # pictures that a search compares

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "measures": self.measures()}

    def gain(self, group: HeadGroup, attribute: str, over: Mapping[str, float]) -> float:
        """Improvement of a group over `over`; positive is better for distances, too."""
        gain = group.values[attribute] - over[attribute]
        return -gain if attribute in self.by_distance else gain

    def beyond_random(self, group: HeadGroup, attribute: str) -> float:
        """Improvement of a group over random heads."""
        return self.gain(group, attribute, group.random_mean)

    def measures(self) -> list[str]:
        """The name of each attribute's measure."""
        if self.kind == ABLATION:
            return [f"{a} (of {value:.1f}%)" for a, value in self.whole.items()]
        return [f"{a} (a*b* distance)" if a in self.by_distance else f"same {a} (%)" for a in self.whole]

    def introduction(self) -> list[str]:
        """Lines to print above the table."""
        sets: dict[str, list[str]] = {}
        for attribute, count in self.pictures.items():
            sets.setdefault(f"{count} held-out pictures of {self.sources[attribute]}", []).append(attribute)
        control = f"as many random heads of the same layers, mean ± std of {self.draws} draws"
        return [
            *(f"{', '.join(attributes)}: {pictures}" for pictures, attributes in sets.items()),
            _EXPLAINED[self.kind].format(nearest=self.nearest),
            f"(in parentheses: {'by' if self.kind == SEARCH else 'without'} {control})",
        ]

    def table(self) -> Table:
        """One row per group, one column per attribute; in parentheses the same of random heads, mean ± std."""
        table = Table(["searched by" if self.kind == SEARCH else "without", "heads", *self.measures()])
        if self.kind == SEARCH:
            table.add(CLASS, None, *(f"{value:.1f}" for value in self.whole.values()))
        for g in self.groups:
            cells = [f"{g.values[a]:.1f} ({g.random_mean[a]:.1f} ± {g.random_std[a]:.1f})" for a in self.whole]
            table.add(f"{g.attribute} heads", len(g.heads), *cells)
        return table

    def verdict(self) -> str:
        """The attributes on which their own heads are best, in a few sentences."""
        own = [g for g in self.groups if g.attribute in self.whole]
        beyond = [g for g in own if self.beyond_random(g, g.attribute) > 2 * g.random_std[g.attribute]]
        best = [g for g in own if all(self.gain(g, g.attribute, o.values) > 0 for o in own if o is not g)]
        lines = [f"On their own attribute more than two std beyond random heads: {_names(beyond)};"]
        if self.kind == SEARCH:
            better = [g for g in own if self.gain(g, g.attribute, self.whole) > 0]
            lines.append(f"better than the class feature: {_names(better)};")
        lines.append(f"ahead of the heads for any other attribute: {_names(best)} ({len(best)} of {len(self.whole)}).")
        others = [self.beyond_random(g, a) for g in own for a in self.whole if a != g.attribute]
        if self.kind == ABLATION and others:
            mean = statistics.fmean(self.beyond_random(g, g.attribute) for g in own)
            lines.append(f"Beyond random heads, their own attribute loses {mean:.1f} points,")
            lines.append(f"the others {statistics.fmean(others):.1f}.")
        if missing := [a for a in self.whole if a not in {g.attribute for g in own}]:
            lines.append(f"There is no head for {', '.join(missing)}.")
        return " ".join(lines)


def checked_groups(
    role_map: RoleMap, backbone: "Backbone", groups: Mapping[str, Sequence[Head]]
) -> dict[str, Sequence[Head]]:
    """The groups that have heads; refuses a role map of another backbone, and one without any group."""
    role_map.check_backbone(backbone.identity.to_json(), backbone.image.layers, backbone.image.heads)
    if not (with_heads := {attribute: heads for attribute, heads in groups.items() if heads}):
        raise DearError("This role map has no head for any attribute, so there is nothing to check.")
    return with_heads


def measured_groups(
    groups: Mapping[str, Sequence[Head]],
    heads_per_layer: int,
    draws: int,
    measure: Callable[[Sequence[Head]], dict[str, float]],
    title: str,
) -> tuple[HeadGroup, ...]:
    """The measure of each group, and of `draws` random groups of the same size and layers."""
    found = []
    with Progress(title, len(groups) * (1 + draws), "set", leave=True) as bar:
        for attribute, heads in groups.items():
            rng, rows = Random(attribute), []
            for chosen in [heads, *(random_heads(heads, heads_per_layer, rng) for _ in range(draws))]:
                rows.append(measure(chosen))
                bar.update()
            random = {a: [row[a] for row in rows[1:]] for a in rows[0]}
            mean = {a: statistics.fmean(values) for a, values in random.items()}
            std = {a: statistics.stdev(values) for a, values in random.items()}
            found.append(HeadGroup(attribute, tuple(heads), rows[0], mean, std))
    return tuple(found)


def random_heads(like: Sequence[Head], heads: int, rng: Random) -> list[Head]:
    """A random draw of as many heads per layer as `like` has, from all `heads` of the layer."""
    layers = [layer for layer, _ in like]
    return [(layer, h) for layer in sorted(set(layers)) for h in rng.sample(range(heads), layers.count(layer))]


def _names(groups: Sequence[HeadGroup]) -> str:
    return ", ".join(group.attribute for group in groups) or "none"
