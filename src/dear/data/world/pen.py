"""A pen that draws in unit coordinates on a part of a picture."""

from collections.abc import Sequence

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
