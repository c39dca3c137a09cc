"""The vectors of a gallery in memory, a byte a number: what a search goes through before it ranks the best exactly.

At 100,000 images this is a third of the work of a plain matrix product, and less than any index of LanceDB takes; it
needs no building, and finds the same for every choice of weights (`benchmarks/gallery.py` measures it).
"""

from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from dear.gallery.columns import as_matrix, vector_column

_LEVELS = 127


class _Changed(RuntimeError):
    def __init__(self) -> None:
        super().__init__("its rows changed while they were read")


@dataclass(frozen=True)
class Codes:
    """The unit vectors of one component of all images: unit(stored - shift), about origin + steps * levels.

    Either shift or origin is the mean of what is stored, the other is zero. Images have much in common, so what is
    left of each beyond the origin is short, and a byte a number tells it apart even where all vectors are alike.
    """

    shift: np.ndarray  # [dim], the mean for a component that is compared after it was taken off
    origin: np.ndarray  # [dim], the mean for the others
    levels: np.ndarray  # [images, dim], int8
    steps: np.ndarray  # [images]
    along: np.ndarray  # [images], the product of a vector beyond the origin with the origin

    def exact(self, stored: np.ndarray) -> np.ndarray:
        """Vectors as stored [n, dim] -> unit vectors as they are compared."""
        return unit(stored - self.shift)

    def cosines(self, query: np.ndarray) -> np.ndarray:
        """A unit vector [dim] -> about its cosine to each image, [images]."""
        import numkong

        levels, steps = quantised((query - self.origin)[None])
        products = np.asarray(numkong.cdist(levels, self.levels, "dot", out_dtype="float32"))[0]
        products *= self.steps * steps[0]
        return products + (self.along + query @ self.origin)


def quantised(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Vectors [n, dim] -> whole numbers up to 127 [n, dim], and what a step of them is worth, [n]."""
    steps = np.maximum(np.abs(vectors).max(1), 1e-12) / _LEVELS
    return np.rint(vectors / steps[:, None]).astype(np.int8), steps


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors [n, dim] at length one; one without any length stays as it is."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


class Snapshot:
    """One version of a table: the ids of its rows, and the codes of the components that were asked for so far."""

    def __init__(self, table: Any, dim: int) -> None:
        self.table, self.dim = table, dim
        self.version = table.version
        self.ids = _row_ids(table.search().with_row_id(True).select(["_rowid"]).to_arrow())
        self._codes: dict[str, Codes] = {}
        self._lock = Lock()

    def is_current(self) -> bool:
        return self.table.version == self.version

    def codes(self, component: str, centred: bool) -> Codes:
        """Read once, in two passes. `centred`: compared after the mean of all images was taken off."""
        with self._lock:
            if component not in self._codes:
                total = sum(part.sum(0, dtype=np.float64) for _, part in self._parts(component))
                mean, zero = (total / len(self.ids)).astype(np.float32), np.zeros(self.dim, np.float32)
                shift, origin = (mean, zero) if centred else (zero, mean)
                self._codes[component] = self._quantise(component, shift, origin)
            return self._codes[component]

    def _quantise(self, component: str, shift: np.ndarray, origin: np.ndarray) -> Codes:
        count = len(self.ids)
        levels, steps, along = np.empty((count, self.dim), np.int8), *np.empty((2, count), np.float32)
        codes = Codes(shift, origin, levels, steps, along)
        for rows, part in self._parts(component):
            beyond = codes.exact(part) - origin
            levels[rows], steps[rows] = quantised(beyond)
            along[rows] = beyond @ origin
        return codes

    def _parts(self, component: str) -> Any:
        """(rows, vectors [len(rows), dim]) of all images, in the order of `ids`."""
        column, start = vector_column(component), 0
        for batch in self.table.search().with_row_id(True).select([column]).to_batches():
            for part in (batch.slice(at, 2048) for at in range(0, len(batch), 2048)):  # so many stay in the cache
                rows = slice(start, start + len(part))
                if not np.array_equal(_row_ids(part), self.ids[rows]):
                    raise _Changed
                yield rows, as_matrix(part[column], self.dim)
                start = rows.stop
        if start != len(self.ids):
            raise _Changed


def _row_ids(rows: Any) -> np.ndarray:
    return rows["_rowid"].to_numpy()
