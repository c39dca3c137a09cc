"""Searching photos by attribute: what each attribute finds for a few queries, and how much it differs from the others.

    python benchmarks/retrieval.py GALLERY QUERY [QUERY ...] --title WORDS --out retrieval.json --sheets sheets

GALLERY is a folder of `dear index --label-from-folder`, each QUERY an image in it. Photos have no known attributes, so
this is measured over all images as queries, each with its ten nearest others: how many have the query's label, how far
their mean color is from the query's (distance in CIELAB), and how many are also among the ten nearest by the class
feature, and by another attribute. `dear report` shows the JSON as tables; the sheets, one a query, a row an attribute,
are for the eye and stay where they are made, because photos have owners.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageCms, ImageDraw, ImageFont, ImageOps

from dear.files import write_json
from dear.gallery import Gallery
from dear.gallery.quality import nearest_others

NEAREST, SHOWN, CELL, GAP = 10, 5, 150, 10


def mean_colors(pictures: list[Image.Image]) -> np.ndarray:
    """The mean color of each picture in CIELAB, [images, 3]."""
    to_lab = ImageCms.buildTransformFromOpenProfiles(
        ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), "RGB", "LAB"
    )
    scale, offset = np.array([100 / 255, 1, 1]), np.array([0, 128, 128])
    means = []
    for picture in pictures:
        lab = ImageCms.applyTransform(picture.convert("RGB").resize((64, 64)), to_lab)
        channels = np.asarray(lab).reshape(-1, 3).astype(np.int16)
        channels[:, 1:] = (channels[:, 1:] + 128) % 256  # Pillow stores a and b as signed bytes
        means.append((channels.mean(0) - offset) * scale)
    return np.array(means)


def measure(nearest: dict[str, np.ndarray], labels: list[str], colors: np.ndarray) -> list[dict[str, Any]]:
    """A row for each component, and one for chance."""
    names, rows = np.array(labels), []
    count = len(labels)
    same = names[:, None] == names
    far = np.linalg.norm(colors[:, None] - colors, axis=-1)
    for component, found in nearest.items():
        shared = {other: _shared(found, nearest[other]) for other in nearest if other != component}
        rows.append(
            {
                "searched by": component,
                "same label (%)": 100 * float(np.take_along_axis(same, found, 1).mean()),
                "color distance": float(np.take_along_axis(far, found, 1).mean()),
                "shared with cls (%)": shared.pop("cls", None),
                "shared with an attribute (%)": float(np.mean(list(shared.values()))),
            }
        )
    pairs = count * (count - 1)
    chance = {"same label (%)": 100 * float(same.sum() - count) / pairs, "color distance": float(far.sum()) / pairs}
    overlap = 100 * NEAREST / (count - 1)
    chance |= {"shared with cls (%)": overlap, "shared with an attribute (%)": overlap}
    return [*rows, {"searched by": "chance", **chance}]


def _shared(one: np.ndarray, other: np.ndarray) -> float:
    """How many of the nearest in one are also in the other, in percent; both [images, k]."""
    return 100 * float(np.mean([len(set(a) & set(b)) for a, b in zip(one, other, strict=True)])) / NEAREST


def sheet(query: Image.Image, rows: dict[str, list[Image.Image]]) -> Image.Image:
    """The query in front of each row of what one component finds."""
    font = ImageFont.load_default(16)
    width = (SHOWN + 1) * (CELL + GAP) + 110
    page = Image.new("RGB", (width, len(rows) * (CELL + GAP) + GAP), "white")
    draw = ImageDraw.Draw(page)
    for number, (component, pictures) in enumerate(rows.items()):
        y = GAP + number * (CELL + GAP)
        draw.text((GAP, y + CELL / 2), component, "black", font, anchor="lm")
        for column, picture in enumerate([query, *pictures]):
            page.paste(ImageOps.fit(picture.convert("RGB"), (CELL, CELL)), (90 + column * (CELL + GAP), y))
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gallery", metavar="GALLERY")
    parser.add_argument("queries", nargs="+", metavar="QUERY", help="images of the gallery")
    parser.add_argument("--title", required=True, metavar="WORDS", help="which adapter this is, for the report")
    parser.add_argument("--out", type=Path, required=True, metavar="JSON")
    parser.add_argument("--sheets", type=Path, metavar="FOLDER", help="where to draw the pictures")
    args = parser.parse_args()
    gallery = Gallery.open(args.gallery)
    table = gallery.rows(["path", "label"])
    paths, labels = table["path"].to_pylist(), table["label"].to_pylist()
    nearest = nearest_others(gallery, NEAREST)
    rows = measure(nearest, labels, mean_colors([gallery.image(path) for path in paths]))
    examples = []
    for path in args.queries:
        row = paths.index(str(Path(path).absolute()))
        found = {c: [labels[i] for i in near[row, :SHOWN]] for c, near in nearest.items()}
        examples.append({"query": labels[row], "file": Path(path).name, "nearest": found})
        if args.sheets:
            pictures = {c: [gallery.image(paths[i]) for i in near[row, :SHOWN]] for c, near in nearest.items()}
            args.sheets.mkdir(parents=True, exist_ok=True)
            sheet(gallery.image(paths[row]), pictures).save(args.sheets / f"{labels[row]}-{Path(path).stem}.png")
    about = {"title": args.title, "images": len(paths), "labels": len(set(labels))}
    write_json(args.out, {**about, "measured": rows, "examples": examples})
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
