"""Does searching by an attribute find what is alike in it? HeadMoments on Attribute World, where the truth is known."""

from typing import TYPE_CHECKING, cast

import numpy as np

from dear.core.errors import DearError
from dear.data.world.vocabulary import ATTRIBUTES, Scene
from dear.gallery.sources import WORLD, world_picture

if TYPE_CHECKING:
    from dear.gallery.store import Gallery

CHANCE = "chance"


def attribute_precision(gallery: "Gallery", k: int = 10) -> dict[str, dict[str, float]]:
    """Component -> attribute -> share of the k nearest that have the query's value, in percent.

    Every picture is a query once, and no picture finds itself. The last row, "chance", is what a random order gives.
    """
    paths = gallery.paths()
    if len(paths) <= k or not all(path.startswith(WORLD) for path in paths):
        raise DearError(f"Only a gallery of more than {k} pictures of Attribute World has the truth to measure by.")
    traits = [cast(Scene, world_picture(path)).traits for path in paths]
    same = {}  # attribute -> [pictures, pictures], True where both have the same value
    for attribute in ATTRIBUTES:
        values = np.array([getattr(t, attribute) for t in traits])
        same[attribute] = values[:, None] == values
        np.fill_diagonal(same[attribute], False)
    matrix = {
        component: {a: 100 * float(np.take_along_axis(s, near, 1).mean()) for a, s in same.items()}
        for component, near in nearest_others(gallery, k).items()
    }
    pairs = len(paths) * (len(paths) - 1)
    matrix[CHANCE] = {attribute: 100 * float(s.sum()) / pairs for attribute, s in same.items()}
    return matrix


def nearest_others(gallery: "Gallery", k: int) -> dict[str, np.ndarray]:
    """Component -> the k nearest others of each picture, nearest first, [pictures, k], in the order of `paths`."""
    return {component: nearest_rows(gallery.vectors(component), k) for component in gallery.components}


def nearest_rows(vectors: np.ndarray, k: int) -> np.ndarray:
    """Unit vectors [n, dim] -> the k nearest others of each, nearest first, [n, k]."""
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    return np.argsort(-cosines, axis=1, kind="stable")[:, :k]
