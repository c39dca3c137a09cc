"""The fifteen datasets of the paper. Counts: appendix of CoOp's paper (arXiv 2109.01134); templates: CoOp's."""

import re

from dear.data.known import layouts
from dear.data.known.layouts import KnownDataset

_CALTECH = {"airplanes": "airplane", "Faces": "face", "Leopards": "leopard", "Motorbikes": "motorbike"}
_EUROSAT = {
    "AnnualCrop": "Annual Crop Land", "HerbaceousVegetation": "Herbaceous Vegetation Land",
    "Highway": "Highway or Road", "Industrial": "Industrial Buildings", "Pasture": "Pasture Land",
    "PermanentCrop": "Permanent Crop Land", "Residential": "Residential Buildings", "SeaLake": "Sea or Lake",
}  # fmt: skip

KNOWN = (
    KnownDataset(
        "ImageNet", "imagenet", "images", "a photo of a {}.", 1000, (1281167, 0, 50000),
        loader=layouts.imagenet, required=("images/train", "images/val", "classnames.txt"),
    ),
    KnownDataset(
        "Caltech101", "caltech-101", "101_ObjectCategories", "a photo of a {}.", 100, (4128, 1649, 2465),
        split_name="split_zhou_Caltech101.json", loader=layouts.class_folders, renames=_CALTECH,
    ),
    KnownDataset(
        "OxfordPets", "oxford_pets", "images", "a photo of a {}, a type of pet.", 37, (2944, 736, 3669),
        split_name="split_zhou_OxfordPets.json", aliases=("Pets",),
        loader=layouts.pets, required=("annotations/trainval.txt", "annotations/test.txt"),
    ),
    KnownDataset(
        "StanfordCars", "stanford_cars", "", "a photo of a {}.", 196, (6509, 1635, 8041),
        split_name="split_zhou_StanfordCars.json", aliases=("Cars",),
    ),
    KnownDataset(
        "Flowers102", "oxford_flowers", "jpg", "a photo of a {}, a type of flower.", 102, (4093, 1633, 2463),
        split_name="split_zhou_OxfordFlowers.json", aliases=("Flowers",),
    ),
    KnownDataset(
        "Food101", "food-101", "images", "a photo of {}, a type of food.", 101, (50500, 20200, 30300),
        split_name="split_zhou_Food101.json", loader=layouts.class_folders,
    ),
    KnownDataset(
        "FGVCAircraft", "fgvc_aircraft", "images", "a photo of a {}, a type of aircraft.", 100, (3334, 3333, 3333),
        loader=layouts.aircraft, aliases=("Aircraft",),
        required=("variants.txt", *(f"images_variant_{split}.txt" for split in ("train", "val", "test"))),
    ),
    KnownDataset(
        "SUN397", "sun397", "SUN397", "a photo of a {}.", 397, (15880, 3970, 19850),
        split_name="split_zhou_SUN397.json",
    ),
    KnownDataset(
        "DTD", "dtd", "images", "{} texture.", 47, (2820, 1128, 1692),
        split_name="split_zhou_DescribableTextures.json", aliases=("DescribableTextures",),
        loader=layouts.class_folders,
    ),
    KnownDataset(
        "EuroSAT", "eurosat", "2750", "a centered satellite photo of {}.", 10, (13500, 5400, 8100),
        split_name="split_zhou_EuroSAT.json", loader=layouts.class_folders, renames=_EUROSAT,
    ),
    KnownDataset(
        "UCF101", "ucf101", "UCF-101-midframes", "a photo of a person doing {}.", 101, (7639, 1898, 3783),
        split_name="split_zhou_UCF101.json",
    ),
    KnownDataset(
        "ImageNetV2", "imagenetv2", "imagenetv2-matched-frequency-format-val", "a photo of a {}.", 1000, (0, 0, 10000),
        loader=layouts.imagenet_v2, required=("classnames.txt",),
    ),
    KnownDataset(
        "ImageNet-Sketch", "imagenet-sketch", "images", "a photo of a {}.", 1000, (0, 0, 50889),
        loader=layouts.imagenet_variant, required=("classnames.txt",),
    ),
    KnownDataset(
        "ImageNet-A", "imagenet-adversarial", "imagenet-a", "a photo of a {}.", 200, (0, 0, 7500),
        loader=layouts.imagenet_variant, required=("classnames.txt",),
    ),
    KnownDataset(
        "ImageNet-R", "imagenet-rendition", "imagenet-r", "a photo of a {}.", 200, (0, 0, 30000),
        loader=layouts.imagenet_variant, required=("classnames.txt",),
    ),
)  # fmt: skip


def find_known(name: str) -> KnownDataset | None:
    """The dataset with this name, folder or alias; case, "-", "_" and spaces make no difference."""

    def plain(text: str) -> str:
        return re.sub(r"[-_\s]", "", text).lower()

    return next((e for e in KNOWN if plain(name) in map(plain, (e.name, e.folder, *e.aliases))), None)
