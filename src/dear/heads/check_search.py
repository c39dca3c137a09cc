"""Is a role map true? Search held-out pictures by what an attribute's heads write, and see what is alike in them.

The feature of an attribute is the sum of what its heads write, centred, as the class feature is here. Its ten nearest
pictures should share the attribute's label more often than the ten nearest by the class feature, and than by as many
random heads of the same layers. Where color is told by pixels, the distance of mean a*, b* (CIELAB) is measured
instead, and less is better.
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
from dear.heads.contributions import HeadReader
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
    """What is found by the heads of one attribute: for each attribute its measure, and that of random heads."""

    attribute: str
    heads: tuple[Head, ...]
    found: Mapping[str, float]
    random_mean: Mapping[str, float]
    random_std: Mapping[str, float]


@dataclass(frozen=True)
class CheckResult:
    """`by_class`: what the class feature finds; `by_distance`: attributes of which less is better."""

    pictures: Mapping[str, int]
    sources: Mapping[str, str]
    by_class: Mapping[str, float]
    by_distance: tuple[str, ...]
    searches: tuple[AttributeSearch, ...]

    def to_json(self) -> dict[str, Any]:
        measure = f"share of the {NEAREST} nearest with the same label in %; by_distance: mean a*b* distance"
        return {"measure": measure, "draws": DRAWS, **asdict(self)}

    def gain(self, search: AttributeSearch, attribute: str, over: Mapping[str, float]) -> float:
        """How much better than `over`; positive is better, also where less is."""
        gain = search.found[attribute] - over[attribute]
        return -gain if attribute in self.by_distance else gain

    def table(self) -> Table:
        """A row for each feature searched by, a column an attribute; in parentheses as many random heads."""
        shown = [f"{a} (a*b* distance)" if a in self.by_distance else f"same {a} (%)" for a in self.by_class]
        table = Table(["searched by", "heads", *shown])
        table.add(CLASS, None, *(f"{value:.1f}" for value in self.by_class.values()))
        for s in self.searches:
            cells = [f"{s.found[a]:.1f} ({s.random_mean[a]:.1f} ± {s.random_std[a]:.1f})" for a in self.by_class]
            table.add(f"{s.attribute} heads", len(s.heads), *cells)
        return table

    def verdict(self) -> str:
        """Which attributes are found best by their own heads, in a few sentences."""
        own = [s for s in self.searches if s.attribute in self.by_class]
        beyond = [s for s in own if self.gain(s, s.attribute, s.random_mean) > 2 * s.random_std[s.attribute]]
        better = [s for s in own if self.gain(s, s.attribute, self.by_class) > 0]
        best = [s for s in own if all(self.gain(s, s.attribute, o.found) > 0 for o in own if o is not s)]
        of = len(self.by_class)
        lines = [
            f"Their own heads find these more than two std better than random heads: {_named(beyond)};",
            f"better than the class feature: {_named(better)};",
            f"and better than the heads of any other attribute: {_named(best)} ({len(best)} of {of}).",
        ]
        if missing := [a for a in self.by_class if a not in {s.attribute for s in own}]:
            lines.append(f"No head is an expert in {', '.join(missing)}.")
        return " ".join(lines)


def check_by_search(backbone: Backbone, role_map: RoleMap, probes: Sequence[Probe], draws: int = DRAWS) -> CheckResult:
    """Searches by the experts of each attribute among the pictures of `probes`, which should not have made the map."""
    tower = backbone.image
    role_map.check_backbone(backbone.identity.to_json(), tower.layers, tower.heads)
    reader = HeadReader(backbone, role_map.layers[0])
    groups = {attribute: role_map.heads_for(attribute) for attribute in role_map.core}
    groups = {attribute: heads for attribute, heads in groups.items() if heads}
    if not groups:
        raise DearError("No head of this role map is an expert in anything, so there is nothing to check.")
    grounds = [ground for probe in probes for ground in _grounds(backbone, reader, probe)]
    order = [a for a in role_map.core if any(ground.attribute == a for ground in grounds)]

    def look(heads: Sequence[Head] | None) -> dict[str, float]:
        """What these heads find (None: the class feature), for each attribute over all sets that tell about it."""
        values = {a: [g.found_by(heads, reader) for g in grounds if g.attribute == a] for a in order}
        return {a: sum(v * n for v, n in pairs) / sum(n for _, n in pairs) for a, pairs in values.items()}

    searches = []
    with Progress("searches", len(groups) * (1 + draws), "search") as bar:
        for attribute, heads in groups.items():
            rng = Random(attribute)
            rows = []
            for chosen in [heads, *(random_heads(heads, role_map.heads, rng) for _ in range(draws))]:
                rows.append(look(chosen))
                bar.update()
            mean = {a: statistics.fmean(row[a] for row in rows[1:]) for a in order}
            std = {a: statistics.stdev(row[a] for row in rows[1:]) for a in order}
            searches.append(AttributeSearch(attribute, tuple(heads), rows[0], mean, std))
    return CheckResult(
        {a: sum(len(g.codes) for g in grounds if g.attribute == a) for a in order},
        {a: ", ".join(g.source for g in grounds if g.attribute == a) for a in order},
        look(None),
        tuple(a for a in order if any(g.attribute == a and g.colors is not None for g in grounds)),
        tuple(searches),
    )


@dataclass
class _Ground:
    """Pictures that tell about one attribute: by a label, or by mean a*, b*."""

    attribute: str
    source: str
    codes: Tensor  # [pictures, layers, heads, head_dim + 3]
    features: Tensor  # [pictures, dim]
    labels: Tensor | None = None  # [pictures]
    colors: Tensor | None = None  # [pictures, 2]

    def found_by(self, heads: Sequence[Head] | None, reader: HeadReader) -> tuple[float, int]:
        """The measure of the nearest by these heads (None: the class feature), and the number of pictures."""
        written = self.features if heads is None else reader.sum_of(heads, self.codes)
        feature = F.normalize(written - written.mean(0), dim=-1)
        cosines = (feature @ feature.T).fill_diagonal_(-torch.inf)
        nearest = cosines.topk(NEAREST).indices  # [pictures, NEAREST]
        if self.colors is not None:
            value = (self.colors[nearest] - self.colors[:, None]).norm(dim=-1).mean().item()
        else:
            assert self.labels is not None
            value = 100 * (self.labels[nearest] == self.labels[:, None]).double().mean().item()
        return value, len(self.codes)


def _grounds(backbone: Backbone, reader: HeadReader, probe: Probe) -> list[_Ground]:
    places, codes, features, colors, told = [], [], [], [], []
    for batch in picture_batches(probe.pictures.pictures, backbone.preprocess, _BATCH):
        if batch.indices:
            of_batch = reader.read(batch.pixels.to(backbone.device))
            rgb = to_rgb(backbone, batch.pixels)
            codes.append(of_batch[0].cpu())
            features.append(of_batch[1].cpu())
            colors.append(mean_colors(rgb)[:, 1:])
            told.append(has_color(rgb))
            places += batch.indices
    if len(places) <= NEAREST:
        raise DearError(f"{probe.pictures.source} has {len(places)} pictures that can be read; searching needs more.")
    all_codes, all_features, colored = torch.cat(codes), torch.cat(features), torch.cat(told)
    found = []
    for attribute, labels in probe.labels.items():
        of_pictures = torch.tensor(labels)[places]
        found.append(_Ground(attribute, probe.pictures.source, all_codes, all_features, labels=of_pictures))
    if probe.by_pixels and colored.sum() > NEAREST:
        parts = all_codes[colored], all_features[colored]
        found.append(_Ground(COLOR, probe.pictures.source, *parts, colors=torch.cat(colors)[colored]))
    return found


def _named(searches: Sequence[AttributeSearch]) -> str:
    return ", ".join(search.attribute for search in searches) or "none"
