"""Roles by pictures: how much of what each head writes varies with color, shape, texture, object and location.

No text, no phrases, no clustering: one pass over a few hundred pictures. A head's share of an attribute is omega
squared (`shares`). Some attributes move all heads more than others do, so a share is compared with the mean over heads.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip import Backbone
from dear.core.errors import DearError
from dear.core.names import CORE_ATTRIBUTES
from dear.core.version import __version__
from dear.heads.contributions import HeadContributions
from dear.heads.pictures import COLOR, Probe
from dear.heads.role_map import RoleMap
from dear.heads.rules import RESAMPLES, entropy_thresholds, judge_shares
from dear.heads.shares import PICTURE_GROUPS, AttributeMoments, HeadMoments, label_numbers
from dear.heads.stream import HeadBatch, stream_heads
from dear.parallel.cluster import Cluster


def roles_by_pictures(
    backbone: Backbone,
    probes: Sequence[Probe],
    *,
    first_layer: int | None = None,
    core: Sequence[str] = CORE_ATTRIBUTES,
    quantile: float | None = None,
    cluster: Cluster | None = None,
) -> RoleMap:
    """Judges every head from `first_layer` on (default: the last third); `judge_shares` explains the rule."""
    if quantile is not None:
        entropy_thresholds([], quantile)  # refuses a bad quantile before the long pass
    probed = {attribute for probe in probes for attribute in probe.attributes}
    if missing := [attribute for attribute in core if attribute not in probed]:
        raise DearError(f"There is no probe for {missing[0]}: add one with --probe {missing[0]}=DATA.")
    measured = measure(backbone, probes, first_layer, cluster)
    origin: dict[str, Any] = {
        "made_by": f"dear {__version__}",
        "by": "pictures",
        "probes": [probe.about(count > 0) for probe, count in zip(probes, measured.colored, strict=True)],
        "skipped_images": measured.skipped,
        "resamples": RESAMPLES,
        "rule": "experts" if quantile is None else "quantile",  # the word that role maps have used from the start
    }
    if quantile is not None:
        origin["quantile"] = quantile
    roles = judge_shares(measured, core, quantile)
    identity, tower = backbone.identity.to_json(), backbone.image
    if measured.outputs is not None:
        means = measured.outputs / measured.pictures
        for (layer, head), role in roles.items():
            mean = (round(number, 4) for number in means[measured.layers.index(layer), head].tolist())
            roles[layer, head] = replace(role, mean=tuple(mean))
    return RoleMap(identity, measured.layers, tower.heads, tuple(measured.moments), tuple(core), roles, origin)


def measure(
    backbone: Backbone, probes: Sequence[Probe], first_layer: int | None = None, cluster: Cluster | None = None
) -> HeadMoments:
    """One pass over all probes; core attributes come first. With a cluster the result is the same to the last digit."""
    contributions = HeadContributions(backbone, first_layer)
    sizes = len(contributions.layers), contributions.tower.heads, contributions.span[1].shape[-2]
    measured = HeadMoments(contributions.layers, colored=[0] * len(probes))
    moments = measured.moments
    # color is measured within each label, so that a head that separates flowers from planes is no color head
    strata = [max(_strata(probe)) + 1 if probe.by_pixels else 0 for probe in probes]
    if any(strata):
        moments[COLOR] = AttributeMoments.empty(sum(strata) + 2, sum(strata), *sizes)
    with stream_heads(backbone, contributions, sum(len(probe.pictures) for probe in probes), cluster) as stream:
        for number, probe in enumerate(probes):
            for attribute, labels in probe.labels.items():
                moments[attribute] = AttributeMoments.empty(max(labels) + 2, 1, *sizes)
            for batch in stream(probe.pictures.pictures, colors=probe.by_pixels):
                measured.skipped += [probe.pictures.names[index] for index in batch.unreadable]
                if not batch.indices:
                    continue
                measured.pictures += len(batch.indices)
                if batch.outputs is not None:
                    measured.outputs = batch.outputs + (0 if measured.outputs is None else measured.outputs)
                indices = torch.tensor(batch.indices)
                for attribute, labels in probe.labels.items():
                    z = label_numbers(torch.tensor(labels)[indices], max(labels) + 1)
                    moments[attribute].add(z, batch.coordinates, indices % PICTURE_GROUPS)
                if probe.by_pixels:
                    stratum = torch.tensor(_strata(probe))[indices] + sum(strata[:number])
                    measured.colored[number] += _add_colors(moments[COLOR], batch, F.one_hot(stratum, sum(strata)))
    order = [*CORE_ATTRIBUTES, *(attribute for attribute in moments if attribute not in CORE_ATTRIBUTES)]
    measured.moments = {attribute: moments[attribute] for attribute in order if attribute in moments}
    for attribute, of_attribute in measured.moments.items():
        if of_attribute.count < 2 * PICTURE_GROUPS:
            raise DearError(
                f"There are only {of_attribute.count} pictures for {attribute}, and {2 * PICTURE_GROUPS} are needed: "
                f"give more with --probe {attribute}=DATA."
            )
    return measured


def _strata(probe: Probe) -> Sequence[int]:
    """The label within which color is measured by pixels, per picture; 0 where the pictures have none."""
    return next(iter(probe.labels.values()), [0] * len(probe.pictures))


def _add_colors(moments: AttributeMoments, batch: HeadBatch, strata: Tensor) -> int:
    """Adds the pictures of a batch that are not grey; strata [pictures, strata] is one-hot. Returns their number."""
    assert batch.colors is not None
    assert batch.colored is not None
    z = torch.cat([strata, batch.colors[:, 1:]], 1)
    groups = torch.tensor(batch.indices) % PICTURE_GROUPS
    moments.add(z[batch.colored], batch.coordinates[batch.colored], groups[batch.colored])
    return int(batch.colored.sum())
