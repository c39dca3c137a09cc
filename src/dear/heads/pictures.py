"""Pictures that heads are judged by: a folder, Attribute World, and probes, in which a labelled attribute varies."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from dear.core.errors import DearError
from dear.core.names import CORE_ATTRIBUTES
from dear.data.dataset import Dataset, Example, ImageFile, Picture
from dear.data.folder import image_files
from dear.data.resolve import resolve_dataset
from dear.data.world.vocabulary import VALUES, Scene, Traits, is_held_out
from dear.heads.concepts import Concepts

COLOR = "color"
ATTRIBUTE_WORLD = "world"  # as --probe and --images name it
WORLD_PICTURES = 1000
T = TypeVar("T")


@dataclass(frozen=True)
class PictureList:
    """Pictures in a fixed order, with the source they come from; each has a name of its own."""

    source: str
    pictures: Sequence[Picture]
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.pictures)

    @property
    def digest(self) -> str:
        """SHA-256 of the names in order: equal for equal lists."""
        return hashlib.sha256("\n".join(self.names).encode("utf-8", "surrogatepass")).hexdigest()

    def spread(self, count: int | None) -> "PictureList":
        """At most `count` of the pictures, spread evenly."""
        return PictureList(self.source, spread_evenly(self.pictures, count), spread_evenly(self.names, count))


def spread_evenly(items: Sequence[T], count: int | None) -> Sequence[T]:
    """At most `count` items, spread evenly: lists of images are sorted, so that their first items are of one class."""
    if count is None or count >= len(items):
        return items
    return [items[i * len(items) // count] for i in range(count)]


def folder_pictures(folder: str | Path) -> PictureList:
    """All images in a folder and its subfolders, sorted; names include the file size, so that a change is noticed."""
    folder = Path(folder)
    if not folder.is_dir():
        raise DearError(f"There is no folder {folder}: give a folder of images, or world for Attribute World.")
    files = image_files(folder)
    if not files:
        raise DearError(f"There is no image in {folder} or its subfolders: give another folder.")
    names = [f"{path.relative_to(folder).as_posix()} ({_file_size(path)} bytes)" for path in files]
    return PictureList(folder.resolve().name, [ImageFile(path) for path in files], names)


def _file_size(path: Path) -> int:
    """File size in bytes; 0 for a missing file, which is reported when it is opened."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def world_pictures(count: int, size: int = 64, held_out: bool = False) -> PictureList:
    """Pictures of Attribute World, the same in every run; held-out ones show combinations that the others don't."""
    rng = Random("roles")
    scenes: list[Scene] = []
    while len(scenes) < count:
        traits = Traits(**{attribute: rng.choice(values) for attribute, values in VALUES.items()})
        if is_held_out(traits) == held_out:
            scenes.append(Scene(traits, rng.getrandbits(40), size=size))
    return PictureList("Attribute World", scenes, [f"{' '.join(s.traits)} {s.seed}" for s in scenes])


# --- probes ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Probe:
    """Pictures with labels from 0, one list per attribute.

    With `by_pixels` they also probe color: photos have a mean color and need no label for it.
    """

    pictures: PictureList
    labels: Mapping[str, Sequence[int]] = field(default_factory=dict)
    drawn: bool = False
    by_pixels: bool = False

    @property
    def attributes(self) -> tuple[str, ...]:
        return (*self.labels, *([COLOR] if self.by_pixels else []))

    def about(self, colored: bool) -> dict[str, Any]:
        """The probe as a role map records it, without paths; `colored`: some of its pictures were not grey."""
        kind = "drawn pictures" if self.drawn else "photos"
        attributes = [*self.labels, *([COLOR] if self.by_pixels and colored else [])]
        return {
            "attributes": attributes,
            "source": self.pictures.source,
            "kind": kind,
            "used": len(self.pictures),
            "sha256": self.pictures.digest,
        }


def find_probes(
    sources: Sequence[str] = (),
    size: int = 64,
    limit: int | None = None,
    data_root: str | None = None,
    held_out: bool = False,
) -> list[Probe]:
    """Probes of all core attributes from `sources`, ATTRIBUTE=DATA; the rest is drawn, `size` pixels per side.

    Color is measured by the pixels of all photos, unless color has a source of its own. `limit` is the largest number
    of pictures per probe. Roles are measured on training images; `held_out` takes all others.
    """
    data_of = _parse(sources)
    drawn = [attribute for attribute in CORE_ATTRIBUTES if data_of.get(attribute) == ATTRIBUTE_WORLD]
    photos = {attribute: data for attribute, data in data_of.items() if data != ATTRIBUTE_WORLD}
    probes = []
    for attribute, data in photos.items():
        by_pixels = attribute == COLOR or COLOR not in data_of
        probes.append(labelled_probe(attribute, resolve_dataset(data, root=data_root), limit, by_pixels, held_out))
    covered = {*data_of, *(attribute for probe in probes for attribute in probe.attributes)}
    drawn += [attribute for attribute in CORE_ATTRIBUTES if attribute not in covered]
    return [*probes, drawn_probe(drawn, limit or WORLD_PICTURES, size, held_out)] if drawn else probes


def drawn_probe(attributes: Sequence[str], count: int, size: int, held_out: bool = False) -> Probe:
    """Pictures of Attribute World, where all attributes vary independently: one set probes all of them."""
    pictures = world_pictures(count, size, held_out)
    scenes = [scene for scene in pictures.pictures if isinstance(scene, Scene)]
    rows = [scene.traits.labels for scene in scenes]  # in the order of the core attributes
    labels = {attribute: [row[CORE_ATTRIBUTES.index(attribute)] for row in rows] for attribute in attributes}
    return Probe(pictures, labels, drawn=True)


def labelled_probe(attribute: str, dataset: Dataset, limit: int | None, by_pixels: bool, held_out: bool) -> Probe:
    """A dataset's training images, or all others, with their labels; `by_pixels` lets photos probe color, too."""
    examples = spread_evenly([*dataset.val, *dataset.test] if held_out else dataset.train, limit)
    drawn = all(isinstance(example.picture, Scene) for example in examples)
    by_pixels = (
        by_pixels and not drawn
    )  # the color of a drawn picture is its sign's, and most pixels are not of the sign
    labels = {} if attribute == COLOR and by_pixels else {attribute: [example.label for example in examples]}
    if any(len(set(of_attribute)) < 2 for of_attribute in labels.values()) or len(examples) < 2:
        which = "held-out" if held_out else "training"
        raise DearError(f"{dataset.name} has too few labels in its {which} images to probe {attribute}.")
    pictures = PictureList(dataset.name, [e.picture for e in examples], [_name(e) for e in examples])
    return Probe(pictures, labels, drawn, by_pixels)


def _name(example: Example) -> str:
    """A name without the path, which is private; with a file's size, so that a change is noticed."""
    picture = example.picture
    if isinstance(picture, ImageFile):
        return f"{example.label} {picture.path.name} ({_file_size(picture.path)} bytes)"
    return f"{example.label} {picture}"


def _parse(sources: Sequence[str]) -> dict[str, str]:
    """ATTRIBUTE=DATA as a mapping from attribute to data."""
    concepts = Concepts.shipped().names
    data_of: dict[str, str] = {}
    for text in sources:
        attribute, equals, data = text.partition("=")
        if not equals or not data:
            raise DearError(f"--probe {text} is not understood: write ATTRIBUTE=DATA, as in texture=photos/textures.")
        if attribute not in concepts:
            raise DearError(f"--probe can't be about {attribute!r}: choose one of {', '.join(concepts)}.")
        if attribute in data_of:
            raise DearError(f"--probe is given twice for {attribute}: put its pictures into one folder.")
        if data == ATTRIBUTE_WORLD and attribute not in CORE_ATTRIBUTES:
            raise DearError(f"Attribute World has no {attribute}: give a folder of your own.")
        data_of[attribute] = data
    return data_of
