"""Check of the measured role map of OpenAI's ViT-B/16 on photos, and of the paper's (docs/roles.md).

    DEAR_SHARED=shared python benchmarks/roles_photos.py --model local-dir:vit-b-16 [--write MAP] [--write-drawn MAP]

Makes the map from training images of DTD (texture), Caltech101 (object), scenes (location) and silhouettes (shape),
then searches other images by the heads of that map, and by those of the paper's table. The photos are in
DEAR_SHARED/data. `--write` saves the map in the form that is shipped: for OpenAI's weights in any precision.
"""

import argparse
import os
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from dear.clip import load_backbone
from dear.core.names import CORE_ATTRIBUTES
from dear.data.resolve import resolve_dataset
from dear.heads.by_pictures import roles_by_pictures
from dear.heads.check_search import check_by_search
from dear.heads.map_table import overlap, role_summary
from dear.heads.pictures import WORLD_PICTURES, Probe, drawn_probe, labelled_probe
from dear.heads.role_map import RoleMap

PACKS = {"shape": "shapes", "texture": "dtd", "object": "caltech-101", "location": "scenes"}


def photo_probes(limit: int, held_out: bool) -> list[Probe]:
    """Training images, or, with `held_out`, test images; without a ready split, those that training leaves over."""
    probes = []
    for attribute, pack in PACKS.items():
        folder = Path(os.environ["DEAR_SHARED"]) / "data" / pack
        dataset = resolve_dataset(str(folder))
        if (folder / "split.json").exists():
            dataset = replace(dataset, val=())
        probes.append(labelled_probe(attribute, dataset, limit, by_pixels=True, held_out=held_out))
    return probes


def as_preset(role_map: RoleMap, class_embedding: Tensor) -> RoleMap:
    """The map for OpenAI's weights in any precision: identified by some numbers instead of a hash, with a note on the
    weights that it was measured on."""
    weights = role_map.backbone["weights"]
    measured_on = "OpenAI's image tower, its linear weights rounded to int8 and back"
    about = f"{measured_on} (with a text tower of another origin: weights {weights})"
    named = {"model": "ViT-B-16", "pretrained": "openai", "activation": role_map.backbone["activation"]}
    named["class_embedding"] = " ".join(f"{number:.4f}" for number in class_embedding[:16].tolist())
    return replace(role_map, backbone=named, origin={"measured_on": about, **role_map.origin})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="OpenAI's ViT-B/16, as local-dir:FOLDER")
    parser.add_argument("--limit", type=int, default=400, help="largest number of images per pack (400)")
    parser.add_argument("--write", type=Path, metavar="MAP")
    parser.add_argument("--write-drawn", type=Path, metavar="MAP", help="also save the map from drawn pictures alone")
    args = parser.parse_args()
    backbone = load_backbone(args.model)
    embedding = backbone.image.visual.class_embedding
    if args.write_drawn:
        drawn = drawn_probe(CORE_ATTRIBUTES, WORLD_PICTURES, max(backbone.image.image_size))
        as_preset(roles_by_pictures(backbone, [drawn]), embedding).save(args.write_drawn)
    measured = roles_by_pictures(backbone, photo_probes(args.limit, held_out=False))
    measured = as_preset(measured, embedding)
    if args.write:
        measured.save(args.write)
    held_out, paper = photo_probes(args.limit, held_out=True), RoleMap.preset("paper")
    for name, role_map in (("measured", measured), ("paper", paper)):
        result = check_by_search(backbone, role_map, held_out)
        print(f"\n{name}: {role_summary(role_map)}\n\n{result.table().markdown()}\n\n{result.verdict()}")
    print(f"\nmeasured and paper: {overlap(measured, paper).summary()}")


if __name__ == "__main__":
    main()
