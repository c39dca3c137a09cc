"""dear search: the images of a gallery most similar to an image or a sentence, by chosen components."""

import argparse
import json
from pathlib import Path
from typing import Any

from dear.commands.shared import add_device_arguments, add_gain_argument
from dear.core.config import number
from dear.core.errors import DearError
from dear.core.files import atomic_path
from dear.core.names import CLS
from dear.core.table import Table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("gallery", metavar="GALLERY", help="gallery made by `dear index`: a folder, or s3://...")
    parser.add_argument("--image", metavar="FILE", help="query image; if it is in the gallery, it is the first hit")
    parser.add_argument("--text", metavar="SENTENCE", help='query sentence, such as "a red car"')
    parser.add_argument(
        "--by", default=CLS, metavar="COMPONENTS",
        help="components to compare, with optional weights: color=0.7,shape=0.3 (default: cls, the class feature)",
    )  # fmt: skip
    parser.add_argument("--where", metavar="SQL", help="filter on path, size in bytes, and label: \"label = 'cat'\"")
    add_gain_argument(parser)
    parser.add_argument("--topk", type=number("--topk", 1, 10_000), default=10, help="number of hits (default: 10)")
    parser.add_argument("--json", action="store_true", help="print one JSON object per hit")
    parser.add_argument("--out", type=Path, metavar="PNG", help="contact sheet of the hits to write")
    add_device_arguments(parser)


def run(args: argparse.Namespace) -> None:
    from dear.data.dataset import ImageFile
    from dear.gallery import Gallery, parse_by
    from dear.gallery.index import WORLD
    from dear.gallery.sheet import contact_sheet
    from dear.heads.gains import parse_gains

    if (args.image is None) == (args.text is None):
        raise DearError("Give either --image or --text to search for.")
    gains = parse_gains(args.gain)
    gallery = Gallery.open(args.gallery)
    weights = parse_by(args.by, gallery.components)
    query: Any = args.text
    if args.image is not None:  # an image file, or a picture of Attribute World in the gallery
        in_world = args.image.startswith(WORLD)
        query = gallery.image(args.image) if in_world else ImageFile(Path(args.image)).open()
    encoder = gallery.encoder(args.device, args.precision)
    if gains:
        if args.image is None:
            raise DearError("--gain changes how the query image is seen, and a sentence has no heads: give --image.")
        encoder = encoder.with_gain(gains)
    vectors = gallery.query(encoder, query, list(weights))
    hits = gallery.search(vectors, weights, args.topk, args.where)
    if args.json:
        for rank, hit in enumerate(hits, 1):
            print(json.dumps({"rank": rank, **hit.to_json()}))
    else:
        names = [name for name, weight in weights.items() if weight]
        several = names if len(names) > 1 else []
        table = Table(["rank", "score", *several, "label", "path"])
        for rank, hit in enumerate(hits, 1):
            scores = [f"{hit.scores[name]:.3f}" for name in several]
            table.add(rank, f"{hit.score:.3f}", *scores, hit.label, hit.path)
        print(table.text() if hits else "no hits")
    if args.out is not None:
        sheet = contact_sheet(query, args.by, hits, gallery)
        with atomic_path(args.out) as temporary:
            sheet.save(temporary, format="PNG")
