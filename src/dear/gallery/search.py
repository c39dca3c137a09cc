"""Search: the best by about their scores, then an exact ranking by the weighted mean of the components' cosines."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from dear.core.errors import DearError
from dear.gallery.codes import Snapshot, unit
from dear.gallery.columns import as_matrix, vector_column

if TYPE_CHECKING:
    from dear.gallery.store import Gallery

_TRIES, _HEAVIEST = 5, 1_000_000


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
    if gallery.table is None:
        return []
    try:
        for _ in range(_TRIES):
            snapshot = gallery.snapshot()
            try:
                hits = _find(gallery, snapshot, wanted, shares, k, where)
            except (OSError, RuntimeError, ValueError):
                if snapshot.is_current():
                    raise
                continue  # what it had begun to read was replaced
            if snapshot.is_current():
                return hits
    except (OSError, RuntimeError, ValueError) as error:
        raise _refusal(gallery, where, error) from error
    raise DearError(f"The gallery {gallery.folder} changes faster than it can be read: search when that is done.")


def _find(
    gallery: "Gallery",
    snapshot: Snapshot,
    wanted: Mapping[str, np.ndarray],
    shares: Mapping[str, float],
    k: int,
    where: str | None,
) -> list[Hit]:
    if not len(snapshot.ids):
        return []
    codes = {name: snapshot.codes(name, name in gallery.centred) for name in wanted}
    scores = np.sum([share * codes[name].cosines(wanted[name]) for name, share in shares.items()], axis=0)
    # A byte a number moves scores by about a thousandth: among half as many again, and 40 at least, are all the best.
    likely = _highest(scores, k + max(40, k // 2), None if where is None else _passing(snapshot, where))
    if not len(likely):
        return []
    columns = ["path", "label", *map(vector_column, wanted)]
    rows = snapshot.table.take_row_ids(snapshot.ids[likely].tolist()).select(columns).to_arrow()
    cosines = {
        name: codes[name].exact(as_matrix(rows[vector_column(name)], gallery.dim)) @ vector
        for name, vector in wanted.items()
    }
    exact = np.sum([share * cosines[name] for name, share in shares.items()], axis=0)
    hits = [
        Hit(path, label, float(exact[i]), {name: float(values[i]) for name, values in cosines.items()})
        for i, (path, label) in enumerate(zip(rows["path"].to_pylist(), rows["label"].to_pylist(), strict=True))
    ]
    return sorted(hits, key=lambda hit: (-hit.score, hit.path))[:k]


def _highest(scores: np.ndarray, count: int, among: np.ndarray | None) -> np.ndarray:
    """The places of the `count` highest scores, in no order."""
    if among is not None:
        return among[_highest(scores[among], count, None)]
    return np.argpartition(scores, -count)[-count:] if count < len(scores) else np.arange(len(scores))


def _passing(snapshot: Snapshot, where: str) -> np.ndarray:
    """Which images pass the filter, as places in the snapshot."""
    passing = snapshot.table.search().where(where).with_row_id(True).select(["_rowid"]).to_arrow()["_rowid"]
    return np.flatnonzero(np.isin(snapshot.ids, passing.to_numpy()))


def _refusal(gallery: "Gallery", where: str | None, error: Exception) -> DearError:
    # LanceDB names the place in its own source behind the reason.
    reason = " ".join(str(error).split()).removeprefix("Invalid input, ").split(", /")[0].rstrip(".")[:200]
    if where is None:
        return DearError(f"The gallery {gallery.folder} cannot be searched: {reason}.")
    return DearError(
        f"The filter {where!r} does not work ({reason}): write SQL on path, size and label, such as label = 'cat'."
    )


def _shares(components: Sequence[str], weights: Mapping[str, float]) -> dict[str, float]:
    """Weights that sum to one, without those that are zero."""
    for name, weight in weights.items():
        if name not in components:
            raise DearError(f"There is no component {name!r} to search by: choose from {', '.join(components)}.")
        if not 0 <= weight <= _HEAVIEST:
            raise DearError(f"The weight of {name} must be a number from 0 to {_HEAVIEST:,}, not {weight}.")
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
    return unit(vector[None])[0]
