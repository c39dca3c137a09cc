"""Outlines of the signs: points of a closed polygon, inside the unit circle, y down."""

from collections.abc import Callable

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
    right = np.stack([0.82 * np.cos(t), 0.0 + 1.0 * np.sin(t)], 1)
    left = right[::-1] * [-1, 1]
    return np.concatenate([[(-0.82, -0.85), (0, -0.98), (0.82, -0.85)], right, left])


OUTLINES: dict[str, np.ndarray] = {
    "circle": _polar(lambda t: np.full_like(t, 0.92)),
    "oval": _polar(lambda t: np.full_like(t, 1.0)) * [1.08, 0.68],
    "square": np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) * 0.8,
    "triangle": _regular(3) * 1.18 + [0, 0.2],
    "diamond": np.array([(0, -1.12), (0.8, 0), (0, 1.12), (-0.8, 0)]),
    "hexagon": _regular(6, TURN / 12) * 0.98,
    "star": _star(),
    "heart": _heart(),
    "cross": _cross(),
    "shield": _shield(),
    "flower": _polar(lambda t: 0.82 + 0.2 * np.cos(6 * t), 90),
    "drop": _drop(),
}
