"""Check of a role map by search: do the heads for an attribute find held-out pictures with the same attribute?

The feature of an attribute is the sum of its heads' contributions, centred, as the class feature is here. Its ten
nearest pictures should share the attribute's label more often than the ten nearest by the class feature, and by as many
random heads of the same layers. Where color is measured by pixels, the measure is the distance of mean a*, b* (CIELAB),
and less is better.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip import Backbone
from dear.core.errors import DearError
from dear.core.progress import Progress
from dear.core.table import Table
from dear.heads.check_causal import random_heads
from dear.heads.contributions import HeadContributions
from dear.heads.picture_list import picture_batches
from dear.heads.probes import COLOR, Probe
from dear.heads.role_map import Head, RoleMap
from dear.heads.shares import mean_colors
from dear.heads.stream import has_color, to_rgb

NEAREST = 10
DRAWS = 20
_BATCH = 32
CLASS = "class feature"


@dataclass(frozen=True)
class AttributeSearch:
    """Search by the heads for one attribute: the measure of every attribute, and the same by random heads."""

    attribute: str
    heads: tuple[Head, ...]
    values: Mapping[str, float]
    random_mean: Mapping[str, float]
    random_std: Mapping[str, float]


@dataclass(frozen=True)
class CheckResult:
    """`by_class`: the measures of the class feature; `by_distance`: attributes for which less is better."""

    pictures: Mapping[str, int]
    sources: Mapping[str, str]
    by_class: Mapping[str, float]
    by_distance: tuple[str, ...]
    searches: tuple[AttributeSearch, ...]

    def to_json(self) -> dict[str, Any]:
        measure = f"share of the {NEAREST} nearest with the same label in %; by_distance: mean a*b* distance"
        return {"measure": measure, "draws": DRAWS, **asdict(self)}

    def gain(self, search: AttributeSearch, attribute: str, over: Mapping[str, float]) -> float:
        """Improvement over `over`; positive is better for distances, too."""
        gain = search.values[attribute] - over[attribute]
        return -gain if attribute in self.by_distance else gain

    def measures(self) -> list[str]:
        """The name of each attribute's measure."""
        return [f"{a} (a*b* distance)" if a in self.by_distance else f"same {a} (%)" for a in self.by_class]

    def table(self) -> Table:
        """One row per feature, one column per attribute; in parentheses the same by as many random heads."""
        table = Table(["searched by", "heads", *self.measures()])
        table.add(CLASS, None, *(f"{value:.1f}" for value in self.by_class.values()))
        for s in self.searches:
            cells = [f"{s.values[a]:.1f} ({s.random_mean[a]:.1f} ± {s.random_std[a]:.1f})" for a in self.by_class]
            table.add(f"{s.attribute} heads", len(s.heads), *cells)
        return table

    def verdict(self) -> str:
        """The attributes that are found best by their own heads, in a few sentences."""
        own = [s for s in self.searches if s.attribute in self.by_class]
        beyond = [s for s in own if self.gain(s, s.attribute, s.random_mean) > 2 * s.random_std[s.attribute]]
        better = [s for s in own if self.gain(s, s.attribute, self.by_class) > 0]
        best = [s for s in own if all(self.gain(s, s.attribute, o.values) > 0 for o in own if o is not s)]
        lines = [
            f"Attributes that their own heads find more than two std better than random heads: {_names(beyond)};",
            f"better than the class feature: {_names(better)};",
            f"better than the heads for any other attribute: {_names(best)} ({len(best)} of {len(self.by_class)}).",
        ]
        if missing := [a for a in self.by_class if a not in {s.attribute for s in own}]:
            lines.append(f"There is no head for {', '.join(missing)}.")
        return " ".join(lines)


def check_by_search(backbone: Backbone, role_map: RoleMap, probes: Sequence[Probe], draws: int = DRAWS) -> CheckResult:
    """Searches by the heads for each attribute in the pictures of `probes`, which the map should not be made from."""
    tower = backbone.image
    role_map.check_backbone(backbone.identity.to_json(), tower.layers, tower.heads)
    contributions = HeadContributions(backbone, role_map.layers[0])
    groups = {attribute: role_map.heads_for(attribute) for attribute in role_map.core}
    groups = {attribute: heads for attribute, heads in groups.items() if heads}
    if not groups:
        raise DearError("This role map has no head for any attribute, so there is nothing to check.")
    sets = [pictures for probe in probes for pictures in _search_sets(backbone, contributions, probe)]
    order = [a for a in role_map.core if any(pictures.attribute == a for pictures in sets)]

    def search(heads: Sequence[Head] | None) -> dict[str, float]:
        """The measure of each attribute by these heads (None: by the class feature), over all sets for it."""
        values = {a: [s.measure(heads, contributions) for s in sets if s.attribute == a] for a in order}
        return {a: sum(v * n for v, n in pairs) / sum(n for _, n in pairs) for a, pairs in values.items()}

    searches = []
    with Progress("searches", len(groups) * (1 + draws), "search") as bar:
        for attribute, heads in groups.items():
            rng = Random(attribute)
            rows = []
            for chosen in [heads, *(random_heads(heads, role_map.heads, rng) for _ in range(draws))]:
                rows.append(search(chosen))
                bar.update()
            mean = {a: statistics.fmean(row[a] for row in rows[1:]) for a in order}
            std = {a: statistics.stdev(row[a] for row in rows[1:]) for a in order}
            searches.append(AttributeSearch(attribute, tuple(heads), rows[0], mean, std))
    return CheckResult(
        {a: sum(len(s.codes) for s in sets if s.attribute == a) for a in order},
        {a: ", ".join(s.source for s in sets if s.attribute == a) for a in order},
        search(None),
        tuple(a for a in order if any(s.attribute == a and s.colors is not None for s in sets)),
        tuple(searches),
    )


@dataclass
class _SearchSet:
    """Pictures with the truth about one attribute: a label, or mean a*, b*."""

    attribute: str
    source: str
    codes: Tensor  # on the device of the backbone, [pictures, layers, heads, head_dim + 3]
    features: Tensor  # on the host, as are all others, [pictures, dim]
    labels: Tensor | None = None  # [pictures]
    colors: Tensor | None = None  # [pictures, 2]

    def measure(self, heads: Sequence[Head] | None, contributions: HeadContributions) -> tuple[float, int]:
        """The measure of the nearest by these heads (None: the class feature), and the number of pictures."""
        raw = self.features if heads is None else contributions.sum_of(heads, self.codes).cpu()
        feature = F.normalize(raw - raw.mean(0), dim=-1)
        cosines = (feature @ feature.T).fill_diagonal_(-torch.inf)
        nearest = cosines.topk(NEAREST).indices  # [pictures, NEAREST]
        if self.colors is not None:
            value = (self.colors[nearest] - self.colors[:, None]).norm(dim=-1).mean().item()
        else:
            assert self.labels is not None
            value = 100 * (self.labels[nearest] == self.labels[:, None]).double().mean().item()
        return value, len(self.codes)


def _search_sets(backbone: Backbone, contributions: HeadContributions, probe: Probe) -> list[_SearchSet]:
    """One set per attribute of the probe, from one pass over its pictures."""
    indices, codes, features, colors, colored = [], [], [], [], []
    for batch in picture_batches(probe.pictures.pictures, backbone.preprocess, _BATCH):
        if batch.indices:
            of_batch = contributions.codes_and_feature(batch.pixels.to(backbone.device))
            rgb = to_rgb(backbone, batch.pixels)
            codes.append(of_batch[0])
            features.append(of_batch[1].cpu())
            colors.append(mean_colors(rgb)[:, 1:])
            colored.append(has_color(rgb))
            indices += batch.indices
    if len(indices) <= NEAREST:
        raise DearError(f"{probe.pictures.source} has {len(indices)} readable pictures; a search needs more.")
    source, rows = probe.pictures.source, torch.cat(colored)
    all_codes, all_features = torch.cat(codes), torch.cat(features)
    sets = [
        _SearchSet(attribute, source, all_codes, all_features, labels=torch.tensor(labels)[indices])
        for attribute, labels in probe.labels.items()
    ]
    if probe.by_pixels and rows.sum() > NEAREST:
        sets.append(_SearchSet(COLOR, source, all_codes[rows], all_features[rows], colors=torch.cat(colors)[rows]))
    return sets


def _names(searches: Sequence[AttributeSearch]) -> str:
    return ", ".join(search.attribute for search in searches) or "none"
