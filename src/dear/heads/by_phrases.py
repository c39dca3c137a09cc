"""From images and phrases to a role map (method.md 1.1-1.5), in one pass over the images that can be interrupted."""

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
from dear.core.errors import DearError
from dear.core.files import parse_json
from dear.core.schema import damaged
from dear.core.tensors import read_tensors, save_tensors
from dear.core.version import __version__
from dear.heads.concepts import Concepts
from dear.heads.contributions import HeadReader
from dear.heads.entropy import CORE_5, entropy_thresholds, judge_heads
from dear.heads.head_role import Phrase
from dear.heads.page import Thumbnails
from dear.heads.picture_list import PictureList
from dear.heads.role_map import Head, RoleMap
from dear.heads.stream import BATCH, Readings, head_readings
from dear.heads.textspan import MomentsByHead, textspan
from dear.parallel.cluster import Cluster

_SAMPLE = 240  # pictures among which those that activate a head most and least are sought
_SHOWN = 6  # of them, on either side
_SAVE_EVERY = 20.0  # seconds


@dataclass(frozen=True)
class Analysis:
    """A role map, and for each head the pictures that activate it most and least, best first, as places in the list."""

    role_map: RoleMap
    extremes: dict[Head, tuple[list[int], list[int]]]


def analyse(
    backbone: Backbone,
    pictures: PictureList,
    phrases: Sequence[str],
    *,
    first_layer: int | None = None,
    core: Sequence[str] = CORE_5,
    quantile: float = 0.2,
    over_core: bool = False,
    sbert: str | Path | None = None,
    checkpoint: Path | None = None,
    cluster: Cluster | None = None,
) -> Analysis:
    """Judges every head from `first_layer` on (default: the last third). `judge_heads` explains the rule.

    What can be refused is refused before the long part. With a `checkpoint` file, an interrupted run goes on where
    it was, and ends in the same role map to the last digit; the caller removes the file when all is written. So it does
    with a cluster, whose workers look at the pictures.
    """
    concepts = Concepts.shipped()
    judge_heads({}, concepts.names, core, quantile)  # refuses a bad core or quantile now, not in an hour
    reader = HeadReader(backbone, first_layer)
    picks = picks_of(reader.tower.head_dim)
    if len(phrases) < picks:
        raise DearError(f"{picks} phrases for each head cannot be picked from {len(phrases)}; give more phrases.")
    texts = encode_phrases(backbone, phrases)
    concept_of = dict(zip(phrases, concepts.assign(phrases, sbert), strict=True))

    seen = _HeadStatistics(reader, pictures, backbone.identity.weights)
    with head_readings(backbone, reader, len(pictures), cluster) as readings:
        seen.run(readings, checkpoint)
    found: dict[Head, list[Phrase]] = {}
    extremes = {}
    for head in ((layer, head) for layer in reader.layers for head in range(reader.tower.heads)):
        in_span = texts @ seen.basis_of(head)  # [phrases, head_dim + 3]
        span = textspan(seen.moments.of(*head), in_span, reader.tower.head_dim, picks)
        picked = [phrases[i] for i in span.indices]
        found[head] = [Phrase(p, v, concept_of[p]) for p, v in zip(picked, span.variance, strict=True)]
        if picked:
            extremes[head] = seen.extremes(head, in_span[span.indices[0]])

    roles = judge_heads(found, concepts.names, core, quantile, over_core)
    thresholds = entropy_thresholds([role.entropy or 0.0 for role in roles.values()], quantile)
    low, high = (value if math.isfinite(value) else None for value in thresholds)
    origin = {
        "made_by": f"dear {__version__}",
        "images": {"source": pictures.source, "used": seen.moments.count, "sha256": pictures.digest},
        "skipped_images": seen.skipped,
        "phrases": {"count": len(phrases), "sha256": hashlib.sha256("\n".join(phrases).encode()).hexdigest()},
        "picks": picks,
        "quantile": quantile,
        "entropy_over": "core" if over_core else "all concepts",
        "thresholds": {"specialised_up_to": low, "generalization_from": high},
    }
    identity = backbone.identity.to_json()
    tower = reader.tower
    return Analysis(RoleMap(identity, reader.layers, tower.heads, concepts.names, tuple(core), roles, origin), extremes)


def picks_of(head_dim: int) -> int:
    """How many phrases describe a head: the paper's 20 for its 64 dimensions, and never more than a third of them.

    Twenty phrases would span all of a head of 20 dimensions: 100% of its variance, whatever it does, and a mix of
    concepts that is that of the phrase list.
    """
    return max(1, min(20, head_dim // 3))


@torch.no_grad()
def encode_phrases(backbone: Backbone, phrases: Sequence[str], batch: int = 512) -> Tensor:
    """Phrases, without a template, as unit rows in float64 on the CPU: [phrases, dim]."""
    parts = [backbone.text.encode(phrases[i : i + batch]) for i in range(0, len(phrases), batch)]
    return F.normalize(torch.cat(parts).cpu().double(), dim=-1)


def thumbnails(analysis: Analysis, pictures: PictureList) -> dict[Head, Thumbnails]:
    """The extreme pictures themselves, small, for the report."""
    small: dict[int, Image.Image] = {}
    for index in {index for sides in analysis.extremes.values() for side in sides for index in side}:
        small[index] = pictures.pictures[index].open()
        small[index].thumbnail((112, 112))
    return {
        head: ([small[i] for i in most], [small[i] for i in least]) for head, (most, least) in analysis.extremes.items()
    }


class _HeadStatistics:
    """All that one pass over the pictures leaves behind; its size does not depend on their number.

    A contribution lies in the span of its head's map, so its coordinates there, [head_dim + 3], say all: the
    moments of ViT-B/16 take 2 MB instead of 100, and TEXTSPAN picks the same.
    """

    def __init__(self, reader: HeadReader, pictures: PictureList, weights: str) -> None:
        self.reader, self.pictures = reader, pictures
        self.basis = reader.span[0]
        heads, width = reader.tower.heads, self.basis.shape[-1]
        self.moments = MomentsByHead(reader.layers, heads, width)
        count = min(_SAMPLE, len(pictures))
        self.sampled = [i * len(pictures) // count for i in range(count)]  # spread evenly
        self.sample = torch.full((count, len(reader.layers), heads, width), math.nan)
        self.skipped: list[str] = []
        self.done = 0
        self.job = json.dumps([weights, pictures.digest, reader.first_layer, BATCH])

    def run(self, readings: Readings, checkpoint: Path | None) -> None:
        if checkpoint is not None and checkpoint.exists():
            self._resume(checkpoint)
        last_save, reason = time.monotonic(), ""  # why an image could not be read
        for reading in readings(self.pictures.pictures, self.done):
            if reading.indices:
                self.add(reading.indices, reading.coordinates)
            for index, reason in reading.bad:
                self.skipped.append(self.pictures.names[index])
                print(f"skipped one: {reason}")
            self.done += len(reading.indices) + len(reading.bad)
            if checkpoint is not None and time.monotonic() - last_save > _SAVE_EVERY:
                self._save(checkpoint)
                last_save = time.monotonic()
        if self.moments.count < 2:
            sentence = f"Heads can't be judged by {self.moments.count} images; give at least two that can be read."
            raise DearError(f"{sentence} {reason}".strip())
        if checkpoint is not None:
            self._save(checkpoint)  # should a later step fail, the pass is not lost

    def add(self, indices: Sequence[int], coordinates: Tensor) -> None:
        """What heads write about the pictures at these places of the list, [len(indices), layers, heads, width]."""
        self.moments.update(coordinates)
        for row, index in enumerate(indices):
            if index in self.sampled:
                self.sample[self.sampled.index(index)] = coordinates[row].float()

    def basis_of(self, head: Head) -> Tensor:
        """[dim, coordinates], orthonormal columns."""
        return self.basis[self.reader.layers.index(head[0]), head[1]]

    def extremes(self, head: Head, phrase: Tensor) -> tuple[list[int], list[int]]:
        """The sampled pictures in which the head writes most, and least, along `phrase` [coordinates]."""
        scores = self.sample[:, self.reader.layers.index(head[0]), head[1]].double() @ phrase
        order = [i for i in scores.argsort(descending=True, stable=True).tolist() if not scores[i].isnan()]
        ranked = [self.sampled[i] for i in order]
        shown = min(_SHOWN, len(ranked) // 2)
        return ranked[:shown], ranked[::-1][:shown]

    def _save(self, path: Path) -> None:
        state = {**self.moments.state_dict(), "sample": self.sample}
        about = {"job": self.job, "done": str(self.done), "skipped": json.dumps(self.skipped)}
        save_tensors(path, state, about)

    def _resume(self, path: Path) -> None:
        """From a file that is damaged or of another job nothing is taken."""
        try:
            with damaged(str(path), "it will be made again"):
                state, about = read_tensors(path)
                done, skipped = int(about["done"]), parse_json(about["skipped"])
                same = about["job"] == self.job and 0 <= done <= len(self.pictures)
                if same and state["sample"].shape == self.sample.shape:
                    self.moments.load_state_dict(state)
                    self.sample.copy_(state["sample"])
                    self.done, self.skipped = done, skipped
        except DearError:
            print(f"{path} can't be read: starting anew.")
            return
        if not same:
            print(f"{path} is of another backbone or other images: starting anew.")
            return
        print(f"{self.done} of {len(self.pictures)} images are in {path} already: going on behind them.")
