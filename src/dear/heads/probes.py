"""Probes: labelled pictures in which an attribute varies, drawn or one's own, by which heads are judged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dear.core.errors import DearError
from dear.data.dataset import Dataset, Example, ImageFile
from dear.data.resolve import resolve_dataset
from dear.data.world.vocabulary import ATTRIBUTES, Scene
from dear.heads.concepts import Concepts
from dear.heads.picture_list import PictureList, spread, world_pictures

COLOR = "color"
WORLD = "world"
WORLD_PICTURES = 1000


@dataclass(frozen=True)
class Probe:
    """Pictures with a label for each attribute that they probe, as a number from 0.

    Of photos the mean color of the pixels probes color, without any label; `by_pixels` says whether it is asked for.
    """

    pictures: PictureList
    labels: Mapping[str, Sequence[int]] = field(default_factory=dict)
    drawn: bool = False
    by_pixels: bool = False

    @property
    def attributes(self) -> tuple[str, ...]:
        return (*self.labels, *([COLOR] if self.by_pixels else []))

    def about(self, colored: bool) -> dict[str, Any]:
        """What a role map says of it, without paths; `colored`: some of its pictures were not grey."""
        kind = "drawn pictures" if self.drawn else "photos"
        attributes = [*self.labels, *([COLOR] if self.by_pixels and colored else [])]
        known = {"attributes": attributes, "source": self.pictures.source, "kind": kind}
        return {**known, "used": len(self.pictures), "sha256": self.pictures.digest}


def find_probes(
    given: Sequence[str] = (), size: int = 64, limit: int | None = None, root: str | None = None, held_out: bool = False
) -> list[Probe]:
    """Probes of all core attributes. `given`: ATTRIBUTE=DATA, the rest is drawn, `size` pixels a side.

    Color is told by the pixels of the photos, of all of them unless a probe of its own is given. `limit` is the
    number of pictures of each probe at most. Roles are measured on training images; `held_out`: all others.
    """
    asked = _parse(given)
    drawn = [a for a in ATTRIBUTES if asked.get(a) == WORLD]
    photos = {attribute: data for attribute, data in asked.items() if data != WORLD}
    probes = []
    for attribute, data in photos.items():
        by_pixels = attribute == COLOR or COLOR not in asked
        probes.append(labelled_probe(attribute, resolve_dataset(data, root=root), limit, by_pixels, held_out))
    told = {attribute for probe in probes for attribute in probe.attributes}
    drawn += [attribute for attribute in ATTRIBUTES if attribute not in asked and attribute not in told]
    return [*probes, drawn_probe(drawn, limit or WORLD_PICTURES, size, held_out)] if drawn else probes


def drawn_probe(attributes: Sequence[str], count: int, size: int, held_out: bool = False) -> Probe:
    """Attribute World, where all attributes vary apart: one set of pictures probes all."""
    pictures = world_pictures(count, size, held_out)
    scenes = [scene for scene in pictures.pictures if isinstance(scene, Scene)]
    rows = [scene.traits.labels for scene in scenes]
    labels = {a: [row[ATTRIBUTES.index(a)] for row in rows] for a in attributes}
    return Probe(pictures, labels, drawn=True)


def labelled_probe(attribute: str, dataset: Dataset, limit: int | None, by_pixels: bool, held_out: bool) -> Probe:
    """A dataset's training images, or all others, with their label; of photos `by_pixels` probes color, too."""
    examples = spread([*dataset.val, *dataset.test] if held_out else dataset.train, limit)
    drawn = all(isinstance(example.picture, Scene) for example in examples)
    by_pixels = by_pixels and not drawn  # in a drawn picture color is the sign's, and most pixels are not of the sign
    labels = {} if attribute == COLOR and by_pixels else {attribute: [example.label for example in examples]}
    if any(len(set(of_attribute)) < 2 for of_attribute in labels.values()) or len(examples) < 2:
        which = "held-out" if held_out else "training"
        raise DearError(f"{dataset.name} has too few labels among its {which} images to probe {attribute}.")
    pictures = PictureList(dataset.name, [e.picture for e in examples], [_name(e) for e in examples])
    return Probe(pictures, labels, drawn, by_pixels)


def _name(example: Example) -> str:
    """Tells pictures apart without saying where somebody keeps them; a file's size notices a change."""
    picture = example.picture
    if isinstance(picture, ImageFile):
        size = picture.path.stat().st_size if picture.path.is_file() else 0
        return f"{example.label} {picture.path.name} ({size} bytes)"
    return f"{example.label} {picture}"


def _parse(given: Sequence[str]) -> dict[str, str]:
    known = Concepts.shipped().names
    asked: dict[str, str] = {}
    for text in given:
        attribute, equals, data = text.partition("=")
        if not equals or not data:
            raise DearError(f"--probe {text} is not understood: write ATTRIBUTE=DATA, as in texture=photos/textures.")
        if attribute not in known:
            raise DearError(f"--probe can't be about {attribute!r}: choose one of {', '.join(known)}.")
        if attribute in asked:
            raise DearError(f"--probe is given twice for {attribute}: put its pictures into one folder.")
        if data == WORLD and attribute not in ATTRIBUTES:
            raise DearError(f"Attribute World has no {attribute}: give a folder of your own.")
        asked[attribute] = data
    return asked
