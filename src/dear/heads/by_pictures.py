"""Roles by pictures: how much of what each head writes varies with color, shape, texture, object and location.

No text, no phrases, no clustering: one pass over a few hundred pictures. A head's share of an attribute is omega
squared (`shares`). Some attributes move all heads more than others do, so a share is compared with the mean over heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip import Backbone
from dear.core.errors import DearError
from dear.core.names import CORE_ATTRIBUTES
from dear.heads.contributions import HeadContributions
from dear.heads.probes import COLOR, Probe
from dear.heads.shares import GROUPS, AttributeMoments, label_numbers
from dear.heads.stream import HeadBatch, stream_heads
from dear.parallel.cluster import Cluster

RESAMPLES = 100


@dataclass
class HeadMoments:
    """What one pass over the probes measured: for each attribute the moments of all heads."""

    layers: tuple[int, ...]
    moments: dict[str, AttributeMoments] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)  # names of pictures that could not be decoded
    colored: list[int] = field(default_factory=list)  # per probe, the number of pictures measured for color by pixels

    def shares(self, groups: Sequence[int] = range(GROUPS)) -> Tensor:
        """Omega squared, [attributes, layers, heads], in some groups of the pictures."""
        return torch.stack([moments.share(groups) for moments in self.moments.values()])


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
                for index, reason in batch.unreadable:
                    measured.skipped.append(probe.pictures.names[index])
                    print(f"skipped one: {reason}")
                if not batch.indices:
                    continue
                indices = torch.tensor(batch.indices)
                for attribute, labels in probe.labels.items():
                    z = label_numbers(torch.tensor(labels)[indices], max(labels) + 1)
                    moments[attribute].add(z, batch.coordinates, indices % GROUPS)
                if probe.by_pixels:
                    stratum = torch.tensor(_strata(probe))[indices] + sum(strata[:number])
                    measured.colored[number] += _add_colors(moments[COLOR], batch, F.one_hot(stratum, sum(strata)))
    order = [*CORE_ATTRIBUTES, *(attribute for attribute in moments if attribute not in CORE_ATTRIBUTES)]
    measured.moments = {attribute: moments[attribute] for attribute in order if attribute in moments}
    for attribute, of_attribute in measured.moments.items():
        if of_attribute.count < 2 * GROUPS:
            raise DearError(
                f"There are only {of_attribute.count} pictures for {attribute}, and {2 * GROUPS} are needed: "
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
    groups = torch.tensor(batch.indices) % GROUPS
    moments.add(z[batch.colored], batch.coordinates[batch.colored], groups[batch.colored])
    return int(batch.colored.sum())


def lifts(shares: Tensor) -> Tensor:
    """Shares [attributes, layers, heads] divided by their mean over heads; zero where no head has any."""
    mean = shares.mean((1, 2), keepdim=True)
    return torch.where(mean > 0, shares / mean, torch.zeros_like(shares))


def dominant(shares: Tensor) -> Tensor:
    """The attribute in which a head ranks highest among all heads, [attributes, layers, heads] -> [layers, heads].

    Ranks, not lifts: objects move every head of CLIP and color only few, so that many heads have a large lift for color
    and none has one for objects. Of equal ranks the one with the larger lift counts.
    """
    rows = shares.flatten(1)
    below = (rows[:, None, :] < rows[:, :, None]).sum(-1).view_as(shares)  # number of heads with a smaller share
    lift = lifts(shares)
    return (below + lift / (1 + lift)).argmax(0)


def sureness(measured: HeadMoments, resamples: int = RESAMPLES) -> Tensor:
    """Share of resamples in which a head has the same dominant attribute as in all pictures, [layers, heads].

    A resample is a random half of the pictures without replacement: it varies as much as a bootstrap sample, but
    contains no picture twice, which would look like agreement within a label.
    """
    whole = dominant(measured.shares())
    rng = Random("roles")
    halves = [sorted(rng.sample(range(GROUPS), GROUPS // 2)) for _ in range(resamples)]
    return torch.stack([dominant(measured.shares(half)) == whole for half in halves]).double().mean(0)
