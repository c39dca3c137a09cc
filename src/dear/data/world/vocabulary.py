"""The words of Attribute World: every picture has one value of each of five attributes."""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from PIL import Image

from dear.core.names import CORE_ATTRIBUTES

VALUES: dict[str, tuple[str, ...]] = {
    "color": ("red", "orange", "yellow", "green", "teal", "blue", "purple", "pink", "brown", "black", "gray", "white"),
    "shape": ("circle", "oval", "square", "triangle", "diamond", "hexagon",
              "star", "heart", "cross", "shield", "flower", "drop"),
    "texture": ("smooth", "striped", "dotted", "checkered", "zigzag", "wavy",
                "bricked", "scaly", "woven", "speckled", "wooden", "marbled"),
    "object": ("house", "car", "boat", "tree", "fish", "cat", "bird", "cup",
               "key", "umbrella", "rocket", "mushroom", "crown", "apple", "anchor", "butterfly"),
    "location": ("beach", "forest", "desert", "city", "mountains", "meadow",
                 "arctic", "reef", "space", "volcano", "library", "kitchen"),
}  # fmt: skip
ATTRIBUTES = CORE_ATTRIBUTES
LOCATIONS = VALUES["location"]
WHERE = {place: f"in the {place}" for place in LOCATIONS} | {
    "beach": "at the beach", "reef": "at the reef", "volcano": "at the volcano", "space": "in space"
}  # fmt: skip
"""The place with its preposition, for captions."""

STYLES = ("plain", "sketch", "night", "mosaic")
"""`plain` is the style of the pretraining pictures; the others test domain shift."""


class Traits(NamedTuple):
    """The attributes of a picture: an object on a colored, textured sign of some shape, at some place."""

    color: str
    shape: str
    texture: str
    object: str
    location: str

    @property
    def labels(self) -> tuple[int, ...]:
        """The number of each value among all values of its attribute, in the order of ATTRIBUTES."""
        return tuple(values.index(value) for values, value in zip(VALUES.values(), self, strict=True))


@dataclass(frozen=True)
class Scene:
    """One picture. `seed` decides everything but the traits: position, tint, background details.

    `size`: side length in pixels; dear-mini takes 64. Other sizes show the same things at another resolution.
    """

    traits: Traits
    seed: int
    style: str = "plain"
    size: int = 64

    def open(self) -> Image.Image:
        """The picture, RGB, size x size."""
        return _rendered(self).copy()

    def content(self) -> bytes:
        return repr(self).encode()


@lru_cache(1024)  # every epoch opens the same few hundred, and drawing takes a third of a step
def _rendered(scene: Scene) -> Image.Image:
    from dear.data.world.render import render

    return render(scene)


def is_held_out(traits: Traits) -> bool:
    """Every eighth combination is excluded from pretraining, so that it can be used for testing."""
    code = 0
    for values, label in zip(VALUES.values(), traits.labels, strict=True):
        code = code * len(values) + label
    return (code * 2654435761 % 2**32) >> 29 == 0  # Knuth's hash: no attribute value is favoured
