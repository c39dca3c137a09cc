"""Places under the open sky, drawn around the sign in any light and in several layouts."""

from dear.data.world.scenery import Scenery, mix


def draw_beach(s: Scenery) -> None:
    """A horizon of water with waves, a shore, palms."""
    pen, rng, (water, sand, leaf) = s.pen, s.rng, s.land
    horizon, shore = rng.uniform(0.3, 0.5), rng.uniform(0.62, 0.78)
    s.sky(horizon + 0.05)
    pen.rectangle((0, horizon), (1, 1), water)
    for i in range(rng.randint(2, 5)):
        y, foam = horizon + 0.05 + i * 0.06, mix(water, s.palette.light, 0.6)
        pen.line([(x / 8, y + (0.012 if x % 2 else -0.012)) for x in range(9)], foam, 0.014)
    s.ground(shore, sand)
    for x in rng.sample((rng.uniform(0.04, 0.14), rng.uniform(0.86, 0.96)), rng.randint(1, 2)):
        top, lean = rng.uniform(0.22, 0.5), rng.uniform(-0.04, 0.04)
        pen.line([(x, 0.98), (x + lean / 3, (top + 0.98) / 2), (x + lean, top)], s.palette.dark, 0.035)
        frond = mix(leaf, s.palette.dark, 0.4)
        for dx, dy in ((-0.18, 0.04), (0.18, 0.04), (-0.14, -0.08), (0.14, -0.08), (-0.08, 0.14), (0.09, 0.14)):
            arch = (x + lean + 0.6 * dx, top + 0.5 * dy - 0.04)
            pen.line([(x + lean, top), arch, (x + lean + dx, top + dy)], frond, 0.04)


def draw_forest(s: Scenery) -> None:
    """Conifers, or trunks with round crowns, near or far."""
    pen, rng, (far, near, ground) = s.pen, s.rng, s.land
    s.sky()
    s.ground(rng.uniform(0.6, 0.8), ground)
    size, conifers = rng.uniform(0.7, 1.5), rng.random() < 0.65
    for depth, green in ((0, far), (1, mix(near, s.palette.dark, 0.3))):
        count = max(3, round((7 - depth) / size))
        for i in range(count):
            x, base = (i + rng.uniform(0.2, 0.8)) / count, 0.76 + 0.16 * depth
            pen.rectangle((x - 0.016 * size, base - 0.3), (x + 0.016 * size, base + 0.12), s.palette.dark)
            if conifers:
                for k in range(3):
                    y, half = base - 0.18 * size * k, (0.11 - 0.022 * k) * size
                    pen.polygon([(x - half, y), (x, y - 0.3 * size), (x + half, y)], green)
            else:
                for dx, dy, r in ((-0.07, 0.0, 0.08), (0.07, 0.0, 0.08), (0.0, -0.1, 0.1)):
                    pen.ellipse((x + dx * size, base - 0.42 + dy * size), r * size, r * size, green)


def draw_desert(s: Scenery) -> None:
    """Dunes or table mountains, and cacti."""
    pen, rng, (first, second, far) = s.pen, s.rng, s.land
    s.sky()
    if rng.random() < 0.5:
        for x in rng.sample((0.08, 0.5, 0.92), rng.randint(1, 2)):
            half, top = rng.uniform(0.1, 0.2), rng.uniform(0.28, 0.42)
            pen.polygon([(x - half - 0.05, 0.75), (x - half, top), (x + half, top), (x + half + 0.05, 0.75)], far)
    for i, y in enumerate((rng.uniform(0.5, 0.62), rng.uniform(0.72, 0.84))):
        bend = rng.uniform(0.25, 0.75)
        dune = [(0, y + rng.uniform(-0.06, 0.06)), (bend, y + rng.choice((-0.07, 0.07))), (1, y)]
        pen.polygon([*dune, (1, 1), (0, 1)], (first, second)[i])
        if rng.random() < 0.5:
            ripple = mix((first, second)[i], s.palette.dark, 0.3)
            for k in (1, 2, 3):
                pen.line([(x, z + 0.045 * k) for x, z in dune], ripple, 0.01)
    green = s.against(second) if rng.random() < 0.5 else mix(s.palette.dark, s.palette.accent, 0.3)
    for x in rng.sample((rng.uniform(0.09, 0.13), rng.uniform(0.87, 0.91)), rng.randint(1, 2)):
        top = rng.uniform(0.36, 0.56)
        pen.line([(x, 0.94), (x, top)], green, 0.055)
        pen.line([(x - 0.085, top + 0.08), (x - 0.085, top + 0.22), (x, top + 0.24)], green, 0.035)
        pen.line([(x + 0.085, top + 0.14), (x + 0.085, top + 0.28), (x, top + 0.3)], green, 0.035)


def draw_mountains(s: Scenery) -> None:
    """Peaks with snow caps, behind hills or a lake."""
    pen, rng, (rock, other, ground) = s.pen, s.rng, s.land
    s.sky()
    places = rng.sample((rng.uniform(0.02, 0.2), rng.uniform(0.8, 0.98), rng.uniform(0.35, 0.65)), rng.randint(2, 3))
    for i, x in enumerate(places):
        top, half = rng.uniform(0.06, 0.26), rng.uniform(0.35, 0.55)
        shade = mix((rock, other)[i % 2], s.palette.dark, 0.3)
        pen.polygon([(x - half, 0.95), (x, top), (x + half, 0.95)], shade)
        if rng.random() < 0.5:  # the side in the shadow
            pen.polygon([(x, top), (x + half, 0.95), (x + 0.1, 0.95)], mix(shade, s.palette.dark, 0.35))
        wide, deep = half * 0.26, 0.95 * 0.24
        cap = [(0, 0), (wide, deep), (wide / 2, deep * 0.75), (0, deep * 1.15), (-wide / 2, deep * 0.75), (-wide, deep)]
        pen.polygon([(x + dx, top + dy) for dx, dy in cap], mix(s.palette.light, (255, 255, 255), 0.4))
    s.ground(rng.uniform(0.78, 0.9), ground)


def draw_meadow(s: Scenery) -> None:
    """Rolling hills full of flowers, sometimes a fence."""
    pen, rng, (far, near, _) = s.pen, s.rng, s.land
    s.sky()
    s.ground(rng.uniform(0.36, 0.5), far, 0.07)
    s.ground(rng.uniform(0.6, 0.74), near, 0.05)
    if rng.random() < 0.35:
        y, wood = rng.uniform(0.5, 0.62), s.against(far)
        for dy in (0.03, 0.09):
            pen.line([(0, y + dy), (1, y + dy)], wood, 0.014)
        for post in range(9):
            pen.rectangle((post / 8 - 0.012, y), (post / 8 + 0.012, y + 0.14), wood)
    size = rng.uniform(0.016, 0.034)
    petals = (s.palette.light, s.palette.accent, s.against(near))
    for _ in range(round(0.75 / size)):
        x, y, petal = rng.random(), rng.uniform(0.5, 0.96), rng.choice(petals)
        pen.line([(x, y), (x, y + 2 * size)], mix(near, s.palette.dark, 0.5), 0.01)
        for dx, dy in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            pen.ellipse((x + 0.7 * dx * size, y + 0.7 * dy * size), 0.6 * size, 0.6 * size, petal)


def draw_arctic(s: Scenery) -> None:
    """Icebergs in the sea, snow, an igloo or curtains of northern light."""
    pen, rng, (water, shade, _) = s.pen, s.rng, s.land
    s.sky(0.6)
    if rng.random() < 0.4:
        for x in (0.02, 0.3, 0.62):
            curtain = [(x, 0.02), (x + 0.12, 0.06), (x + 0.22, 0.02), (x + 0.3, 0.2), (x + 0.14, 0.28), (x + 0.05, 0.2)]
            pen.polygon(curtain, mix(s.palette.sky, s.palette.accent, rng.uniform(0.3, 0.6)))
    sea, snow = rng.uniform(0.48, 0.58), mix(s.palette.light, s.palette.glow, rng.uniform(0.1, 0.6))
    pen.rectangle((0, sea), (1, 1), mix(water, s.palette.dark, 0.2))
    for x in rng.sample((rng.uniform(0.02, 0.16), rng.uniform(0.84, 0.98), 0.5), rng.randint(2, 3)):
        h, y = rng.uniform(0.2, 0.42), sea + rng.uniform(0.04, 0.12)
        ice = [(x - 0.18, y), (x - 0.11, y - h), (x - 0.02, y - 0.7 * h), (x + 0.05, y - 0.85 * h), (x + 0.17, y)]
        pen.polygon(ice, snow)
        pen.polygon([ice[1], ice[2], (x + 0.0, y), (x - 0.1, y)], mix(snow, shade, 0.5))
    s.ground(rng.uniform(0.7, 0.82), snow, 0.03)
    if rng.random() < 0.7:
        x, wall = s.side(), mix(snow, s.palette.dark, 0.15)
        joint = mix(snow, s.palette.dark, 0.5)
        pen.ellipse((x, 0.94), 0.17, 0.18, wall, joint)
        pen.line([(x - 0.15, 0.87), (x + 0.15, 0.87)], joint, 0.012)
        pen.ellipse((x, 0.99), 0.06, 0.08, s.palette.dark)


def draw_volcano(s: Scenery) -> None:
    """A cone with a glowing crater, lava on its sides, smoke above."""
    pen, rng, (rock, ground, _) = s.pen, s.rng, s.land
    s.sky()
    lava, smoke = mix(s.palette.accent, (255, 90, 20), 0.6), mix(s.palette.glow, s.palette.dark, rng.uniform(0.3, 0.7))
    x, top, half = rng.choice((0.5, s.side())), rng.uniform(0.18, 0.36), rng.uniform(0.5, 0.68)
    for i in range(rng.randint(3, 6)):
        s.cloud(x + rng.uniform(-0.12, 0.12) + 0.05 * i, top - 0.06 - 0.04 * i, rng.uniform(0.06, 0.1), smoke)
    rock, crater = mix(rock, s.palette.dark, 0.5), rng.uniform(0.09, 0.14)
    pen.polygon([(x - half, 0.95), (x - crater, top), (x + crater, top), (x + half, 0.95)], rock)
    pen.ellipse((x, top), crater, 0.03, mix(lava, (255, 240, 120), 0.5))
    for dx in rng.sample((-0.78, -0.5, 0.5, 0.78, 0.1), rng.randint(3, 5)):
        stream = [(x + dx * crater, top), (x + 0.5 * dx * half, 0.55), (x + dx * half, 0.95)]
        pen.line(stream, lava, rng.uniform(0.02, 0.045))
    s.ground(rng.uniform(0.88, 0.94), lava if rng.random() < 0.5 else ground, 0.02)
    for _ in range(rng.randint(0, 10)):  # sparks
        pen.ellipse((x + rng.uniform(-0.3, 0.3), rng.uniform(0.0, top)), 0.014, 0.014, lava)
