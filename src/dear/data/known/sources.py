"""The sources of the known datasets: the owner's archives, and a mirror on the Hugging Face hub.

There was no network when this table was made. Addresses, sizes and checksums are those that public records state:
torchvision 0.29 (MD5), TensorFlow Datasets of 2026-07 (size, SHA-256), and the asset list of dczyjh/HAPR-LAPR on
GitHub, whose authors downloaded from the mirror in 2026-09 (size, SHA-256 of three archives and of all split files).
`seen` says when a record last named the address as good, and which; a checksum that nobody states is None.
"""

from dataclasses import dataclass, field

_VGG = "https://www.robots.ox.ac.uk/~vgg/data"
_BERKELEY = "https://people.eecs.berkeley.edu/~hendrycks"
MIRROR = "hf://zhengli97/prompt_learning_dataset@ceb3112337fb6e1bf71534e355ca5569b63f19a6"
"""Fourteen datasets in CoOp's layout with its split files; kept by the authors of PromptKD and ATPrompt."""

_TFDS, _TORCHVISION, _LISTED = "2026-07, TensorFlow Datasets", "2026, torchvision 0.29", "2026-10-08, HAPR-LAPR"
_UNDATED = "undated, a public script"


@dataclass(frozen=True)
class Archive:
    """An archive at a `url` that fsspec opens.

    `take`: folder or file in the archive -> its place in the dataset's folder; if empty, they are found by the names of
    what the dataset needs. `checksum`: "sha256:..." or "md5:...".
    """

    url: str
    seen: str
    megabytes: int  # a rough number where `size` is None
    size: int | None = None  # bytes
    checksum: str | None = None
    take: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Origin:
    """The archives and the licence of a dataset.

    `ways`: archives that together make the dataset, the preferred ones first. `split`: (size, SHA-256) of CoOp's split
    file, which is in the archive `split_in`. `asks`: whether the owner asks for consent to the licence.
    """

    licence: str
    ways: tuple[tuple[Archive, ...], ...]
    asks: bool = False
    split: tuple[int, str] | None = None
    split_in: Archive | None = None
    gone: str = ""  # the owner's host, and since when it is known to be dead


def _mirror(
    name: str, megabytes: int, size: int | None = None, checksum: str | None = None, seen: str = _LISTED
) -> Archive:
    return Archive(f"{MIRROR}/{name}.zip", seen, megabytes, size, checksum)


def _owned(
    licence: str, mirror: Archive, *owner: Archive, split: tuple[int, str] | None = None, asks: bool = False
) -> Origin:
    return Origin(licence, (owner, (mirror,)), asks, split, mirror if split else None)


def _mirrored(licence: str, mirror: Archive, gone: str, asks: bool = False) -> Origin:
    return Origin(licence, ((mirror,),), asks, gone=gone)


_RESEARCH = "non-commercial research only"
SOURCES = {
    "ImageNet": Origin("terms of access of image-net.org: " + _RESEARCH, (), asks=True),
    "Caltech101": _owned(
        "CC BY 4.0", _mirror("caltech-101", 140),
        Archive("https://data.caltech.edu/records/mzrjq-6wc02/files/caltech-101.zip", _TFDS, 137, 137414764,
                "sha256:331234750fc7f77520e50d9565e8b6907b03565e30320da1401130db08c61f91",
                {"caltech-101/101_ObjectCategories.tar.gz": "."}),
        split=(809184, "52ce83205ff8ff8a1a18119aad6376120ae35c36e783a984bc560cbf10e73fa5"),
    ),
    "OxfordPets": _owned(
        "CC BY-SA 4.0", _mirror("oxford_pets", 810),
        Archive(f"{_VGG}/pets/data/images.tar.gz", _TORCHVISION, 792, None,
                "md5:5c4f3ee8e5d25df40f4fd59a7f44e54c", {"images": "images"}),
        Archive(f"{_VGG}/pets/data/annotations.tar.gz", _TORCHVISION, 19, None,
                "md5:95a8c909bbe2e81eed6a22bccdf3f68f", {"annotations": "annotations"}),
        split=(724217, "d7f3ffe65b3919f95132e51422894ae18686b83c331fd8c0adcdc3dc2de6301e"),
    ),
    "StanfordCars": _mirrored(
        _RESEARCH, _mirror("stanford_cars", 1959, 1959002685,
                           "sha256:50812812f33534ef2906b992762f96e8a5bb57b0eedc53800e91b7ed599abf8e"),
        "ai.stanford.edu: 404 since 2023-04 (pytorch/vision #7545)", asks=True,
    ),
    "Flowers102": _owned(
        "none stated by its owners; photos of the web", _mirror("oxford_flowers", 346),
        Archive(f"{_VGG}/flowers/102/102flowers.tgz", _TFDS, 345, 344862509,
                "sha256:2d01ecc807db462958cfe3d92f57a8c252b4abd240eb955770201e45f783b246", {"jpg": "jpg"}),
        split=(771139, "2f50c42fc1a17ca13c271cb4269b1347bdb43d2be672e34f74a4e4cbfbcca794"),
    ),
    "Food101": _owned(
        "photos belong to Foodspotting's users; scientific fair use only", _mirror("food101", 5000),
        Archive("http://data.vision.ee.ethz.ch/cvl/food-101.tar.gz", _TFDS, 4996, 4996278331,
                "sha256:d97d15e438b7f4498f96086a4f7e2fa42a32f2712e87d3295441b2b6314053a4", {"food-101": "."}),
        split=(10203303, "7c3d456c4f348255e1a363e0ea5118318936488f3ec20d83758e0ee67cb9037c"), asks=True,
    ),
    "FGVCAircraft": _owned(
        _RESEARCH, _mirror("fgvc_aircraft", 2753),
        Archive(f"{_VGG}/fgvc-aircraft/archives/fgvc-aircraft-2013b.tar.gz", _TORCHVISION, 2753, None, None,
                {"fgvc-aircraft-2013b/data": "."}), asks=True,
    ),
    "SUN397": _mirrored(
        "none stated by its owners; photos of the web, for research",
        _mirror("sun397", 39183, 39182693483,
                "sha256:ce6dee6685c9f1d592c8297e193dde885aa9c50d008fd998a38ccc57a3dda722"),
        "vision.princeton.edu: 404 since 2025-09 (CoOp #90), still 2026-06-25 (pytorch/vision #9348)",
    ),
    "DTD": _owned(
        "for research, as its owners write", _mirror("dtd", 627),
        Archive(f"{_VGG}/dtd/download/dtd-r1.0.1.tar.gz", _TFDS, 625, 625239812,
                "sha256:e42855a52a4950a3b59612834602aa253914755c95b0cff9ead6d07395f8e205", {"dtd": "."}),
        split=(563702, "f26ebeccd2b58e68d70f07a0dc39fe49bf7b69024bac34396b954dfd87969c38"),
    ),
    "EuroSAT": _owned(
        "MIT", _mirror("eurosat", 94),
        Archive("hf://datasets/torchgeo/eurosat@c877bcd43f099cd0196738f714544e355477f3fd/EuroSAT.zip", _TORCHVISION,
                94, None, "md5:c8fa014336c82ac7804f0398fcb19387", {"2750": "2750"}),
        split=(3006492, "541503a77d0b26b735d85ec7a3e672804fe0aa466c2e5f07da772cc6c0af8ad2"),
    ),
    "UCF101": _mirrored(
        "none stated by its owners; frames of videos of the web",
        _mirror("ucf101", 140, 140164538, "sha256:2fe1bd40e64408d02ff173badf744da557033ae6c75dd4ea51519366551f3ae6"),
        "the middle frames were never on the owner's host: CoOp's drive link only",
    ),
    "ImageNetV2": _owned(
        "MIT", _mirror("imagenetv2", 1265, seen=_UNDATED),
        Archive("hf://datasets/vaishaal/ImageNetV2/imagenetv2-matched-frequency.tar.gz", _TFDS, 1264, 1264079360,
                "sha256:f0c37fdf925916b19ea1323cd9a2208cdb6959ba2c32eef2a7fc393835c9ca7c",
                {"imagenetv2-matched-frequency-format-val": "imagenetv2-matched-frequency-format-val"}),
    ),
    "ImageNet-Sketch": _owned(
        "MIT", _mirror("imagenet-sketch", 7600, seen=_UNDATED),
        Archive("hf://datasets/songweig/imagenet_sketch/data/ImageNet-Sketch.zip", _TFDS, 7594, 7593573012,
                "sha256:4d3ce6b82a7c48aabf14aeac105eb533e75707f152cc858f55bfc022031a72ed", {"sketch": "images"}),
    ),
    "ImageNet-A": _owned(
        "MIT", _mirror("imagenet-adversarial", 690, seen=_UNDATED),
        Archive(f"{_BERKELEY}/imagenet-a.tar", _TFDS, 688, 687552512,
                "sha256:3bb3632277e6ba6392ea64c02ddbf4dd2266c9caffd6bc09c9656d28f012589e",
                {"imagenet-a": "imagenet-a"}),
    ),
    "ImageNet-R": _owned(
        "MIT", _mirror("imagenet-rendition", 2191, seen=_UNDATED),
        Archive(f"{_BERKELEY}/imagenet-r.tar", _TFDS, 2191, 2191079936,
                "sha256:18c6bf493b39a0d975d48e587437f562caab9c52ae6327dcfa9dd8eb54aa1b52",
                {"imagenet-r": "imagenet-r"}),
    ),
}  # fmt: skip
