"""The twelve places: each is recognised by its things around the sign, in any light and layout."""

from collections.abc import Callable
from random import Random

from dear.data.world import landscapes, surroundings
from dear.data.world.pen import Pen
from dear.data.world.scenery import DARK_PALETTES, PALETTES, Scenery

BACKDROPS: dict[str, Callable[[Scenery], None]] = {
    "beach": landscapes.draw_beach,
    "forest": landscapes.draw_forest,
    "desert": landscapes.draw_desert,
    "city": surroundings.draw_city,
    "mountains": landscapes.draw_mountains,
    "meadow": landscapes.draw_meadow,
    "arctic": landscapes.draw_arctic,
    "reef": surroundings.draw_reef,
    "space": surroundings.draw_space,
    "volcano": landscapes.draw_volcano,
    "library": surroundings.draw_library,
    "kitchen": surroundings.draw_kitchen,
}


def draw_place(name: str, pen: Pen, rng: Random) -> None:
    """The background of a picture, without any of the objects. Space is dark; all else comes in every palette."""
    scenery = Scenery(pen, rng, DARK_PALETTES if name == "space" else PALETTES)
    BACKDROPS[name](scenery)
    scenery.weather()
