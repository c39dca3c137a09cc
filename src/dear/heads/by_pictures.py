"""Roles by pictures: how much of what each head writes goes with color, shape, texture, object and location.

No text, no phrases, no clustering: one pass over a few hundred pictures. A head's share of an attribute is omega
squared (`shares`). Attributes differ in how much they move any head, so shares are compared with the mean over heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip import Backbone
from dear.core.errors import DearError
from dear.heads.contributions import HeadReader
from dear.heads.entropy import CORE_5
from dear.heads.probes import COLOR, Probe
from dear.heads.shares import GROUPS, Moments, label_numbers
from dear.heads.stream import head_readings
from dear.parallel.cluster import Cluster

RESAMPLES = 100


@dataclass
class HeadMoments:
    """Moments of each attribute, and the pictures that could not be read."""

    layers: tuple[int, ...]
    moments: dict[str, Moments] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    colored: list[int] = field(default_factory=list)  # of each probe, the pictures whose pixels tell color

    def shares(self, groups: Sequence[int] = range(GROUPS)) -> Tensor:
        """Omega squared, [attributes, layers, heads], in some groups of the pictures."""
        return torch.stack([moments.share(groups) for moments in self.moments.values()])


def measure(
    backbone: Backbone, probes: Sequence[Probe], first_layer: int | None = None, cluster: Cluster | None = None
) -> HeadMoments:
    """One pass over all probes; attributes in the order of the core, then others. A cluster changes no digit of it."""
    reader = HeadReader(backbone, first_layer)
    sizes = len(reader.layers), reader.tower.heads, reader.span[1].shape[-2]
    found = HeadMoments(reader.layers)
    # color is asked for within a label, so that a head that tells flowers from planes does not pass for a color head
    strata = [max(_labels(probe)) + 1 if probe.by_pixels else 0 for probe in probes]
    if any(strata):
        found.moments[COLOR] = Moments.empty(sum(strata) + 2, sum(strata), *sizes)
    found.colored = [0] * len(probes)
    with head_readings(backbone, reader, sum(len(probe.pictures) for probe in probes), cluster) as readings:
        for number, probe in enumerate(probes):
            for attribute, labels in probe.labels.items():
                found.moments[attribute] = Moments.empty(max(labels) + 2, 1, *sizes)
            for reading in readings(probe.pictures.pictures, colors=probe.by_pixels):
                for index, reason in reading.bad:
                    found.skipped.append(probe.pictures.names[index])
                    print(f"skipped one: {reason}")
                if not reading.indices:
                    continue
                x, places = reading.coordinates, torch.tensor(reading.indices)
                for attribute, labels in probe.labels.items():
                    z = label_numbers(torch.tensor(labels)[places], max(labels) + 1)
                    found.moments[attribute].add(z, x, places % GROUPS)
                if reading.colors is not None and reading.colored is not None:
                    colored = reading.colored
                    stratum = torch.tensor(_labels(probe))[places] + sum(strata[:number])
                    z = torch.cat([F.one_hot(stratum, sum(strata)), reading.colors[:, 1:]], 1)
                    found.colored[number] += int(colored.sum())
                    found.moments[COLOR].add(z[colored], x[colored], (places % GROUPS)[colored])
    order = [*CORE_5, *(attribute for attribute in found.moments if attribute not in CORE_5)]
    found.moments = {attribute: found.moments[attribute] for attribute in order if attribute in found.moments}
    for attribute, moments in found.moments.items():
        if moments.count < 2 * GROUPS:
            raise DearError(
                f"Only {moments.count} pictures tell about {attribute}, and {2 * GROUPS} are needed: "
                f"give more with --probe {attribute}=DATA."
            )
    return found


def _labels(probe: Probe) -> Sequence[int]:
    """What is given of its pictures when color is told by pixels: their label, if they have one."""
    return next(iter(probe.labels.values()), [0] * len(probe.pictures))


def lifts(shares: Tensor) -> Tensor:
    """Shares [attributes, layers, heads] over their mean over heads; zero where no head has any."""
    mean = shares.mean((1, 2), keepdim=True)
    return torch.where(mean > 0, shares / mean, torch.zeros_like(shares))


def dominant(shares: Tensor) -> Tensor:
    """The attribute in which a head ranks highest among all heads, [attributes, layers, heads] -> [layers, heads].

    Ranks, not lifts: objects move every head of CLIP and color few, so that the lifts of color are large in many heads
    and those of objects in none. Of equal ranks the one with the larger lift counts.
    """
    rows = shares.flatten(1)
    below = (rows[:, None, :] < rows[:, :, None]).sum(-1).view_as(shares)  # heads that have less
    lift = lifts(shares)
    return (below + lift / (1 + lift)).argmax(0)


def sureness(measured: HeadMoments, resamples: int = RESAMPLES) -> Tensor:
    """In what share of resamples each head is about the same attribute as in all pictures, [layers, heads].

    A resample is a random half of the pictures, without putting back: it varies as much as a bootstrap's, and no
    picture is in it twice, which would look like agreement within a label.
    """
    whole = dominant(measured.shares())
    rng = Random("roles")
    halves = [sorted(rng.sample(range(GROUPS), GROUPS // 2)) for _ in range(resamples)]
    return torch.stack([dominant(measured.shares(half)) == whole for half in halves]).double().mean(0)
