"""Search photos by attribute: the hits of each attribute, and how much they differ from those of the others.

    python benchmarks/retrieval.py GALLERY --query IMAGE IMAGE --title WORDS --out retrieval.json --sheets sheets
    python benchmarks/retrieval.py SHAPES TEXTURES OBJECTS FLOWERS SCENES --title WORDS --out retrieval.json

Each GALLERY is a folder of `dear index --label-from-folder`. Photos have no known attributes, so this is measured over
all images as queries, each with its ten nearest others. In one gallery: how many have the query's label, how far their
mean color is from the query's (distance in CIELAB), and how many are also among the ten nearest by the class feature,
and by another attribute. In several, each labelled by another attribute: how many have the query's label, and how far
their color is in a*, b*. The table is printed, the JSON also has the labels of the nearest. The sheets, one per query
with a row per attribute, are for inspection and are not published, because photos have owners.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from gallery_quality import nearest_others, nearest_rows
from PIL import Image, ImageCms

from dear.core.files import write_json
from dear.core.names import CLS
from dear.core.table import Table
from dear.gallery import Gallery, Hit
from dear.gallery.search import unit
from dear.gallery.sheet import attribute_sheet

NEAREST, SHOWN = 10, 5
_COLOR = "a*b* distance"
Row = dict[str, Any]


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


def measure(nearest: dict[str, np.ndarray], labels: list[str], colors: np.ndarray) -> list[Row]:
    """A row for each component, and one for chance."""
    names, rows = np.array(labels), []
    count = len(labels)
    same = names[:, None] == names
    far = np.linalg.norm(colors[:, None] - colors, axis=-1)
    for component, near in nearest.items():
        shared = {other: _shared(near, nearest[other]) for other in nearest if other != component}
        rows.append(
            {
                "searched by": component,
                "same label (%)": 100 * float(np.take_along_axis(same, near, 1).mean()),
                "color distance": float(np.take_along_axis(far, near, 1).mean()),
                "shared with cls (%)": shared.pop(CLS, None),
                "shared with an attribute (%)": float(np.mean(list(shared.values()))),
            }
        )
    pairs = count * (count - 1)
    chance = {"same label (%)": 100 * float(same.sum() - count) / pairs, "color distance": float(far.sum()) / pairs}
    overlap = 100 * NEAREST / (count - 1)
    chance |= {"shared with cls (%)": overlap, "shared with an attribute (%)": overlap}
    return [*rows, {"searched by": "chance", **chance}]


def _shared(one: np.ndarray, other: np.ndarray) -> float:
    """The share of the nearest in one that are also in the other, in percent; both [images, k]."""
    return 100 * float(np.mean([len(set(a) & set(b)) for a, b in zip(one, other, strict=True)])) / NEAREST


def across(galleries: list[Gallery]) -> list[Row]:
    """A row for each component: the share of the ten nearest with the query's label in each set, and a*b*."""
    rows: dict[str, dict[str, Any]] = {}
    for gallery in galleries:
        table = gallery.rows(["path", "label"])
        labels = np.array(table["label"].to_pylist())
        colors = mean_colors([gallery.image(path) for path in table["path"].to_pylist()])[:, 1:]
        plain, count = gallery.vectors(CLS), len(labels)
        nearest = {CLS: nearest_rows(plain, NEAREST)}
        nearest["cls, centred"] = nearest_rows(unit(plain - plain.mean(0)), NEAREST)  # as the attributes are
        nearest |= nearest_others(gallery, NEAREST)
        nearest["chance"] = np.array([np.delete(np.arange(count), i) for i in range(count)])  # all others
        for component, near in nearest.items():
            row = rows.setdefault(component, {"searched by": component, _COLOR: []})
            row[f"{gallery.folder.name}, same label (%)"] = 100 * float((labels[near] == labels[:, None]).mean())
            if np.abs(colors).mean() > 1:  # grey photos have no color to compare
                row[_COLOR].append((float(np.linalg.norm(colors[near] - colors[:, None], axis=-1).mean()), count))
    for row in rows.values():
        distances = row.pop(_COLOR)
        row[_COLOR] = sum(mean * count for mean, count in distances) / max(1, sum(count for _, count in distances))
    return list(rows.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("galleries", nargs="+", metavar="GALLERY")
    parser.add_argument("--query", nargs="+", default=[], help="images of the gallery to draw sheets for")
    parser.add_argument("--title", required=True, metavar="WORDS", help="title in the JSON")
    parser.add_argument("--out", type=Path, required=True, metavar="JSON")
    parser.add_argument("--sheets", type=Path, metavar="FOLDER", help="folder for the sheets")
    args = parser.parse_args()
    galleries = [Gallery.open(folder) for folder in args.galleries]
    labels = [label for gallery in galleries for label in gallery.rows(["label"])["label"].to_pylist()]
    about = {"title": args.title, "images": len(labels), "labels": len(set(labels))}
    rows, examples = alone(galleries[0], args.query, args.sheets) if len(galleries) == 1 else (across(galleries), [])
    write_json(args.out, {**about, "measured": rows, "examples": examples})
    table = Table(list(rows[0]))
    for row in rows:
        table.add(*row.values())
    print(table.text())


def alone(gallery: Gallery, queries: list[str], sheets: Path | None) -> tuple[list[Row], list[Row]]:
    """The measurements in one gallery, and the labels of the hits of a few queries."""
    table = gallery.rows(["path", "label"])
    paths, labels = table["path"].to_pylist(), table["label"].to_pylist()
    nearest = nearest_others(gallery, NEAREST)
    rows = measure(nearest, labels, mean_colors([gallery.image(path) for path in paths]))
    examples = []
    for path in queries:
        row = paths.index(str(Path(path).absolute()))
        nearest_labels = {c: [labels[i] for i in near[row, :SHOWN]] for c, near in nearest.items()}
        examples.append({"query": labels[row], "file": Path(path).name, "nearest": nearest_labels})
        if sheets:
            hits = {c: [Hit(paths[i], labels[i], 0.0, {}) for i in near[row, :SHOWN]] for c, near in nearest.items()}
            sheets.mkdir(parents=True, exist_ok=True)
            drawn = attribute_sheet(gallery.image(paths[row]), hits, gallery)
            drawn.save(sheets / f"{labels[row]}-{Path(path).stem}.png")
    return rows, examples


if __name__ == "__main__":
    main()
