"""The twelve places: backgrounds that are recognisable from what shows around the sign in the middle."""

from collections.abc import Callable
from random import Random

from dear.data.world.pen import RGB, Pen

Backdrop = Callable[[Pen, Random], None]


def _tint(color: RGB, rng: Random, by: int = 12) -> RGB:
    r, g, b = (min(255, max(0, c + rng.randint(-by, by))) for c in color)
    return r, g, b


def _fill(pen: Pen, top: RGB, bottom: RGB, until: float = 1.0) -> None:
    """A vertical gradient from the top of the picture down to `until`."""
    steps = 10
    for i in range(steps):
        part = i / (steps - 1)
        r, g, b = (round(a + (z - a) * part) for a, z in zip(top, bottom, strict=True))
        pen.rectangle((0, until * i / steps), (1, until * (i + 1) / steps), (r, g, b))


def _cloud(pen: Pen, x: float, y: float, size: float, color: RGB = (255, 255, 255)) -> None:
    for dx, dy, r in ((-0.9, 0.15, 0.5), (0.0, 0.0, 0.7), (0.9, 0.15, 0.5)):
        pen.ellipse((x + dx * size, y + dy * size), 1.2 * r * size, r * size, color)


def _side(rng: Random) -> float:
    """An x near the left or the right edge, where the sign does not cover it."""
    return rng.choice((rng.uniform(0.04, 0.16), rng.uniform(0.84, 0.96)))


def _beach(pen: Pen, rng: Random) -> None:
    _fill(pen, _tint((120, 200, 250), rng), (205, 236, 252), 0.45)
    pen.ellipse((_side(rng), 0.13), 0.1, 0.1, (255, 225, 90))
    sea = rng.uniform(0.4, 0.48)
    pen.rectangle((0, sea), (1, 0.7), _tint((40, 140, 200), rng))
    for y in (0.5, 0.58):
        pen.line([(0, y), (0.25, y + 0.01), (0.5, y - 0.01), (0.75, y + 0.01), (1, y)], (150, 210, 240), 0.012)
    pen.polygon([(0, 0.68), (0.3, 0.63), (0.7, 0.67), (1, 0.62), (1, 1), (0, 1)], _tint((240, 215, 150), rng))
    x = _side(rng)
    pen.line([(x, 0.98), (x + 0.02, 0.62)], (125, 85, 45), 0.035)
    for dx, dy in ((-0.17, -0.02), (0.17, -0.02), (-0.13, 0.1), (0.13, 0.1), (0.03, -0.13)):
        pen.line([(x + 0.02, 0.61), (x + 0.02 + dx, 0.61 + dy)], (40, 140, 70), 0.045)


def _forest(pen: Pen, rng: Random) -> None:
    _fill(pen, _tint((150, 195, 150), rng), (95, 150, 95))
    for depth, count in ((0, 7), (1, 6)):
        green = _tint((35, 100, 55) if depth else (65, 130, 75), rng)
        for i in range(count):
            x, base = (i + rng.uniform(0.2, 0.8)) / count, 0.72 + 0.16 * depth
            pen.rectangle((x - 0.012, base), (x + 0.012, base + 0.12), (90, 60, 40))
            for k in range(3):
                y, half = base - 0.18 * k, 0.11 - 0.022 * k
                pen.polygon([(x - half, y), (x, y - 0.3), (x + half, y)], green)
    pen.rectangle((0, 0.94), (1, 1), (60, 80, 40))


def _desert(pen: Pen, rng: Random) -> None:
    _fill(pen, _tint((250, 190, 110), rng), (255, 235, 190), 0.6)
    pen.ellipse((_side(rng), 0.15), 0.11, 0.11, (255, 250, 220))
    bend = rng.uniform(0.3, 0.7)
    pen.polygon([(0, 0.52), (bend, 0.62), (1, 0.48), (1, 1), (0, 1)], _tint((225, 165, 90), rng))
    pen.polygon([(0, 0.8), (1 - bend, 0.68), (1, 0.82), (1, 1), (0, 1)], _tint((205, 140, 70), rng))
    x, green = _side(rng), (60, 130, 70)
    pen.line([(x, 0.92), (x, 0.42)], green, 0.055)
    pen.line([(x - 0.08, 0.5), (x - 0.08, 0.64), (x, 0.66)], green, 0.035)
    pen.line([(x + 0.08, 0.56), (x + 0.08, 0.7), (x, 0.72)], green, 0.035)


def _city(pen: Pen, rng: Random) -> None:
    _fill(pen, _tint((90, 85, 150), rng), (245, 170, 140))
    x = -0.02
    while x < 1:
        width, top = rng.uniform(0.13, 0.2), rng.uniform(0.08, 0.4)
        pen.rectangle((x, top), (x + width, 0.92), _tint((62, 64, 88), rng))
        for wx in (0.25, 0.6):
            y = top + 0.05
            while y < 0.86:
                if rng.random() < 0.7:
                    pen.rectangle((x + wx * width, y), (x + wx * width + 0.025, y + 0.035), (255, 225, 120))
                y += 0.08
        x += width + 0.01
    pen.rectangle((0, 0.9), (1, 1), (45, 45, 52))
    for x in (0.1, 0.4, 0.7):
        pen.rectangle((x, 0.945), (x + 0.14, 0.96), (240, 240, 240))


def _mountains(pen: Pen, rng: Random) -> None:
    _fill(pen, _tint((135, 185, 235), rng), (225, 238, 250))
    _cloud(pen, rng.uniform(0.3, 0.7), 0.08, 0.07)
    for x, top, half in ((rng.uniform(0.7, 0.9), 0.18, 0.5), (rng.uniform(0.05, 0.3), 0.08, 0.5)):
        pen.polygon([(x - half, 0.9), (x, top), (x + half, 0.9)], _tint((105, 112, 135), rng))
        cap = [(0, 0), (0.13, 0.21), (0.06, 0.17), (0, 0.25), (-0.06, 0.17), (-0.13, 0.21)]
        pen.polygon([(x + dx, top + dy) for dx, dy in cap], (250, 252, 255))
    pen.polygon([(0, 0.86), (0.5, 0.8), (1, 0.87), (1, 1), (0, 1)], _tint((85, 125, 85), rng))


def _meadow(pen: Pen, rng: Random) -> None:
    _fill(pen, _tint((125, 200, 250), rng), (215, 240, 255), 0.5)
    _cloud(pen, rng.uniform(0.12, 0.3), 0.12, 0.09)
    _cloud(pen, rng.uniform(0.7, 0.88), 0.18, 0.07)
    pen.polygon([(0, 0.45), (0.3, 0.36), (0.6, 0.45), (1, 0.38), (1, 1), (0, 1)], _tint((125, 200, 90), rng))
    pen.polygon([(0, 0.72), (0.5, 0.64), (1, 0.74), (1, 1), (0, 1)], _tint((100, 180, 75), rng))
    for _ in range(26):
        x, y = rng.random(), rng.uniform(0.55, 0.98)
        pen.ellipse((x, y), 0.022, 0.022, rng.choice(((250, 240, 90), (250, 120, 150), (255, 255, 255))))


def _arctic(pen: Pen, rng: Random) -> None:
    _fill(pen, _tint((165, 200, 225), rng), (235, 245, 252), 0.55)
    pen.rectangle((0, 0.52), (1, 0.7), _tint((80, 130, 170), rng))
    for x, h in ((rng.uniform(0.02, 0.2), 0.3), (rng.uniform(0.8, 0.98), 0.24)):
        ice = [(x - 0.16, 0.6), (x - 0.09, 0.6 - h), (x + 0.02, 0.6 - 0.8 * h), (x + 0.16, 0.6)]
        pen.polygon(ice, (215, 238, 250), (150, 190, 215))
    pen.polygon([(0, 0.7), (0.4, 0.66), (1, 0.72), (1, 1), (0, 1)], (248, 251, 255))
    x = _side(rng)
    pen.ellipse((x, 0.92), 0.17, 0.16, (225, 238, 248), (160, 190, 210))
    pen.ellipse((x, 0.97), 0.06, 0.08, (90, 115, 140))
    for _ in range(22):
        pen.ellipse((rng.random(), rng.random()), 0.013, 0.013, (255, 255, 255))


def _reef(pen: Pen, rng: Random) -> None:
    _fill(pen, _tint((60, 170, 215), rng), (10, 50, 120))
    for _ in range(3):
        x = rng.random()
        pen.polygon([(x, 0), (x + 0.07, 0), (x + 0.22, 0.75), (x + 0.06, 0.75)], (85, 180, 220))
    for _ in range(9):
        r = rng.uniform(0.012, 0.03)
        pen.ellipse((_side(rng), rng.uniform(0.05, 0.7)), r, r, None, (215, 240, 255))
    pen.polygon([(0, 0.9), (0.4, 0.87), (1, 0.92), (1, 1), (0, 1)], (205, 185, 130))
    for _ in range(5):
        x, coral = rng.random(), rng.choice(((245, 110, 110), (250, 160, 70), (200, 90, 190)))
        for dx in (-0.06, 0.0, 0.06):
            pen.line([(x, 0.96), (x + dx, 0.84), (x + 1.3 * dx, rng.uniform(0.72, 0.78))], coral, 0.03)


def _space(pen: Pen, rng: Random) -> None:
    _fill(pen, (12, 10, 32), _tint((40, 22, 70), rng))
    for _ in range(60):
        r = rng.uniform(0.005, 0.014)
        pen.ellipse((rng.random(), rng.random()), r, r, (255, 255, rng.randint(190, 255)))
    x, y, planet = (
        _side(rng),
        rng.choice((0.14, 0.86)),
        rng.choice(((230, 150, 90), (120, 190, 220), (200, 120, 180))),
    )
    pen.ellipse((x, y), 0.13, 0.13, planet)
    pen.line([(x - 0.22, y + 0.06), (x + 0.22, y - 0.06)], (240, 225, 190), 0.025)
    pen.ellipse((1 - x, 1 - y), 0.07, 0.07, (190, 190, 195))
    pen.ellipse((1 - x + 0.02, 1 - y - 0.02), 0.02, 0.02, (150, 150, 155))


def _volcano(pen: Pen, rng: Random) -> None:
    _fill(pen, _tint((70, 30, 40), rng), (205, 80, 50))
    for _ in range(5):
        _cloud(pen, rng.uniform(0.2, 0.8), rng.uniform(0.02, 0.12), 0.09, _tint((85, 75, 80), rng))
    x = rng.uniform(0.42, 0.58)
    pen.polygon([(x - 0.62, 0.92), (x - 0.12, 0.2), (x + 0.12, 0.2), (x + 0.62, 0.92)], _tint((60, 45, 48), rng))
    pen.ellipse((x, 0.2), 0.12, 0.03, (255, 200, 60))
    for dx in (-0.42, -0.3, 0.3, 0.42):
        pen.line([(x, 0.2), (x + 0.4 * dx, 0.5), (x + dx, 0.92)], (255, 120, 30), 0.03)
    pen.rectangle((0, 0.9), (1, 1), (240, 100, 30))
    for _ in range(14):
        pen.ellipse((rng.random(), rng.random()), 0.013, 0.013, (255, 180, 60))


def _library(pen: Pen, rng: Random) -> None:
    pen.rectangle((0, 0), (1, 1), _tint((105, 70, 45), rng))
    for shelf in range(4):
        bottom, x = 0.24 + 0.25 * shelf, 0.01
        while x < 0.98:
            width, height = rng.uniform(0.035, 0.06), rng.uniform(0.14, 0.2)
            spine = rng.choice(
                ((170, 50, 50), (45, 90, 130), (60, 110, 70), (210, 170, 80), (120, 80, 130), (230, 220, 200))
            )
            pen.rectangle((x, bottom - height), (x + width, bottom), spine)
            x += width + 0.007
        pen.rectangle((0, bottom), (1, bottom + 0.03), (150, 105, 65))


def _kitchen(pen: Pen, rng: Random) -> None:
    pen.rectangle((0, 0), (1, 1), _tint((190, 215, 210), rng))
    for i in range(1, 8):
        pen.rectangle((i / 8 - 0.004, 0), (i / 8 + 0.004, 0.7), (240, 246, 245))
        pen.rectangle((0, i / 8 - 0.004), (1, i / 8 + 0.004), (240, 246, 245))
    pen.rectangle((0, 0.68), (1, 0.74), (235, 225, 205))
    pen.rectangle((0, 0.74), (1, 1), _tint((165, 120, 80), rng))
    for x in (0.02, 0.35, 0.68):
        pen.rectangle((x, 0.78), (x + 0.29, 0.98), (185, 140, 98), (120, 85, 55))
    pen.line([(0, 0.07), (1, 0.07)], (110, 110, 115), 0.025)
    for x in (0.08, 0.3, 0.7, 0.92):  # pans hanging from a rail
        pen.line([(x, 0.07), (x, 0.17)], (70, 70, 75), 0.02)
        pen.ellipse((x, 0.21), 0.06, 0.06, rng.choice(((70, 70, 78), (180, 100, 60), (150, 155, 160))))


BACKDROPS: dict[str, Backdrop] = {
    "beach": _beach, "forest": _forest, "desert": _desert, "city": _city, "mountains": _mountains,
    "meadow": _meadow, "arctic": _arctic, "reef": _reef, "space": _space, "volcano": _volcano,
    "library": _library, "kitchen": _kitchen,
}  # fmt: skip
