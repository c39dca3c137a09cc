"""Roles by phrases (method.md 1.1-1.5): from images and phrases to a role map, in one pass that can be interrupted."""

import hashlib
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from dear.clip import Backbone
from dear.core.errors import DearError, warn
from dear.core.files import parse_json
from dear.core.names import CORE_ATTRIBUTES
from dear.core.schema import damaged
from dear.core.tensors import read_tensors, save_tensors
from dear.core.version import __version__
from dear.heads.concepts import Concepts
from dear.heads.contributions import HeadContributions
from dear.heads.head_role import Phrase
from dear.heads.page import THUMBNAIL, Thumbnails
from dear.heads.pictures import PictureList
from dear.heads.role_map import Head, RoleMap
from dear.heads.rules import entropy_thresholds, judge_heads
from dear.heads.stream import STREAM_BATCH, HeadStream, stream_heads
from dear.heads.textspan import RunningMoments, textspan
from dear.parallel.cluster import Cluster

_SAMPLED = 240  # pictures from which those that activate a head most and least are chosen
EXTREMES = 6  # pictures that activate a head most, and as many that activate it least
_SAVE_EVERY = 20.0  # seconds


@dataclass(frozen=True)
class Analysis:
    """A role map, and for each head the indices of the pictures that activate it most and least, best first."""

    role_map: RoleMap
    extremes: dict[Head, tuple[list[int], list[int]]]


def roles_by_phrases(
    backbone: Backbone,
    pictures: PictureList,
    phrases: Sequence[str],
    *,
    first_layer: int | None = None,
    core: Sequence[str] = CORE_ATTRIBUTES,
    quantile: float = 0.2,
    over_core: bool = False,
    sbert: str | Path | None = None,
    checkpoint: Path | None = None,
    cluster: Cluster | None = None,
) -> Analysis:
    """Judges every head from `first_layer` on (default: the last third). `judge_heads` explains the rule.

    Bad input is refused before the long pass. With a `checkpoint` file, an interrupted run continues where it stopped
    and ends in the same role map to the last digit; the caller removes the file after writing the map. A cluster, whose
    workers encode the pictures, gives the same digits, too.
    """
    concepts = Concepts.shipped()
    judge_heads({}, concepts.names, core, quantile)  # refuses a bad core or quantile before the long pass
    contributions = HeadContributions(backbone, first_layer)
    tower, layers = contributions.tower, contributions.layers
    picks = picks_of(tower.head_dim)
    if len(phrases) < picks:
        raise DearError(f"{picks} phrases for each head cannot be picked from {len(phrases)}; give more phrases.")
    texts = encode_phrases(backbone, phrases)
    concept_of = dict(zip(phrases, concepts.assign(phrases, sbert), strict=True))

    statistics = _HeadStatistics(contributions, pictures, backbone.identity.weights)
    with stream_heads(backbone, contributions, len(pictures), cluster) as stream:
        statistics.run(stream, checkpoint)
    phrases_of: dict[Head, list[Phrase]] = {}
    extremes = {}
    for head in ((layer, head) for layer in layers for head in range(tower.heads)):
        in_span = texts @ statistics.basis_of(head)  # [phrases, head_dim + 3]
        moments = statistics.moments.of(*head)
        span = textspan(moments, in_span, contributions.rank(moments.outer), picks)
        picked = [phrases[i] for i in span.indices]
        phrases_of[head] = [Phrase(p, v, concept_of[p]) for p, v in zip(picked, span.variance, strict=True)]
        if picked:
            extremes[head] = statistics.extremes(head, in_span[span.indices[0]])

    roles = judge_heads(phrases_of, concepts.names, core, quantile, over_core)
    thresholds = entropy_thresholds([role.entropy or 0.0 for role in roles.values()], quantile)
    low, high = (value if math.isfinite(value) else None for value in thresholds)
    origin = {
        "made_by": f"dear {__version__}",
        "images": {"source": pictures.source, "used": statistics.moments.count, "sha256": pictures.digest},
        "skipped_images": statistics.skipped,
        "phrases": {"count": len(phrases), "sha256": hashlib.sha256("\n".join(phrases).encode()).hexdigest()},
        "picks": picks,
        "quantile": quantile,
        "entropy_over": "core" if over_core else "all concepts",
        "thresholds": {"specialised_up_to": low, "generalization_from": high},
    }
    identity = backbone.identity.to_json()
    return Analysis(RoleMap(identity, layers, tower.heads, concepts.names, tuple(core), roles, origin), extremes)


def picks_of(head_dim: int) -> int:
    """Number of phrases that describe a head: the paper's 20 for 64 dimensions, and at most a third of the dimensions.

    Twenty phrases would span a head of 20 dimensions completely: 100% of its variance, whatever it does, and the mix of
    concepts of the phrase list.
    """
    return max(1, min(20, head_dim // 3))


@torch.no_grad()
def encode_phrases(backbone: Backbone, phrases: Sequence[str], batch: int = 512) -> Tensor:
    """Phrases, without a template, as unit rows in float64 on the CPU: [phrases, dim]."""
    parts = [backbone.text.encode(phrases[i : i + batch]) for i in range(0, len(phrases), batch)]
    return F.normalize(torch.cat(parts).cpu().double(), dim=-1)


def both_ends(scores: Tensor) -> tuple[list[int], list[int]]:
    """Indices of the highest and of the lowest scores, as many of each, the most extreme first; NaN is left out."""
    order = [i for i in scores.argsort(descending=True, stable=True).tolist() if not scores[i].isnan()]
    count = min(EXTREMES, len(order) // 2)
    return order[:count], order[::-1][:count]


def thumbnails(analysis: Analysis, pictures: PictureList) -> dict[Head, Thumbnails]:
    """Thumbnails of the extreme pictures, for the page."""
    images: dict[int, Image.Image] = {}
    for index in {index for sides in analysis.extremes.values() for side in sides for index in side}:
        images[index] = pictures.pictures[index].open()
        images[index].thumbnail((THUMBNAIL, THUMBNAIL))
    return {
        head: ([images[i] for i in most], [images[i] for i in least])
        for head, (most, least) in analysis.extremes.items()
    }


class _HeadStatistics:
    """Running statistics of one pass over the pictures; their size does not depend on the number of pictures.

    A contribution lies in the span of its head's map, so it is stored as head_dim + 3 coordinates: the moments of
    ViT-B/16 take 2 MB instead of 100, and TEXTSPAN picks the same phrases.
    """

    def __init__(self, contributions: HeadContributions, pictures: PictureList, weights: str) -> None:
        self.layers, self.pictures = contributions.layers, pictures
        self.basis = contributions.span[0]
        heads, width = contributions.tower.heads, self.basis.shape[-1]
        self.moments = RunningMoments(self.layers, heads, width)
        count = min(_SAMPLED, len(pictures))
        self.sampled = [i * len(pictures) // count for i in range(count)]  # indices of the sample, spread evenly
        self.sample = torch.full((count, len(self.layers), heads, width), math.nan)
        self.skipped: list[str] = []
        self.done = 0
        self.job = json.dumps([weights, pictures.digest, contributions.first_layer, STREAM_BATCH])

    def run(self, stream: HeadStream, checkpoint: Path | None) -> None:
        """Runs the pass, from the checkpoint on if there is one."""
        if checkpoint is not None and checkpoint.exists():
            self._resume(checkpoint)
        last_save, reason = time.monotonic(), ""  # reason: why an image could not be read
        for batch in stream(self.pictures.pictures, self.done):
            if batch.indices:
                self.add(batch.indices, batch.coordinates)
            self.skipped += [self.pictures.names[index] for index in batch.unreadable]
            *_, reason = reason, *batch.unreadable.values()
            self.done += len(batch.indices) + len(batch.unreadable)
            if checkpoint is not None and time.monotonic() - last_save > _SAVE_EVERY:
                self._save(checkpoint)
                last_save = time.monotonic()
        if self.moments.count < 2:
            sentence = f"Heads can't be judged by {self.moments.count} images; give at least two readable ones."
            raise DearError(f"{sentence} {reason}".strip())
        if checkpoint is not None:
            self._save(checkpoint)  # so that the pass is not lost if a later step fails

    def add(self, indices: Sequence[int], coordinates: Tensor) -> None:
        """Adds the coordinates of the pictures `indices`, [len(indices), layers, heads, width]."""
        self.moments.update(coordinates)
        for row, index in enumerate(indices):
            if index in self.sampled:
                self.sample[self.sampled.index(index)] = coordinates[row].float()

    def basis_of(self, head: Head) -> Tensor:
        """Basis of the span of a head: [dim, width], orthonormal columns."""
        return self.basis[self.layers.index(head[0]), head[1]]

    def extremes(self, head: Head, phrase: Tensor) -> tuple[list[int], list[int]]:
        """The sampled pictures in which the head writes most, and least, along `phrase` [width]."""
        scores = self.sample[:, self.layers.index(head[0]), head[1]].double() @ phrase
        most, least = both_ends(scores)
        return [self.sampled[i] for i in most], [self.sampled[i] for i in least]

    def _save(self, path: Path) -> None:
        state = {**self.moments.state_dict(), "sample": self.sample}
        about = {"job": self.job, "done": str(self.done), "skipped": json.dumps(self.skipped)}
        save_tensors(path, state, about)

    def _resume(self, path: Path) -> None:
        """Restores a checkpoint; one that is damaged or of another job is ignored."""
        try:
            with damaged(str(path), again := "it will be made again"):
                state, about = read_tensors(path, again)
                done, skipped = int(about["done"]), parse_json(about["skipped"])
                same = about["job"] == self.job and 0 <= done <= len(self.pictures)
                if same and state["sample"].shape == self.sample.shape:
                    self.moments.load_state_dict(state)
                    self.sample.copy_(state["sample"])
                    self.done, self.skipped = done, skipped
        except DearError:
            warn(f"{path} can't be read: starting again.")
            return
        if not same:
            warn(f"{path} belongs to another backbone or other images: starting again.")
            return
        print(f"continuing after {self.done} of {len(self.pictures)} images from {path}.")
