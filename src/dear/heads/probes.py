"""Probes: pictures in which an attribute varies, with labels, drawn or of the user's, by which heads are judged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dear.core.errors import DearError
from dear.core.names import CORE_ATTRIBUTES
from dear.data.dataset import Dataset, Example, ImageFile
from dear.data.resolve import resolve_dataset
from dear.data.world.vocabulary import Scene
from dear.heads.concepts import Concepts
from dear.heads.picture_list import PictureList, spread, world_pictures

COLOR = "color"
WORLD = "world"
WORLD_PICTURES = 1000


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
    drawn = [attribute for attribute in CORE_ATTRIBUTES if data_of.get(attribute) == WORLD]
    photos = {attribute: data for attribute, data in data_of.items() if data != WORLD}
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
    examples = spread([*dataset.val, *dataset.test] if held_out else dataset.train, limit)
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
        size = picture.path.stat().st_size if picture.path.is_file() else 0
        return f"{example.label} {picture.path.name} ({size} bytes)"
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
        if data == WORLD and attribute not in CORE_ATTRIBUTES:
            raise DearError(f"Attribute World has no {attribute}: give a folder of your own.")
        data_of[attribute] = data
    return data_of
