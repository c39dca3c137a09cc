"""Search by attribute on pictures with known attributes: the share of the ten nearest that have the query's value.

    python benchmarks/gallery_quality.py [RUN] [--roles auto] [--style plain]

A row is the component searched by, a column the attribute that is compared, a cell the share in percent. The pictures
are the test pictures of the five tasks in which every attribute varies: 2,560. RUN is an adapter of `dear train`, say
on world:signs; without one, the heads of frozen dear-mini make the vectors.
"""

import argparse
import tempfile
from pathlib import Path
from typing import cast

import numpy as np

from dear.clip import MINI
from dear.core.errors import DearError
from dear.core.table import Table
from dear.data.world.vocabulary import ATTRIBUTES, Scene
from dear.gallery import AdapterEncoder, Gallery, HeadEncoder
from dear.gallery.index import WORLD, world_picture

TASKS = ("colors", "shapes", "textures", "objects", "places")
CHANCE = "chance"


def attribute_precision(gallery: Gallery, k: int = 10) -> dict[str, dict[str, float]]:
    """Component -> attribute -> share of the k nearest that have the query's value, in percent.

    Every picture is a query once, and is not among its own nearest. The last row, "chance", is that of a random order.
    """
    paths = gallery.paths()
    if len(paths) <= k or not all(path.startswith(WORLD) for path in paths):
        raise DearError(f"Only a gallery of more than {k} pictures of Attribute World can be measured.")
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


def nearest_others(gallery: Gallery, k: int) -> dict[str, np.ndarray]:
    """Component -> the k nearest others of each picture, nearest first, [pictures, k], in the order of `paths`."""
    return {component: nearest_rows(gallery.vectors(component), k) for component in gallery.components}


def nearest_rows(vectors: np.ndarray, k: int) -> np.ndarray:
    """Unit vectors [n, dim] -> the k nearest others of each, nearest first, [n, k]."""
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    return np.argsort(-cosines, axis=1, kind="stable")[:, :k]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", metavar="RUN", help="folder made by `dear train`")
    parser.add_argument("--roles", default="auto", help="role map of dear-mini's heads: a file, or a name (auto)")
    parser.add_argument("--style", default="plain", help="plain, sketch, night or mosaic")
    args = parser.parse_args()
    encoder = AdapterEncoder.load(args.run) if args.run else HeadEncoder.load(MINI, roles=args.roles)
    with tempfile.TemporaryDirectory() as folder:
        gallery = Gallery.create(Path(folder) / "gallery", encoder)
        gallery.add(encoder, [f"world:{task}:{args.style}" for task in TASKS])
        matrix = attribute_precision(gallery)
    table = Table(["same in the top 10 (%)", *ATTRIBUTES])
    for component, row in matrix.items():
        table.add(component, *row.values())
    print(table.text())


if __name__ == "__main__":
    main()
