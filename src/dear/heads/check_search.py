"""Check of a role map by search: do the heads for an attribute find held-out pictures with the same attribute?

The feature of an attribute is the sum of its heads' contributions, centred, as the class feature is here. Its ten
nearest pictures should share the attribute's label more often than the ten nearest by the class feature, and by as many
random heads of the same layers. Where color is measured by pixels, the measure is the distance of mean a*, b* (CIELAB),
and less is better.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip import Backbone
from dear.core.errors import DearError
from dear.heads.checks import SEARCH, RoleCheck, checked_groups, measured_groups
from dear.heads.contributions import HeadContributions
from dear.heads.pictures import COLOR, Probe
from dear.heads.role_map import Head, RoleMap
from dear.heads.shares import mean_colors
from dear.heads.stream import has_color, picture_batches, to_rgb

NEAREST = 10


def check_by_search(backbone: Backbone, role_map: RoleMap, probes: Sequence[Probe], draws: int = 20) -> RoleCheck:
    """Searches by the heads for each attribute in the pictures of `probes`, which the map should not be made from."""
    groups = checked_groups(role_map, backbone, {a: role_map.heads_for(a) for a in role_map.core})
    contributions = HeadContributions(backbone, role_map.layers[0])
    sets = [pictures for probe in probes for pictures in _search_sets(backbone, contributions, probe)]
    sets_of = {a: of_a for a in role_map.core if (of_a := [pictures for pictures in sets if pictures.attribute == a])}

    def search(heads: Sequence[Head] | None) -> dict[str, float]:
        """The measure of each attribute by these heads (None: by the class feature), over all sets for it."""
        values = {a: [s.measure(heads, contributions) for s in of_a] for a, of_a in sets_of.items()}
        return {a: sum(v * n for v, n in pairs) / sum(n for _, n in pairs) for a, pairs in values.items()}

    return RoleCheck(
        SEARCH,
        {a: sum(len(s.codes) for s in of_a) for a, of_a in sets_of.items()},
        {a: ", ".join(s.source for s in of_a) for a, of_a in sets_of.items()},
        draws,
        search(None),
        measured_groups(groups, role_map.heads, draws, search, "searches"),
        tuple(a for a, of_a in sets_of.items() if any(s.colors is not None for s in of_a)),
        NEAREST,
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
    for batch in picture_batches(probe.pictures.pictures, backbone.preprocess):
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
