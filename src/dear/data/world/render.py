"""Draws the picture of a scene: the place, then the sign with its shape, color and texture, then the object."""

import colorsys
from collections.abc import Callable
from random import Random

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageOps

from dear.data.world import landscapes, surroundings
from dear.data.world.objects import DRAWINGS
from dear.data.world.scenery import DARK_PALETTES, PALETTES, RGB, Pen, Scenery
from dear.data.world.signs import OUTLINES, pattern
from dear.data.world.vocabulary import Scene

# Hue, saturation and value of each color name.
_HSV: dict[str, tuple[float, float, float]] = {
    "red": (0.995, 0.85, 0.85), "orange": (0.075, 0.92, 0.98), "yellow": (0.145, 0.85, 0.98),
    "green": (0.34, 0.72, 0.62), "teal": (0.485, 0.85, 0.68), "blue": (0.61, 0.8, 0.85),
    "purple": (0.77, 0.62, 0.62), "pink": (0.92, 0.42, 0.98), "brown": (0.07, 0.7, 0.45),
    "black": (0.6, 0.1, 0.13), "gray": (0.6, 0.03, 0.52), "white": (0.1, 0.02, 0.97),
}  # fmt: skip


BACKDROPS: dict[str, Callable[[Scenery], None]] = {
    "beach": landscapes.draw_beach, "forest": landscapes.draw_forest, "desert": landscapes.draw_desert,
    "city": surroundings.draw_city, "mountains": landscapes.draw_mountains, "meadow": landscapes.draw_meadow,
    "arctic": landscapes.draw_arctic, "reef": surroundings.draw_reef, "space": surroundings.draw_space,
    "volcano": landscapes.draw_volcano, "library": surroundings.draw_library, "kitchen": surroundings.draw_kitchen,
}  # fmt: skip
"""The twelve places. Each is recognised by the things around the sign, in any light and layout."""


def render(scene: Scene) -> Image.Image:
    """The picture of a scene, RGB, size x size. The same scene always gives the same pixels."""
    rng = Random(scene.seed)
    canvas = 2 * scene.size  # drawn twice as large and reduced, which smooths the edges
    picture = Image.new("RGB", (canvas, canvas))
    pen = Pen(ImageDraw.Draw(picture), (0, 0, canvas, canvas), _outline(canvas), mirrored=rng.random() < 0.5)
    place = scene.traits.location
    scenery = Scenery(pen, rng, DARK_PALETTES if place == "space" else PALETTES)
    BACKDROPS[place](scenery)
    scenery.weather()
    center = (canvas * rng.uniform(0.465, 0.535), canvas * rng.uniform(0.465, 0.535))
    radius = canvas * rng.uniform(0.33, 0.38)
    _draw_sign(picture, scene, center, radius, rng)
    _draw_object(picture, scene.traits.object, center, radius, rng)
    return _STYLES[scene.style](picture.reduce(2), rng)


def _outline(canvas: int) -> int:
    return max(1, round(canvas / 64))


def _shades(color: str, rng: Random) -> tuple[RGB, RGB]:
    """The color of a sign and the second shade that its texture is drawn in."""
    hue, saturation, value = _HSV[color]
    hue += rng.uniform(-0.012, 0.012)
    value = min(1.0, value * rng.uniform(0.93, 1.07))
    second = value * 0.53 if value > 0.4 else value + 0.37

    def rgb(v: float) -> RGB:
        r, g, b = colorsys.hsv_to_rgb(hue % 1, saturation, v)
        return round(255 * r), round(255 * g), round(255 * b)

    return rgb(value), rgb(second)


def _draw_sign(picture: Image.Image, scene: Scene, center: tuple[float, float], radius: float, rng: Random) -> None:
    canvas = picture.width
    angle = rng.uniform(-0.12, 0.12)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    outline = (OUTLINES[scene.traits.shape] @ turn * radius).tolist()

    def paste(paint: Image.Image | RGB, grow: float, shift: float = 0.0, strength: int = 255) -> None:
        x, y = center
        points = [(x + shift + px * grow, y + shift + py * grow) for px, py in outline]
        mask = Image.new("L", picture.size, 0)
        ImageDraw.Draw(mask).polygon(points, fill=strength)
        picture.paste(paint, (0, 0), mask)

    paste((0, 0, 0), 1.08, shift=canvas * 3 / 128, strength=110)  # a shadow
    paste((45, 42, 50), 1.1)  # a dark and a light rim: the outline is visible on any background
    paste((252, 250, 242), 1.06)
    paste((45, 42, 50), 0.99)
    amount = pattern(scene.traits.texture, canvas, np.random.default_rng(rng.getrandbits(32)))
    first, second = (Image.new("RGB", picture.size, shade) for shade in _shades(scene.traits.color, rng))
    paste(Image.composite(second, first, Image.fromarray((255 * amount).astype(np.uint8))), 0.96)


def _draw_object(picture: Image.Image, name: str, center: tuple[float, float], radius: float, rng: Random) -> None:
    size = radius * rng.uniform(1.05, 1.15)
    x, y = (c + picture.width * rng.uniform(-1, 1) / 64 for c in center)
    box = (x - size / 2, y - size / 2 + 0.04 * radius, size, size)
    light = (255, 250 - rng.randint(0, 10), 235 - rng.randint(0, 15))
    pen = Pen(ImageDraw.Draw(picture), box, _outline(picture.width), mirrored=rng.random() < 0.5)
    DRAWINGS[name](pen, light, (38, 36, 46))


def _sketch(picture: Image.Image, rng: Random) -> Image.Image:
    """Pencil lines on paper, with only a little of the color left."""
    gray = ImageOps.grayscale(picture)
    lines = ImageOps.autocontrast(ImageOps.invert(gray.filter(ImageFilter.FIND_EDGES)), cutoff=2)
    paper = Image.blend(picture, Image.new("RGB", picture.size, (246, 242, 230)), 0.55)
    return Image.composite(paper, Image.new("RGB", picture.size, (60, 58, 64)), lines)


def _night(picture: Image.Image, rng: Random) -> Image.Image:
    """Dark and bluish, with the noise of a small sensor."""
    pixels = np.asarray(picture, dtype=np.float32) * (0.42, 0.45, 0.62)
    noise = np.random.default_rng(rng.getrandbits(32)).normal(0, 9, pixels.shape)
    pixels += np.add(noise, (4, 6, 18))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def _mosaic(picture: Image.Image, rng: Random) -> Image.Image:
    """Small tiles of few colors."""
    tiles = picture.quantize(32).convert("RGB").resize((32, 32), Image.Resampling.BOX)
    return tiles.resize(picture.size, Image.Resampling.NEAREST)


_STYLES = {"plain": lambda picture, rng: picture, "sketch": _sketch, "night": _night, "mosaic": _mosaic}
