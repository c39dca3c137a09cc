"""Search: candidates of each component asked for, then an exact ranking by the weighted mean of their cosines."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from torch import Tensor

from dear.errors import DearError
from dear.gallery.ann import nearest, unindexed
from dear.gallery.columns import as_matrix, vector_column

if TYPE_CHECKING:
    from dear.gallery.store import Gallery
    from dear.predictor import Predictor

# How many times k are taken of each component. What is best in the mean of several may be far down in each of them.
_OF_ONE, _OF_SEVERAL = 20, 100


@dataclass(frozen=True)
class Hit:
    path: str
    label: str | None
    score: float  # the weighted mean of `scores`
    scores: dict[str, float]  # the cosine of each component that was asked for

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def parse_by(text: str, components: Sequence[str]) -> dict[str, float]:
    """ "color=0.7,shape=0.3" -> {"color": 0.7, "shape": 0.3}; a component without a number counts 1."""
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, given, number = (piece.strip() for piece in part.partition("="))
        if name not in components:
            raise DearError(f"There is no component {name!r} to search by: choose from {', '.join(components)}.")
        try:
            weights[name] = float(number) if given else 1.0
        except ValueError:
            raise DearError(f"The weight of {name} must be a number, not {number!r}.") from None
    return weights


def query_of_image(predictor: "Predictor", image: "str | Path | Image.Image") -> dict[str, Tensor]:
    """The features [dim] of one image, of each component."""
    return {name: values[0].cpu() for name, values in predictor.encode_image([image]).items()}


def query_of_text(predictor: "Predictor", text: str) -> dict[str, Tensor]:
    """The adapted feature [dim] of a sentence, the same for every component: training aligns them all to it."""
    feature = predictor.encode_text([text])[0].cpu()
    return dict.fromkeys(predictor.model.components, feature)


def find(
    gallery: "Gallery",
    query: "Mapping[str, np.ndarray | Tensor]",
    weights: Mapping[str, float],
    k: int,
    where: str | None,
) -> list[Hit]:
    """See `Gallery.search`."""
    shares = _shares(gallery.components, weights)
    if k < 1:
        raise DearError(f"{k} images cannot be found: ask for at least one.")
    wanted = {name: _unit(query, name, gallery.dim) for name in shares}
    hits: dict[str, Hit] = {}
    try:
        for part in _candidates(gallery, wanted, k, where):
            for hit in _rank(part, wanted, shares, k):
                hits[hit.path] = hit
    except (OSError, RuntimeError, ValueError) as error:
        # LanceDB names the place in its own source behind the reason.
        reason = " ".join(str(error).split()).removeprefix("Invalid input, ").split(", /")[0].rstrip(".")[:200]
        if where is None:
            raise DearError(f"The gallery {gallery.folder} cannot be searched: {reason}.") from error
        raise DearError(
            f"The filter {where!r} does not work ({reason}): write SQL on path, size and label, such as label = 'cat'."
        ) from None
    return sorted(hits.values(), key=lambda hit: (-hit.score, hit.path))[:k]


def _rank(part: Any, wanted: Mapping[str, np.ndarray], shares: Mapping[str, float], k: int) -> list[Hit]:
    """The best k of an Arrow batch, by the vectors stored there."""
    cosines = {name: as_matrix(part[vector_column(name)], len(vector)) @ vector for name, vector in wanted.items()}
    scores = np.sum([share * cosines[name] for name, share in shares.items()], axis=0)
    best = np.argsort(-scores, kind="stable")[:k].tolist()
    paths, labels = part["path"].take(best).to_pylist(), part["label"].take(best).to_pylist()
    return [
        Hit(path, label, float(scores[i]), {name: float(values[i]) for name, values in cosines.items()})
        for i, path, label in zip(best, paths, labels, strict=True)
    ]


def _candidates(gallery: "Gallery", wanted: Mapping[str, np.ndarray], k: int, where: str | None) -> Iterator[Any]:
    """Arrow batches with what is to be ranked: every image while there is no index, else the nearest by each."""
    columns = ["path", "label", *map(vector_column, wanted)]
    if any(unindexed(gallery.table, vector_column(name)) == 1 for name in wanted):
        everything = gallery.table.search().select(columns)
        yield from (everything if where is None else everything.where(where)).to_batches()
        return
    count = k * (_OF_ONE if len(wanted) == 1 else _OF_SEVERAL)
    for name, vector in wanted.items():
        yield nearest(gallery.table, vector_column(name), vector, count, columns, where)


def _shares(components: Sequence[str], weights: Mapping[str, float]) -> dict[str, float]:
    """Weights that sum to one, without those that are zero."""
    for name, weight in weights.items():
        if name not in components:
            raise DearError(f"There is no component {name!r} to search by: choose from {', '.join(components)}.")
        if not (math.isfinite(weight) and weight >= 0):
            raise DearError(f"The weight of {name} must be a number from 0 on, not {weight}.")
    total = sum(weights.values())
    if not total:
        raise DearError("All weights are zero: give one of them a positive number.")
    return {name: weight / total for name, weight in weights.items() if weight}


def _unit(query: "Mapping[str, np.ndarray | Tensor]", name: str, dim: int) -> np.ndarray:
    """The query's vector [dim] of a component, of length one."""
    if name not in query:
        raise DearError(f"The query has no vector of {name}.")
    given = query[name]
    vector = np.asarray(given.detach().float().cpu() if isinstance(given, Tensor) else given, dtype=np.float32)
    if vector.shape != (dim,):
        raise DearError(f"The query's vector of {name} must have {dim} numbers, not the shape {vector.shape}.")
    return vector / max(float(np.linalg.norm(vector)), 1e-12)
