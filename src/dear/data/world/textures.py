"""Patterns of the signs: each returns how much of the second shade shows, [size, size] in 0..1."""

from collections.abc import Callable
from functools import cache

import numpy as np

Pattern = Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray]


@cache
def _noise(size: int, cells: int) -> np.ndarray:
    """Smooth noise that tiles, [size, size] in -1..1, always the same."""
    grid = np.random.default_rng(cells).uniform(-1, 1, (cells, cells)).astype(np.float32)
    at = np.arange(size) * cells / size
    low, part = at.astype(int), at - at.astype(int)
    part = part * part * (3 - 2 * part)
    rows = grid[low] * (1 - part[:, None]) + grid[(low + 1) % cells] * part[:, None]
    return rows[:, low] * (1 - part) + rows[:, (low + 1) % cells] * part


def _shifted(noise: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.roll(noise, rng.integers(0, 128, 2) * len(noise) // 128, (0, 1))  # the same at every size


def _smooth(u: np.ndarray, v: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.zeros_like(u)


def _striped(u: np.ndarray, v: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (u % 1 < 0.5) * 1.0


def _dotted(u: np.ndarray, v: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return ((u % 1 - 0.5) ** 2 + (v % 1 - 0.5) ** 2 < 0.1) * 1.0


def _checkered(u: np.ndarray, v: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (np.floor(u * 1.3) + np.floor(v * 1.3)) % 2


def _zigzag(u: np.ndarray, v: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return ((v + 1.1 * np.abs(u % 1 - 0.5)) % 1 < 0.5) * 1.0


def _wavy(u: np.ndarray, v: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return ((1.1 * v + 0.3 * np.sin(4.2 * u)) % 1 < 0.42) * 1.0


def _bricked(u: np.ndarray, v: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    row = np.floor(v * 1.2)
    column = u * 0.62 + 0.5 * (row % 2)
    return ((v * 1.2 % 1 < 0.2) | (column % 1 < 0.11)) * 1.0


def _scaly(u: np.ndarray, v: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    edge = np.zeros_like(u)
    for shift in (0.0, 0.5):  # two interleaved rows of arcs
        x = (u + shift) % 1 - 0.5
        y = (v + shift) % 1
        distance = np.hypot(x, y)
        edge = np.maximum(edge, np.exp(-(((distance - 0.5) / 0.09) ** 2)) * (y < 0.52))
    return edge


def _woven(u: np.ndarray, v: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    u, v = u * 0.8, v * 0.8
    across = (np.floor(u) + np.floor(v)) % 2 == 0
    return np.where(across, u * 3 % 1 < 0.4, v * 3 % 1 < 0.4) * 1.0


def _speckled(u: np.ndarray, v: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (_shifted(_noise(len(u), 42), rng) > 0.38) * 1.0


def _wooden(u: np.ndarray, v: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    warp = _shifted(_noise(len(u), 4), rng)
    plank = np.floor(u * 0.45)
    rings = 0.5 + 0.5 * np.sin(9 * u + 0.35 * v + 2.6 * warp + 2.1 * plank)
    return np.maximum(0.62 * rings**2, u * 0.45 % 1 < 0.08)


def _marbled(u: np.ndarray, v: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    turbulence = _shifted(_noise(len(u), 5), rng) + 0.5 * _shifted(_noise(len(u), 11), rng)
    veins = 1 - np.abs(np.sin(0.9 * u + 0.5 * v + 2.6 * turbulence))
    return np.clip(1.5 * veins**2, 0, 1)


PATTERNS: dict[str, Pattern] = {
    "smooth": _smooth, "striped": _striped, "dotted": _dotted, "checkered": _checkered,
    "zigzag": _zigzag, "wavy": _wavy, "bricked": _bricked, "scaly": _scaly,
    "woven": _woven, "speckled": _speckled, "wooden": _wooden, "marbled": _marbled,
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
    cos, sin = (
        float(repeats * np.cos(angle)),
        float(repeats * np.sin(angle)),
    )  # numpy floats would widen to 64 bits
    return PATTERNS[name](cos * x + sin * y + rng.random(), cos * y - sin * x + rng.random(), rng)
