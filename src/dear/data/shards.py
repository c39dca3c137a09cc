"""--data wds:PATTERN: webdataset shards (.tar) as CLIP_benchmark makes them.

    FOLDER/train/0.tar, FOLDER/test/0.tar, ...        with s0000000.webp and s0000000.cls (the number of its class)
    FOLDER/classnames.txt                             one name per line
    FOLDER/zeroshot_classification_templates.txt      the first is used, unless --template is given

Shards are indexed once and never unpacked; an image is read from its place in the shard when it is opened.
"""

import glob
import itertools
import math
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from dear.core.errors import DearError
from dear.core.files import open_regular, read_text
from dear.core.progress import progress
from dear.data.dataset import CLASS_NAMES_FILE, Dataset
from dear.data.decode import open_bytes
from dear.data.memory import as_dataset, splits_or_whole
from dear.data.splits import split_of

_TEMPLATES_FILE = "zeroshot_classification_templates.txt"
_IMAGE_KINDS = ("webp", "jpg", "jpeg", "png")
_LONGEST_LABEL = 1000  # bytes
_MOST_SHARDS = 100_000


@dataclass(frozen=True)
class ShardImage:
    """An image in a tar file, read from its place there."""

    shard: Path
    name: str
    offset: int
    size: int

    def open(self) -> Image.Image:
        return open_bytes(self.content(), f"The image {self} cannot be read ({{}}): make the shard again.")

    def content(self) -> bytes:
        return _bytes_at(self.shard, self.offset, self.size)

    def __str__(self) -> str:
        return f"{self.shard}/{self.name}"


def shard_dataset(pattern: str, template: str) -> Dataset:
    """A dataset of shards. `pattern`: a folder, or shards by a glob or a range such as data/test/{0..9}.tar."""
    shards = _find_shards(pattern)
    parts: dict[str, list[Path]] = {}
    for shard in shards:
        parts.setdefault(shard.parent.name if split_of(shard.parent.name) else "", []).append(shard)
    if "" in parts and len(parts) > 1:
        raise DearError(f"Only some of the shards of {pattern} are in folders train, val or test: give those alone.")
    first = shards[0].parent
    folder = first if "" in parts or (first / CLASS_NAMES_FILE).is_file() else first.parent
    names, templates = folder / CLASS_NAMES_FILE, folder / _TEMPLATES_FILE
    classes = [name for name in read_text(names).split("\n") if name.strip()] if names.is_file() else None
    if templates.is_file():
        lines = [line for line in read_text(templates).splitlines() if line.count("{c}") == 1]
        template = lines[0].replace("{c}", "{}") if lines else template
    data = {part: _index_shards(files) for part, files in parts.items()}
    return as_dataset(splits_or_whole(data), classes=classes, template=template, name=folder.resolve().name)


def _find_shards(pattern: str) -> list[Path]:
    if "://" in pattern:
        raise DearError(f"{pattern} is an address: download the shards (hf download), or use hf:USER/NAME.")
    folder = Path(pattern)
    if folder.is_dir():
        shards = sorted([*folder.glob("*.tar"), *(s for s in folder.glob("*/*.tar") if split_of(s.parent.name))])
    else:
        shards = [Path(match) for one in _ranges(pattern) for match in sorted(glob.glob(one))]
    if not shards:
        raise DearError(f"{pattern} names no shards: give a folder of .tar files, or a pattern in quotes.")
    return shards


def _ranges(pattern: str) -> Iterator[str]:
    """Expands "{0..2}.tar" to "0.tar", "1.tar", "2.tar", with as many digits as the first number has."""
    texts = re.split(r"\{([0-9]+)\.\.([0-9]+)\}", pattern)  # text, low, high, text, low, high, text
    lows, highs = texts[1::3], texts[2::3]
    if any(len(number) > 9 for number in (*lows, *highs)):
        raise DearError(f"{pattern} has a number of more than 9 digits: give the numbers of the first and last shard.")
    ranges = [range(int(low), int(high) + 1) for low, high in zip(lows, highs, strict=True)]
    if (count := math.prod(map(len, ranges))) > _MOST_SHARDS:
        raise DearError(f"{pattern} names {count} shards: at most {_MOST_SHARDS} are read.")
    for numbers in itertools.product(*ranges):
        found = (f"{number:0{len(low)}d}" for number, low in zip(numbers, lows, strict=True))
        yield "".join(itertools.chain(*zip(texts[::3], (*found, ""), strict=True)))


def _index_shards(shards: list[Path]) -> tuple[list[ShardImage], list[str | int]]:
    """All images of the shards, and the label of each."""
    images: list[ShardImage] = []
    labels: list[str | int] = []
    for shard in progress(shards, "indexing shards", "shard"):
        for key, (image, label) in _samples(shard).items():
            if image is None or label is None:
                raise DearError(f"{shard} has no {'label (.cls)' if image else 'image'} for {key}: make it again.")
            images.append(image)
            labels.append(int(label) if label.isdecimal() else label)
    return images, labels


def _samples(shard: Path) -> dict[str, tuple[ShardImage | None, str | None]]:
    """Images and labels by their common name: that of their files up to the first dot."""
    samples: dict[str, tuple[ShardImage | None, str | None]] = {}
    try:
        with open_regular(shard) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            size = shard.stat().st_size
            for member in tar:
                folder, _, name = member.name.rpartition("/")
                stem, _, kind = name.partition(".")
                if not member.isreg() or member.issparse() or kind.lower() not in (*_IMAGE_KINDS, "cls"):
                    continue
                if member.offset_data + member.size > size:
                    raise tarfile.ReadError("it ends too early")
                image, label = samples.get(key := f"{folder}/{stem}", (None, None))
                if kind.lower() == "cls":
                    label = _bytes_at(shard, member.offset_data, min(member.size, _LONGEST_LABEL)).decode().strip()
                else:
                    image = ShardImage(shard, member.name, member.offset_data, member.size)
                samples[key] = image, label
    except (OSError, ValueError, tarfile.TarError) as error:
        raise DearError(f"{shard} cannot be read as a shard, an uncompressed tar file: {error}.") from None
    return samples


def _bytes_at(shard: Path, offset: int, size: int) -> bytes:
    try:
        with open_regular(shard) as file:
            file.seek(offset)
            return file.read(size)
    except OSError as error:
        raise DearError(f"{shard} cannot be read: {error.strerror}.") from None
