"""Search: an approximate scan over all vectors in memory, then an exact ranking of the best.

The scan reads one byte per number. At 100,000 images a search takes 0.3 to 0.6 of the CPU time of one over float32
vectors and a quarter of the memory, needs no index to build, and serves every choice of weights alike
(`benchmarks/gallery.py` measures it).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dear.core.errors import DearError
from dear.core.progress import progress
from dear.data.dataset import Picture
from dear.gallery.encoders import ENCODE_BATCH, Encoder
from dear.gallery.storage import AGAIN, reason_of_lance, to_matrix, vector_column

if TYPE_CHECKING:
    from dear.gallery.gallery import Gallery

_TRIES, _MAX_WEIGHT = 5, 1_000_000
_LEVELS = 127
_CHANGED = "its rows changed while they were read"


@dataclass(frozen=True)
class Hit:
    path: str
    label: str | None
    score: float  # the weighted mean of `scores`
    scores: dict[str, float]  # the cosine of each weighted component

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors [n, dim] at length one; a zero vector stays zero."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


# --- vectors in memory --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Codes:
    """One component of all images as int8: unit(stored - shift) is about origin + steps * levels.

    Either shift or origin is the mean of the stored vectors, the other is zero. Images have much in common, so the
    difference from the origin is short, and one byte per number resolves it even where all vectors are alike.
    """

    shift: np.ndarray  # [dim], the mean, for a component that is compared after subtracting it
    origin: np.ndarray  # [dim], the mean, for the others
    levels: np.ndarray  # [images, dim], int8
    steps: np.ndarray  # [images]
    along: np.ndarray  # [images], the product of (vector - origin) with the origin

    def exact(self, stored: np.ndarray) -> np.ndarray:
        """Stored vectors [n, dim] -> the unit vectors that are compared."""
        return unit(stored - self.shift)

    def cosines(self, query: np.ndarray) -> np.ndarray:
        """A unit vector [dim] -> its approximate cosine to each image, [images]."""
        import numkong

        levels, steps = quantise((query - self.origin)[None])
        products = np.asarray(numkong.cdist(levels, self.levels, "dot", out_dtype="float32"))[0]
        products *= self.steps * steps[0]
        return products + (self.along + query @ self.origin)


def quantise(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Vectors [n, dim] -> integers from -127 to 127 [n, dim], and the size of one step [n]."""
    steps = np.maximum(np.abs(vectors).max(1), 1e-12) / _LEVELS
    return np.rint(vectors / steps[:, None]).astype(np.int8), steps


class Snapshot:
    """One version of a table: the ids of its rows, and the codes of the components that were searched so far."""

    def __init__(self, table: Any, dim: int, centred: Collection[str]) -> None:
        self.table, self.dim, self.centred = table, dim, centred
        self.version = table.version
        self.ids = self._find_ids(table.search())
        self._codes: dict[str, Codes] = {}
        self._lock = Lock()

    def is_current(self) -> bool:
        return self.table.version == self.version

    def codes(self, component: str) -> Codes:
        """The codes of a component, read once in two passes."""
        with self._lock:
            if component not in self._codes:
                total = sum(part.sum(0, dtype=np.float64) for _, part in self._parts(component))
                mean, zero = (total / len(self.ids)).astype(np.float32), np.zeros(self.dim, np.float32)
                shift, origin = (mean, zero) if component in self.centred else (zero, mean)
                levels = np.empty((len(self.ids), self.dim), np.int8)
                codes = Codes(shift, origin, levels, *np.empty((2, len(self.ids)), np.float32))
                for rows, part in self._parts(component):
                    difference = codes.exact(part) - origin
                    levels[rows], codes.steps[rows] = quantise(difference)
                    codes.along[rows] = difference @ origin
                self._codes[component] = codes
            return self._codes[component]

    def _parts(self, component: str) -> Iterator[tuple[slice, np.ndarray]]:
        """(rows, vectors [len(rows), dim]) of all images, in the order of `ids`."""
        column, start = vector_column(component), 0
        for batch in self.table.search().with_row_id(True).select([column]).to_batches():
            for part in (batch.slice(at, 2048) for at in range(0, len(batch), 2048)):  # so many fit the CPU's cache
                rows = slice(start, start + len(part))
                if not np.array_equal(_row_ids(part), self.ids[rows]):
                    raise RuntimeError(_CHANGED)
                yield rows, to_matrix(part[column], self.dim)
                start = rows.stop
        if start != len(self.ids):
            raise RuntimeError(_CHANGED)

    def _find_ids(self, search: Any) -> np.ndarray:
        return _row_ids(search.with_row_id(True).select(["_rowid"]).to_arrow())

    def nearest(
        self, query: Mapping[str, np.ndarray], shares: Mapping[str, float], k: int, where: str | None
    ) -> list[Hit]:
        """The k images with the highest mean of cosines to a unit vector per component, under the weights `shares`."""
        if not len(self.ids):
            return []
        codes = {name: self.codes(name) for name in query}
        scores = np.sum([share * codes[name].cosines(query[name]) for name, share in shares.items()], axis=0)
        among = None
        if where is not None:
            among = np.flatnonzero(np.isin(self.ids, self._find_ids(self.table.search().where(where))))
        # int8 shifts scores by about a thousandth: half as many again, and at least 40 more, contain all of the k best.
        candidates = _highest(scores, k + max(40, k // 2), among)
        if not len(candidates):
            return []
        columns = ["path", "label", *map(vector_column, query)]
        rows = self.table.take_row_ids(self.ids[candidates].tolist()).select(columns).to_arrow()
        cosines = {
            name: codes[name].exact(to_matrix(rows[vector_column(name)], self.dim)) @ vector
            for name, vector in query.items()
        }
        exact = np.sum([share * cosines[name] for name, share in shares.items()], axis=0)
        hits = [
            Hit(path, label, float(exact[i]), {name: float(values[i]) for name, values in cosines.items()})
            for i, (path, label) in enumerate(zip(rows["path"].to_pylist(), rows["label"].to_pylist(), strict=True))
        ]
        return sorted(hits, key=lambda hit: (-hit.score, hit.path))[:k]


def _row_ids(rows: Any) -> np.ndarray:
    return rows["_rowid"].to_numpy()


# --- ranking ------------------------------------------------------------------------------------------------------


def parse_by(text: str, components: Sequence[str]) -> dict[str, float]:
    """ "color=0.7,shape=0.3" -> {"color": 0.7, "shape": 0.3}; a component without a number has the weight 1."""
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        _require_component(name, components)
        try:
            weights[name] = float(number) if equals else 1.0
        except ValueError:
            raise DearError(f"The weight of {name} must be a number, not {number!r}.") from None
    return weights


def search_gallery(
    gallery: "Gallery",
    query: "Mapping[str, np.ndarray | Tensor]",
    weights: Mapping[str, float],
    k: int = 10,
    where: str | None = None,
) -> list[Hit]:
    """The k most similar images, best first, by the mean of the components' cosines under `weights`.

    query: a vector [dim] per weighted component; where: an SQL filter on path, size and label. A search during which
    the table changed is repeated.
    """
    shares = _shares(gallery.components, weights)
    if k < 1:
        raise DearError(f"{k} images cannot be found: ask for at least one.")
    vectors = {name: _query_vector(query, name, gallery.dim) for name in shares}
    if gallery.table is None:
        return []
    try:
        for _ in range(_TRIES):
            snapshot = gallery.snapshot()
            try:
                hits = snapshot.nearest(vectors, shares, k, where)
            except (OSError, RuntimeError, ValueError):
                if snapshot.is_current():
                    raise
                continue  # another process replaced the rows that were being read
            if snapshot.is_current():
                return hits
    except (OSError, RuntimeError, ValueError) as error:
        raise _search_error(gallery, where, error) from error
    raise DearError(f"The gallery {gallery.folder} changes faster than it can be read: search again later.")


def _highest(scores: np.ndarray, count: int, among: np.ndarray | None) -> np.ndarray:
    """The places of the `count` highest scores, in no order."""
    if among is not None:
        return among[_highest(scores[among], count, None)]
    return np.argpartition(scores, -count)[-count:] if count < len(scores) else np.arange(len(scores))


def _search_error(gallery: "Gallery", where: str | None, error: Exception) -> DearError:
    reason = reason_of_lance(error)
    if where is None:
        return DearError(f"The gallery {gallery.folder} cannot be searched ({reason}): {AGAIN}.")
    return DearError(
        f"The filter {where!r} does not work ({reason}): write SQL on path, size and label, such as label = 'cat'."
    )


def _require_component(name: str, components: Sequence[str]) -> None:
    if name not in components:
        raise DearError(f"There is no component {name!r} to search by: choose from {', '.join(components)}.")


def _shares(components: Sequence[str], weights: Mapping[str, float]) -> dict[str, float]:
    """Weights that sum to one, without those that are zero."""
    for name, weight in weights.items():
        _require_component(name, components)
        if not 0 <= weight <= _MAX_WEIGHT:
            raise DearError(f"The weight of {name} must be a number from 0 to {_MAX_WEIGHT:,}, not {weight}.")
    total = sum(weights.values())
    if not total:
        raise DearError("All weights are zero: give one of them a positive number.")
    return {name: weight / total for name, weight in weights.items() if weight}


def _query_vector(query: "Mapping[str, np.ndarray | Tensor]", name: str, dim: int) -> np.ndarray:
    """The query's unit vector [dim] of a component."""
    if name not in query:
        raise DearError(f"The query has no vector of {name}.")
    values = query[name]
    vector = np.asarray(values.detach().float().cpu() if isinstance(values, Tensor) else values, dtype=np.float32)
    if vector.shape != (dim,):
        raise DearError(f"The query's vector of {name} must have {dim} numbers, not the shape {vector.shape}.")
    return unit(vector)


# --- without a table ----------------------------------------------------------------------------------------------


class MemoryGallery:
    """A few hundred pictures by name, in memory: nothing is written, and LanceDB is not needed."""

    def __init__(self, encoder: Encoder, pictures: Mapping[str, Picture]) -> None:
        self.encoder, self.components, self._pictures = encoder, encoder.components, pictures
        images = list(pictures.values())
        starts = progress(range(0, len(images), ENCODE_BATCH), "encode", "batch")
        batches = [self._encode([image.open() for image in images[start : start + ENCODE_BATCH]]) for start in starts]
        vectors = {name: np.concatenate([batch[name] for batch in batches]) for name in encoder.components}
        self._means = {name: vectors[name].mean(0) * (name in encoder.centred) for name in vectors}
        self._vectors = {name: unit(values - self._means[name]) for name, values in vectors.items()}

    def image(self, path: str) -> Image.Image:
        return self._pictures[path].open()

    def search(self, query: Image.Image, by: str, k: int) -> list[Hit]:
        """The k pictures most alike in one component, best first."""
        cosines = self._vectors[by] @ unit(self._encode([query])[by] - self._means[by])[0]
        names, order = list(self._pictures), np.argsort(-cosines, kind="stable")[:k]
        return [Hit(names[i], None, float(cosines[i]), {by: float(cosines[i])}) for i in order]

    def _encode(self, pictures: Sequence[Image.Image]) -> dict[str, np.ndarray]:
        pixels = torch.stack([self.encoder.preprocess(picture) for picture in pictures])
        return {name: values.float().cpu().numpy() for name, values in self.encoder.encode_image(pixels).items()}
