"""Searching by an attribute, on pictures whose attributes are known: what the ten nearest have in common.

    python benchmarks/gallery_quality.py [RUN] [--roles auto] [--style plain]

A row is the component searched by, a column the attribute that is looked at; a cell the share of the ten nearest
with the same value as the query (%). The pictures are the test pictures of the five tasks in which every attribute
varies: 2,560. RUN is an adapter of `dear train`, say on world:signs; without one, dear-mini's heads tell.
"""

import argparse
import tempfile
from pathlib import Path

from dear.clip import MINI
from dear.core.table import Table
from dear.data.world.vocabulary import ATTRIBUTES
from dear.gallery import AdapterEncoder, Gallery, HeadEncoder
from dear.gallery.quality import attribute_precision

TASKS = ("colors", "shapes", "textures", "objects", "places")


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
