"""The sixteen objects: drawings of a few strokes, light on dark ink, recognisable at 25 pixels."""

from collections.abc import Callable

from dear.data.world.scenery import RGB, Pen

Drawing = Callable[[Pen, RGB, RGB], None]


def _house(pen: Pen, light: RGB, ink: RGB) -> None:
    pen.rectangle((0.68, 0.12), (0.8, 0.4), light, ink)
    pen.rectangle((0.16, 0.45), (0.84, 0.95), light, ink)
    pen.polygon([(0.02, 0.5), (0.5, 0.04), (0.98, 0.5)], light, ink)
    pen.rectangle((0.42, 0.62), (0.6, 0.95), ink)
    pen.rectangle((0.23, 0.57), (0.36, 0.7), ink)
    pen.rectangle((0.66, 0.57), (0.78, 0.7), ink)


def _car(pen: Pen, light: RGB, ink: RGB) -> None:
    pen.polygon([(0.22, 0.48), (0.34, 0.24), (0.68, 0.24), (0.82, 0.48)], light, ink)
    pen.polygon([(0.02, 0.48), (0.9, 0.46), (0.99, 0.56), (0.99, 0.72), (0.02, 0.72)], light, ink)
    pen.polygon([(0.31, 0.45), (0.38, 0.31), (0.49, 0.31), (0.49, 0.45)], ink)
    pen.polygon([(0.55, 0.45), (0.55, 0.31), (0.65, 0.31), (0.73, 0.45)], ink)
    for x in (0.25, 0.76):
        pen.ellipse((x, 0.73), 0.13, 0.13, ink)
        pen.ellipse((x, 0.73), 0.05, 0.05, light)


def _boat(pen: Pen, light: RGB, ink: RGB) -> None:
    pen.line([(0.48, 0.04), (0.48, 0.7)], ink, 0.06)
    pen.polygon([(0.54, 0.06), (0.95, 0.6), (0.54, 0.6)], light, ink)
    pen.polygon([(0.43, 0.16), (0.43, 0.6), (0.12, 0.6)], light, ink)
    pen.polygon([(0.02, 0.68), (0.98, 0.68), (0.8, 0.94), (0.2, 0.94)], light, ink)


def _tree(pen: Pen, light: RGB, ink: RGB) -> None:
    pen.polygon([(0.43, 0.5), (0.57, 0.5), (0.62, 0.98), (0.38, 0.98)], ink)
    for x, y, r in ((0.28, 0.45, 0.23), (0.72, 0.45, 0.23), (0.5, 0.27, 0.26)):
        pen.ellipse((x, y), r, r, light, ink)
    pen.ellipse((0.5, 0.45), 0.24, 0.2, light)


def _fish(pen: Pen, light: RGB, ink: RGB) -> None:
    pen.polygon([(0.68, 0.5), (1.0, 0.22), (0.92, 0.5), (1.0, 0.78)], light, ink)
    pen.polygon([(0.32, 0.28), (0.52, 0.1), (0.62, 0.32)], light, ink)
    pen.ellipse((0.39, 0.5), 0.38, 0.26, light, ink)
    pen.ellipse((0.2, 0.44), 0.05, 0.05, ink)
    pen.line([(0.36, 0.3), (0.42, 0.5), (0.36, 0.7)], ink, 0.05)


def _cat(pen: Pen, light: RGB, ink: RGB) -> None:
    pen.polygon([(0.1, 0.5), (0.1, 0.04), (0.42, 0.25)], light, ink)
    pen.polygon([(0.9, 0.5), (0.9, 0.04), (0.58, 0.25)], light, ink)
    pen.ellipse((0.5, 0.56), 0.43, 0.38, light, ink)
    pen.ellipse((0.33, 0.5), 0.06, 0.08, ink)
    pen.ellipse((0.67, 0.5), 0.06, 0.08, ink)
    pen.polygon([(0.43, 0.65), (0.57, 0.65), (0.5, 0.74)], ink)
    for side in (-1, 1):
        for slope in (-0.05, 0.07):
            pen.line([(0.5 + side * 0.2, 0.7 + slope), (0.5 + side * 0.48, 0.68 + 2 * slope)], ink, 0.04)


def _bird(pen: Pen, light: RGB, ink: RGB) -> None:
    pen.polygon([(0.62, 0.5), (1.0, 0.3), (0.98, 0.6), (0.7, 0.72)], light, ink)
    pen.ellipse((0.5, 0.6), 0.3, 0.23, light, ink)
    pen.polygon([(0.1, 0.3), (-0.04, 0.38), (0.12, 0.44)], ink)
    pen.ellipse((0.25, 0.35), 0.18, 0.18, light, ink)
    pen.ellipse((0.21, 0.31), 0.04, 0.04, ink)
    pen.polygon([(0.42, 0.54), (0.74, 0.5), (0.56, 0.74)], ink)
    pen.line([(0.45, 0.82), (0.42, 0.98)], ink, 0.05)
    pen.line([(0.57, 0.82), (0.6, 0.98)], ink, 0.05)


def _cup(pen: Pen, light: RGB, ink: RGB) -> None:
    pen.ellipse((0.75, 0.58), 0.2, 0.18, None, ink)
    pen.ellipse((0.75, 0.58), 0.15, 0.13, None, ink)
    pen.polygon([(0.08, 0.36), (0.74, 0.36), (0.66, 0.92), (0.16, 0.92)], light, ink)
    for x in (0.24, 0.42, 0.6):
        pen.line([(x, 0.28), (x - 0.05, 0.2), (x + 0.05, 0.12), (x, 0.04)], ink, 0.05)


def _door_key(pen: Pen, light: RGB, ink: RGB) -> None:
    pen.polygon([(0.4, 0.42), (0.98, 0.42), (0.98, 0.58), (0.4, 0.58)], light, ink)
    pen.rectangle((0.72, 0.55), (0.8, 0.76), light, ink)
    pen.rectangle((0.88, 0.55), (0.97, 0.82), light, ink)
    pen.ellipse((0.24, 0.5), 0.24, 0.24, light, ink)
    pen.ellipse((0.22, 0.5), 0.1, 0.1, ink)


def _umbrella(pen: Pen, light: RGB, ink: RGB) -> None:
    pen.line([(0.5, 0.1), (0.5, 0.86), (0.58, 0.94), (0.68, 0.86)], ink, 0.07)
    arc = [(0.5 - 0.48 * c, 0.52 - 0.42 * s) for c, s in _HALF_CIRCLE]
    scallop = [(0.98, 0.52), (0.82, 0.45), (0.66, 0.52), (0.5, 0.45), (0.34, 0.52), (0.18, 0.45), (0.02, 0.52)]
    pen.polygon(arc + scallop, light, ink)
    pen.line([(0.34, 0.5), (0.5, 0.1), (0.66, 0.5)], ink, 0.04)


def _rocket(pen: Pen, light: RGB, ink: RGB) -> None:
    pen.polygon([(0.4, 0.8), (0.5, 1.02), (0.6, 0.8)], ink)
    pen.polygon([(0.32, 0.5), (0.1, 0.86), (0.34, 0.8)], light, ink)
    pen.polygon([(0.68, 0.5), (0.9, 0.86), (0.66, 0.8)], light, ink)
    body = [(0.5, -0.02), (0.66, 0.2), (0.7, 0.5), (0.64, 0.82), (0.36, 0.82), (0.3, 0.5), (0.34, 0.2)]
    pen.polygon(body, light, ink)
    pen.ellipse((0.5, 0.38), 0.1, 0.1, ink)


def _mushroom(pen: Pen, light: RGB, ink: RGB) -> None:
    pen.polygon([(0.38, 0.5), (0.62, 0.5), (0.7, 0.96), (0.3, 0.96)], light, ink)
    pen.polygon([(0.5 - 0.46 * c, 0.56 - 0.5 * s) for c, s in _HALF_CIRCLE], light, ink)
    for x, y, r in ((0.5, 0.2, 0.08), (0.27, 0.4, 0.07), (0.72, 0.4, 0.07)):
        pen.ellipse((x, y), r, r, ink)


def _crown(pen: Pen, light: RGB, ink: RGB) -> None:
    points = [(0.04, 0.22), (0.28, 0.5), (0.5, 0.1), (0.72, 0.5), (0.96, 0.22), (0.88, 0.86), (0.12, 0.86)]
    pen.polygon(points, light, ink)
    pen.line([(0.12, 0.72), (0.88, 0.72)], ink, 0.05)
    for x, y in ((0.04, 0.2), (0.5, 0.08), (0.96, 0.2)):
        pen.ellipse((x, y), 0.06, 0.06, ink)


def _apple(pen: Pen, light: RGB, ink: RGB) -> None:
    pen.ellipse((0.34, 0.6), 0.28, 0.34, light, ink)
    pen.ellipse((0.66, 0.6), 0.28, 0.34, light, ink)
    pen.ellipse((0.5, 0.62), 0.2, 0.28, light)
    pen.line([(0.5, 0.36), (0.53, 0.06)], ink, 0.07)
    pen.polygon([(0.56, 0.22), (0.7, 0.04), (0.92, 0.08), (0.76, 0.24)], ink)


def _anchor(pen: Pen, light: RGB, ink: RGB) -> None:
    flukes = [(0.08, 0.6), (0.16, 0.78), (0.32, 0.9), (0.5, 0.94), (0.68, 0.9), (0.84, 0.78), (0.92, 0.6)]
    for color, wide in ((ink, 0.2), (light, 0.1)):  # the ink first, a little wider: an outline
        pen.line([(0.5, 0.22), (0.5, 0.9)], color, wide)
        pen.line([(0.25, 0.38), (0.75, 0.38)], color, wide)
        pen.line(flukes, color, wide)
    pen.ellipse((0.5, 0.14), 0.13, 0.13, light, ink)
    pen.ellipse((0.5, 0.14), 0.05, 0.05, ink)


def _butterfly(pen: Pen, light: RGB, ink: RGB) -> None:
    for side in (-1, 1):
        pen.ellipse((0.5 + side * 0.26, 0.32), 0.24, 0.26, light, ink)
        pen.ellipse((0.5 + side * 0.2, 0.72), 0.18, 0.2, light, ink)
        pen.ellipse((0.5 + side * 0.28, 0.3), 0.09, 0.1, ink)
        pen.line([(0.5, 0.2), (0.5 + side * 0.14, -0.02)], ink, 0.04)
    pen.ellipse((0.5, 0.52), 0.06, 0.36, ink)


_QUARTER = [(1.0, 0.0), (0.95, 0.31), (0.81, 0.59), (0.59, 0.81), (0.31, 0.95), (0.0, 1.0)]
_HALF_CIRCLE = [*_QUARTER, *((-x, y) for x, y in _QUARTER[-2::-1])]

DRAWINGS: dict[str, Drawing] = {
    "house": _house, "car": _car, "boat": _boat, "tree": _tree, "fish": _fish, "cat": _cat,
    "bird": _bird, "cup": _cup, "key": _door_key, "umbrella": _umbrella, "rocket": _rocket,
    "mushroom": _mushroom, "crown": _crown, "apple": _apple, "anchor": _anchor, "butterfly": _butterfly,
}  # fmt: skip
