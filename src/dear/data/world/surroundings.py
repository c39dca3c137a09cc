"""Places of other kinds: streets, rooms, the sea and the sky; each in any light and in several layouts."""

from dear.data.world.scenery import Scenery, mix


def draw_city(s: Scenery) -> None:
    """Houses side by side with rows of windows, towers or low blocks, and a street."""
    pen, rng = s.pen, s.rng
    s.sky()
    size, lit, x = rng.uniform(0.7, 1.7), rng.uniform(0.4, 1.0), -0.04
    low = rng.random() < 0.4
    while x < 1:
        width, top = rng.uniform(0.12, 0.2) * size, rng.uniform(0.05, 0.42)
        wall = mix(rng.choice(s.land), s.palette.dark, rng.choice((0.0, 0.35)))
        pen.rectangle((x, top), (x + width, 0.95), wall)
        if low or rng.random() < 0.3:
            pen.polygon([(x, top), (x + width / 2, top - 0.06 * size), (x + width, top)], s.palette.dark)
        pane, step, y = s.against(wall), 0.085 * size, top + 0.05
        while y < 0.86:
            for wx in (0.2, 0.58):
                if rng.random() < lit:
                    pen.rectangle((x + wx * width, y), (x + (wx + 0.24) * width, y + 0.45 * step), pane)
            y += step
        x += width + 0.01
    street = mix(s.palette.dark, rng.choice(s.land), 0.25)
    pen.rectangle((0, 0.9), (1, 1), street)
    for x in (0.06, 0.4, 0.74):
        pen.rectangle((x, 0.945), (x + 0.16, 0.96), s.against(street))


def draw_reef(s: Scenery) -> None:
    """Corals, seaweed and bubbles under water, light from above."""
    pen, rng, (sand, _, weed) = s.pen, s.rng, s.land
    steps = 16
    for i in range(steps):
        part = i / (steps - 1)
        pen.rectangle((0, i / steps), (1, (i + 1) / steps), mix(s.palette.glow, s.palette.sky, part))
    for _ in range(rng.choice((0, 2, 4))):
        x, wide = rng.random(), rng.uniform(0.04, 0.1)
        shaft = [(x, 0), (x + wide, 0), (x + 3 * wide, 0.75), (x + wide, 0.75)]
        pen.polygon(shaft, mix(s.palette.glow, s.palette.light, 0.25))
    s.ground(rng.uniform(0.8, 0.92), sand, 0.03)
    colors = [s.palette.accent, mix(s.palette.accent, s.palette.light, 0.5), mix(weed, s.palette.dark, 0.3), weed]
    for x in [rng.uniform(0.02, 0.16), rng.uniform(0.84, 0.98), *(rng.random() for _ in range(rng.randint(1, 4)))]:
        kind, color, high = rng.choice(("branch", "fan", "weed")), rng.choice(colors), rng.uniform(0.16, 0.34)
        if kind == "branch":
            for dx in (-0.07, 0.0, 0.07):
                pen.line([(x, 0.98), (x + dx, 0.95 - high / 2), (x + 1.4 * dx, 0.95 - high)], color, 0.035)
        elif kind == "fan":
            pen.ellipse((x, 0.94 - high / 2), 0.1, high / 2, color)
            for dx in (-0.06, 0.0, 0.06):
                pen.line([(x, 0.96), (x + dx, 0.97 - high)], mix(color, s.palette.dark, 0.4), 0.012)
        else:
            for dx in (-0.04, 0.03):
                wave = [(x + dx + (0.025 if k % 2 else -0.025), 0.98 - k * high / 3) for k in range(6)]
                pen.line(wave, color, 0.03)
    for _ in range(rng.randint(5, 12)):
        r = rng.uniform(0.014, 0.035)
        pen.ellipse((s.side(), rng.uniform(0.04, 0.75)), r, r, None, s.against(s.palette.sky))


def draw_space(s: Scenery) -> None:
    """Stars and planets, from a ship or from the ground of a moon with craters."""
    pen, rng = s.pen, s.rng
    pen.rectangle((0, 0), (1, 1), mix(s.palette.dark, s.palette.sky, rng.uniform(0.2, 0.8)))
    for _ in range(rng.choice((0, 2, 3))):  # a nebula
        x, y, cloud = rng.random(), rng.random(), mix(s.palette.sky, s.palette.glow, rng.uniform(0.3, 0.8))
        pen.ellipse((x, y), rng.uniform(0.2, 0.4), rng.uniform(0.1, 0.2), cloud)
    for _ in range(rng.randint(15, 60)):
        r = rng.uniform(0.005, 0.014)
        pen.ellipse((rng.random(), rng.random()), r, r, s.palette.light)
    if rng.random() < 0.4:
        soil = rng.choice((*s.land, mix(s.palette.light, s.palette.dark, 0.3)))
        top = rng.uniform(0.78, 0.88)
        pen.polygon([(0, top), (0.5, top - 0.04), (1, top), (1, 1), (0, 1)], soil)
        for _ in range(5):
            wide = rng.uniform(0.04, 0.09)
            pen.ellipse((rng.random(), rng.uniform(top + 0.05, 0.98)), wide, wide / 2, mix(soil, s.palette.dark, 0.45))
    x, y, r = s.side(), rng.uniform(0.12, 0.22), rng.uniform(0.09, 0.15)
    planet = rng.choice((s.palette.accent, s.palette.light, s.land[2]))
    pen.ellipse((x, y), r, r, planet)
    pen.line([(x - 1.7 * r, y + 0.4 * r), (x + 1.7 * r, y - 0.4 * r)], s.against(planet), 0.025)
    moon, r = mix(s.palette.light, s.land[0], rng.random()), rng.uniform(0.05, 0.1)
    x, y = 1 - x, rng.choice((rng.uniform(0.1, 0.3), rng.uniform(0.7, 0.9)))
    pen.ellipse((x, y), r, r, moon)
    for dx, dy in ((0.35, -0.3), (-0.3, 0.2)):
        pen.ellipse((x + dx * r, y + dy * r), 0.25 * r, 0.25 * r, mix(moon, s.palette.dark, 0.4))


def draw_library(s: Scenery) -> None:
    """Shelves of books, upright, leaning and lying, close by or far off."""
    pen, rng, wall = s.pen, s.rng, s.land[0]
    pen.rectangle((0, 0), (1, 1), mix(wall, s.palette.dark, rng.uniform(0.0, 0.6)))
    shelves, board = rng.randint(2, 5), mix(s.land[1], s.palette.dark, 0.2)
    step, spines = 1 / shelves, s.palette
    full = rng.uniform(0.6, 1.0)
    for shelf in range(shelves):
        bottom, x = (shelf + 0.9) * step, rng.uniform(-0.03, 0.02)
        while x < 0.98:
            spine, width, height = rng.choice(spines), rng.uniform(0.14, 0.3) * step, rng.uniform(0.55, 0.8) * step
            if rng.random() > full:
                x += rng.uniform(0.05, 0.15)
            elif rng.random() < 0.12:  # a pile
                for k in range(3):
                    y = bottom - k * 0.14 * step
                    pen.rectangle((x, y - 0.12 * step), (x + 0.6 * step, y), rng.choice(spines))
                x += 0.65 * step
            else:
                lean = rng.choice((0, 0, 0, 0.2)) * step
                top, left, y = bottom - height, x + lean, bottom - 0.75 * height
                pen.polygon([(x, bottom), (left, top), (left + width, top), (x + width, bottom)], spine)
                pen.line([(x + lean * 0.75, y), (x + lean * 0.75 + width, y)], s.against(spine), 0.012)
                x += width + lean + 0.008
        pen.rectangle((0, bottom), (1, bottom + 0.1 * step), board)
    for x in rng.sample((0.02, 0.98, 0.5), rng.randint(0, 2)):
        pen.rectangle((x - 0.02, 0), (x + 0.02, 1), board)


def draw_kitchen(s: Scenery) -> None:
    """Pans on a rail, a tiled, striped or plain wall, a counter with doors below."""
    pen, rng, (wall, wood, top) = s.pen, s.rng, s.land
    wall = mix(wall, s.palette.glow, rng.uniform(0.0, 0.7))
    counter, joint = rng.uniform(0.62, 0.78), mix(wall, s.against(wall), 0.35)
    pen.rectangle((0, 0), (1, 1), wall)
    kind, count = rng.choice(("tiles", "diamonds", "stripes", "plain")), rng.randint(4, 9)
    for i in range(-count, 2 * count):
        x = i / count
        if kind in ("tiles", "stripes"):
            pen.rectangle((x - 0.004, 0), (x + 0.004, counter), joint)
        if kind == "tiles":
            pen.rectangle((0, x - 0.004), (1, x + 0.004), joint)
        if kind == "diamonds":
            pen.line([(x, 0), (x + counter, counter)], joint, 0.01)
            pen.line([(x, counter), (x + counter, 0)], joint, 0.01)
    pen.rectangle((0, counter), (1, counter + 0.05), mix(top, s.palette.light, 0.4))
    pen.rectangle((0, counter + 0.05), (1, 1), wood)
    doors = rng.randint(2, 4)
    for i in range(doors):
        x = (i + 0.06) / doors
        door, knob = mix(wood, s.palette.light, 0.2), (x + 0.8 / doors, counter + 0.14)
        pen.rectangle((x, counter + 0.09), (x + 0.88 / doors, 0.97), door, mix(wood, s.palette.dark, 0.4))
        pen.ellipse(knob, 0.015, 0.015, s.against(door))
    rail = rng.uniform(0.04, 0.08)
    pen.line([(0, rail), (1, rail)], s.against(wall), 0.025)
    for x in rng.sample((0.08, 0.22, 0.36, 0.64, 0.78, 0.92), rng.randint(3, 5)):
        pan = rng.choice((s.palette.dark, s.palette.accent, mix(wood, s.palette.dark, 0.5)))
        r = rng.uniform(0.05, 0.075)
        pen.line([(x, rail), (x, rail + 0.12)], s.against(wall), 0.02)
        pen.ellipse((x, rail + 0.12 + r), r, r, pan)
        if rng.random() < 0.5:
            pen.ellipse((x, rail + 0.12 + r), 0.6 * r, 0.6 * r, mix(pan, s.palette.light, 0.3))
