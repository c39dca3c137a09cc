"""Outlines of the signs, closed polygons inside the unit circle (y down), and the patterns on them."""

from collections.abc import Callable
from functools import cache

import numpy as np

TURN = 2 * np.pi


def _polar(radius: Callable[[np.ndarray], np.ndarray], points: int = 60) -> np.ndarray:
    angle = np.linspace(0, TURN, points, endpoint=False)
    return radius(angle)[:, None] * np.stack([np.sin(angle), -np.cos(angle)], 1)


def _regular(corners: int, start: float = 0.0) -> np.ndarray:
    angle = start + np.arange(corners) * TURN / corners
    return np.stack([np.sin(angle), -np.cos(angle)], 1)


def _star() -> np.ndarray:
    points = _regular(10)
    points[1::2] *= 0.52
    return points * 1.12


def _heart() -> np.ndarray:
    t = np.linspace(0, TURN, 60, endpoint=False)
    x = 16 * np.sin(t) ** 3
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return np.stack([x / 16.5, -(y + 2.5) / 14.5], 1)


def _drop() -> np.ndarray:
    t = np.linspace(0, TURN, 60, endpoint=False)
    return np.stack([0.82 * np.sin(t) * np.sin(t / 2) ** 1.3, -1.05 * np.cos(t)], 1)


def _cross() -> np.ndarray:
    a, b = 0.42, 0.98
    corners = [(-a, -b), (a, -b), (a, -a), (b, -a), (b, a), (a, a)]
    return np.array(corners + [(-x, -y) for x, y in corners])


def _shield() -> np.ndarray:
    t = np.linspace(0, np.pi / 2, 12)
    right = np.stack([0.82 * np.cos(t), np.sin(t)], 1)
    left = right[::-1] * [-1, 1]
    return np.concatenate([[(-0.82, -0.85), (0, -0.98), (0.82, -0.85)], right, left])


OUTLINES: dict[str, np.ndarray] = {
    "circle": _polar(lambda t: np.full_like(t, 0.92)),
    "oval": _polar(lambda t: np.full_like(t, 1.0)) * [1.08, 0.68],
    "square": np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) * 0.8,
    "triangle": _regular(3) * 1.18 + [0, 0.2],
    "diamond": np.array([(0, -1.12), (0.8, 0), (0, 1.12), (-0.8, 0)]),
    "hexagon": _regular(6, TURN / 12) * 0.98,
    "flower": _polar(lambda t: 0.82 + 0.2 * np.cos(6 * t), 90),
    "star": _star(), "heart": _heart(), "cross": _cross(), "shield": _shield(), "drop": _drop(),
}  # fmt: skip

Pattern = Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray]
"""How much of the second shade shows, [size, size] in 0..1, at coordinates u and v."""


@cache
def _noise(size: int, cells: int) -> np.ndarray:
    """Smooth noise that tiles, [size, size] in -1..1, always the same."""
    grid = np.random.default_rng(cells).uniform(-1, 1, (cells, cells)).astype(np.float32)
    at = np.arange(size) * cells / size
    low, part = at.astype(int), at - at.astype(int)
    part = part * part * (3 - 2 * part)
    rows = grid[low] * (1 - part[:, None]) + grid[(low + 1) % cells] * part[:, None]
    return rows[:, low] * (1 - part) + rows[:, (low + 1) % cells] * part


def _shifted_noise(size: int, cells: int, rng: np.random.Generator) -> np.ndarray:
    return np.roll(_noise(size, cells), rng.integers(0, 128, 2) * size // 128, (0, 1))  # the same at every size


def _bricked(u: np.ndarray, v: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    row = np.floor(v * 1.2)
    column = u * 0.62 + 0.5 * (row % 2)
    return ((v * 1.2 % 1 < 0.2) | (column % 1 < 0.11)) * 1.0


def _scaly(u: np.ndarray, v: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    edge = np.zeros_like(u)
    for shift in (0.0, 0.5):  # two interleaved rows of arcs
        x, y = (u + shift) % 1 - 0.5, (v + shift) % 1
        edge = np.maximum(edge, np.exp(-(((np.hypot(x, y) - 0.5) / 0.09) ** 2)) * (y < 0.52))
    return edge


def _woven(u: np.ndarray, v: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    u, v = u * 0.8, v * 0.8
    across = (np.floor(u) + np.floor(v)) % 2 == 0
    return np.where(across, u * 3 % 1 < 0.4, v * 3 % 1 < 0.4) * 1.0


def _wooden(u: np.ndarray, v: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    warp = _shifted_noise(len(u), 4, rng)
    rings = 0.5 + 0.5 * np.sin(9 * u + 0.35 * v + 2.6 * warp + 2.1 * np.floor(u * 0.45))  # other rings in each plank
    return np.maximum(0.62 * rings**2, u * 0.45 % 1 < 0.08)


def _marbled(u: np.ndarray, v: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    turbulence = _shifted_noise(len(u), 5, rng) + 0.5 * _shifted_noise(len(u), 11, rng)
    veins = 1 - np.abs(np.sin(0.9 * u + 0.5 * v + 2.6 * turbulence))
    return np.clip(1.5 * veins**2, 0, 1)


PATTERNS: dict[str, Pattern] = {
    "smooth": lambda u, v, rng: np.zeros_like(u),
    "striped": lambda u, v, rng: (u % 1 < 0.5) * 1.0,
    "dotted": lambda u, v, rng: ((u % 1 - 0.5) ** 2 + (v % 1 - 0.5) ** 2 < 0.1) * 1.0,
    "checkered": lambda u, v, rng: (np.floor(u * 1.3) + np.floor(v * 1.3)) % 2,
    "zigzag": lambda u, v, rng: ((v + 1.1 * np.abs(u % 1 - 0.5)) % 1 < 0.5) * 1.0,
    "wavy": lambda u, v, rng: ((1.1 * v + 0.3 * np.sin(4.2 * u)) % 1 < 0.42) * 1.0,
    "speckled": lambda u, v, rng: (_shifted_noise(len(u), 42, rng) > 0.38) * 1.0,
    "bricked": _bricked, "scaly": _scaly, "woven": _woven, "wooden": _wooden, "marbled": _marbled,
}  # fmt: skip

# Each pattern has an angle of its own, which is part of its look; a picture only tilts it a little.
_ANGLES = {"striped": 0.8, "wavy": 0.0, "zigzag": 0.0, "dotted": 0.4}


@cache
def _grid(size: int) -> tuple[np.ndarray, np.ndarray]:
    y, x = (np.mgrid[0:size, 0:size] / size).astype(np.float32)
    return x, y


def pattern(name: str, size: int, rng: np.random.Generator) -> np.ndarray:
    """The named pattern at a random angle, scale and phase, [size, size] in 0..1."""
    x, y = _grid(size)
    angle = _ANGLES.get(name, 0.0) + rng.uniform(-0.12, 0.12)
    repeats = rng.uniform(8.0, 9.5)
    cos, sin = float(repeats * np.cos(angle)), float(repeats * np.sin(angle))  # NumPy's would widen to 64 bits
    return PATTERNS[name](cos * x + sin * y + rng.random(), cos * y - sin * x + rng.random(), rng)
