"""A pen, and the palettes, sky, land and weather of all places: a place differs by its things, not by its colors."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import NamedTuple

from PIL import ImageDraw

RGB = tuple[int, int, int]
Point = tuple[float, float]


class Pen:
    """Draws on the box (left, top, width, height) of a picture, whose corners are (0, 0) and (1, 1).

    `outline`: pixels of the ink around what is drawn.
    """

    def __init__(
        self, draw: ImageDraw.ImageDraw, box: tuple[float, float, float, float], outline: int, mirrored: bool = False
    ):
        self.draw, self.box, self.outline, self.mirrored = draw, box, outline, mirrored

    def at(self, point: Point) -> Point:
        left, top, width, height = self.box
        x = 1 - point[0] if self.mirrored else point[0]
        return left + x * width, top + point[1] * height

    def polygon(self, points: Sequence[Point], fill: RGB, ink: RGB | None = None) -> None:
        self.draw.polygon([self.at(p) for p in points], fill=fill, outline=ink, width=self.outline if ink else 0)

    def ellipse(self, center: Point, rx: float, ry: float, fill: RGB | None, ink: RGB | None = None) -> None:
        (x, y), (_, _, width, height) = self.at(center), self.box
        box = (x - rx * width, y - ry * height, x + rx * width, y + ry * height)
        self.draw.ellipse(box, fill=fill, outline=ink, width=self.outline if ink else 0)

    def rectangle(self, corner: Point, other: Point, fill: RGB, ink: RGB | None = None) -> None:
        (x0, y0), (x1, y1) = self.at(corner), self.at(other)
        box = (min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1))
        self.draw.rectangle(box, fill=fill, outline=ink, width=self.outline if ink else 0)

    def line(self, points: Sequence[Point], color: RGB, width: float = 0.05) -> None:
        thick = max(1, round(width * self.box[2]))
        self.draw.line([self.at(p) for p in points], fill=color, width=thick, joint="curve")


class Palette(NamedTuple):
    """The colors of a season and an hour. Any place can be drawn in any of them."""

    sky: RGB
    glow: RGB  # of the sky near the horizon
    land: RGB
    land_two: RGB
    land_three: RGB
    light: RGB
    dark: RGB
    accent: RGB


PALETTES = {
    "noon": Palette((110, 190, 245), (215, 238, 252), (120, 160, 190), (110, 185, 85), (235, 210, 150),
                    (255, 252, 240), (60, 70, 90), (250, 120, 90)),
    "autumn": Palette((225, 205, 165), (250, 236, 205), (205, 155, 95), (190, 110, 50), (140, 85, 45),
                      (255, 246, 220), (85, 55, 35), (210, 65, 40)),
    "frost": Palette((165, 200, 225), (235, 245, 252), (165, 192, 212), (205, 225, 238), (246, 250, 255),
                     (255, 255, 255), (85, 110, 140), (95, 150, 200)),
    "lagoon": Palette((75, 185, 195), (175, 232, 218), (45, 140, 155), (95, 175, 150), (225, 212, 165),
                      (235, 255, 240), (20, 75, 95), (250, 140, 110)),
    "rose": Palette((235, 170, 190), (255, 225, 220), (205, 140, 165), (170, 105, 145), (240, 200, 190),
                    (255, 245, 240), (95, 60, 95), (250, 200, 90)),
    "mist": Palette((185, 190, 190), (218, 220, 216), (160, 170, 170), (125, 138, 138), (172, 165, 150),
                    (242, 242, 236), (75, 82, 88), (205, 120, 90)),
    "moss": Palette((195, 215, 170), (230, 240, 205), (130, 165, 115), (75, 125, 80), (150, 130, 85),
                    (250, 250, 220), (40, 65, 50), (230, 180, 70)),
}  # fmt: skip
DARK_PALETTES = {
    "dusk": Palette((80, 70, 140), (245, 160, 130), (120, 85, 130), (80, 60, 105), (155, 95, 95),
                    (255, 230, 150), (42, 35, 68), (255, 125, 95)),
    "night": Palette((14, 16, 44), (50, 52, 104), (42, 55, 100), (30, 42, 75), (62, 70, 115),
                     (240, 235, 190), (10, 12, 30), (150, 170, 235)),
    "ember": Palette((75, 28, 38), (205, 80, 50), (115, 52, 52), (72, 42, 46), (165, 80, 48),
                     (255, 210, 110), (36, 22, 26), (255, 130, 40)),
    "deep": Palette((8, 45, 70), (22, 110, 120), (15, 85, 105), (12, 62, 85), (60, 120, 115),
                    (205, 245, 225), (4, 25, 42), (245, 150, 110)),
    "plum": Palette((48, 22, 62), (145, 58, 115), (95, 45, 100), (68, 32, 78), (130, 75, 110),
                    (255, 225, 225), (28, 12, 38), (240, 190, 90)),
}  # fmt: skip
PALETTES |= DARK_PALETTES


def mix(one: RGB, other: RGB, part: float) -> RGB:
    """The color between `one` (part 0) and `other` (part 1)."""
    r, g, b = (round(a + (z - a) * part) for a, z in zip(one, other, strict=True))
    return r, g, b


class Scenery:
    """A palette on a pen. `land` is shuffled, so that no thing of a place has a fixed shade."""

    def __init__(self, pen: Pen, rng: Random, palettes: dict[str, Palette] = PALETTES) -> None:
        self.pen, self.rng = pen, rng
        self.palette = Palette(*(self._tint(color) for color in palettes[rng.choice(list(palettes))]))
        self.land = rng.sample((self.palette.land, self.palette.land_two, self.palette.land_three), 3)

    def _tint(self, color: RGB) -> RGB:
        r, g, b = (min(255, max(0, c + self.rng.randint(-10, 10))) for c in color)
        return r, g, b

    def against(self, color: RGB) -> RGB:
        """The lightest or the darkest color of the palette, whichever contrasts more with `color`."""
        return max((self.palette.light, self.palette.dark), key=lambda c: abs(sum(c) - sum(color)))

    def side(self) -> float:
        """An x near the left or the right edge, outside the sign."""
        return self.rng.choice((self.rng.uniform(0.04, 0.16), self.rng.uniform(0.84, 0.96)))

    def sky(self, until: float = 1.0) -> None:
        """Draws the sky down to `until`: smooth, in bands, or of one color; with a sun or clouds, or empty."""
        top, low = self.palette.sky, self.palette.glow
        if self.rng.random() < 0.3:
            top, low = low, top
        steps = self.rng.choice((1, 5, 24))
        for i in range(steps):
            color = mix(top, low, i / max(1, steps - 1))
            self.pen.rectangle((0, until * i / steps), (1, until * (i + 1) / steps), color)
        kind = self.rng.choice(("sun", "clouds", "both", "empty"))
        if kind in ("sun", "both"):
            radius = self.rng.uniform(0.06, 0.12)
            color = self.palette.accent if self.against(top) == self.palette.dark else self.palette.light
            self.pen.ellipse((self.side(), self.rng.uniform(0.08, 0.2)), radius, radius, color)
        if kind in ("clouds", "both"):
            color = mix(top, self.against(top), 0.25 if self.against(top) == self.palette.dark else 0.6)
            for x in self.rng.sample((0.15, 0.5, 0.85), self.rng.randint(1, 3)):
                self.cloud(x, self.rng.uniform(0.05, 0.2), self.rng.uniform(0.05, 0.09), color)

    def cloud(self, x: float, y: float, size: float, color: RGB) -> None:
        for dx, dy, r in ((-0.9, 0.15, 0.5), (0.0, 0.0, 0.7), (0.9, 0.15, 0.5)):
            self.pen.ellipse((x + dx * size, y + dy * size), 1.2 * r * size, r * size, color)

    def ground(self, top: float, color: RGB, rough: float = 0.04) -> None:
        """Draws land from `top` down, with an edge of hills or flat, bare or streaked."""
        at = [(x / 4, top + self.rng.uniform(-rough, rough)) for x in range(5)]
        self.pen.polygon([*self._curve(at), (1, 1), (0, 1)], color)
        if self.rng.random() < 0.4:
            streak, tilt = mix(color, self.against(color), 0.35), self.rng.uniform(-0.04, 0.04)
            for _ in range(self.rng.randint(4, 14)):
                x, y, length = self.rng.random(), self.rng.uniform(top + rough, 0.99), self.rng.uniform(0.03, 0.14)
                self.pen.line([(x, y), (x + length, y + tilt)], streak, 0.012)

    @staticmethod
    def _curve(points: list[Point]) -> list[Point]:
        """The same path with rounded corners (Chaikin's corner cutting, twice)."""
        for _ in range(2):
            cut = [(a[0] + (b[0] - a[0]) * t, a[1] + (b[1] - a[1]) * t)
                   for a, b in pairwise(points) for t in (0.25, 0.75)]  # fmt: skip
            points = [points[0], *cut, points[-1]]
        return points

    def weather(self) -> None:
        """Draws specks, streaks, leaves or nothing, in any place: snow, plankton, dust; rain, current; petals."""
        rng, kind = self.rng, self.rng.choice(("nothing", "nothing", "specks", "streaks", "leaves"))
        if kind == "nothing":
            return
        color = rng.choice((self.palette.light, self.palette.accent, self.palette.glow))
        tilt, size = rng.uniform(-0.08, 0.08), rng.uniform(0.006, 0.016)
        for _ in range(rng.randint(12, 45)):
            x, y = rng.random(), rng.random()
            if kind == "specks":
                self.pen.ellipse((x, y), size, size, color)
            elif kind == "streaks":
                self.pen.line([(x, y), (x + tilt, y + 0.1)], color, 0.008)
            else:
                turn = rng.uniform(-0.03, 0.03)
                self.pen.line([(x, y), (x + turn, y + 0.02)], color, 0.022)
