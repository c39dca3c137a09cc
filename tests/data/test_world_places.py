"""A place is told by its things: neither its colors nor its edges, taken over the picture, give it away."""

from random import Random

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from dear.data.world.scenery import DARK_PALETTES, PALETTES, Pen, Scenery
from dear.data.world.vocabulary import LOCATIONS, VALUES, Scene, Traits

PICTURES, TRAIN = 1000, 700


def color_statistics(pixels: np.ndarray) -> np.ndarray:
    """Mean and std of red, green and blue: [height, width, 3] -> [6]."""
    return np.concatenate([pixels.mean((0, 1)), pixels.std((0, 1))])


def edge_statistics(pixels: np.ndarray) -> np.ndarray:
    """Energy of the gradient of brightness (mean, std, across, along), and how it spreads over 8 orientations: [12]."""
    along, across = np.gradient(pixels.mean(2))
    energy = np.hypot(along, across)
    spread = np.histogram(np.arctan2(along, across) % np.pi, 8, (0, np.pi), weights=energy)[0]
    return np.array([energy.mean(), energy.std(), np.abs(across).mean(), np.abs(along).mean(), *spread / spread.sum()])


@pytest.fixture(scope="module")
def drawn() -> tuple[np.ndarray, ...]:
    """Color [n, 6] and edge statistics [n, 12] of pictures, and the numbers of their places [n]."""
    rng = Random("places")
    scenes = [
        Scene(Traits(*(rng.choice(values) for values in VALUES.values())), rng.getrandbits(40)) for _ in range(PICTURES)
    ]
    pictures = [np.asarray(scene.open()) / 255 for scene in scenes]
    places = np.array([LOCATIONS.index(scene.traits.location) for scene in scenes])
    return np.stack([*map(color_statistics, pictures)]), np.stack([*map(edge_statistics, pictures)]), places


def linear_probe(features: np.ndarray, places: np.ndarray) -> float:
    """Accuracy (%) of logistic regression on the pictures behind the first TRAIN."""
    x = (features - features[:TRAIN].mean(0)) / features[:TRAIN].std(0)
    fitted = LogisticRegression(C=7, max_iter=1000).fit(x[:TRAIN], places[:TRAIN])
    return 100 * fitted.score(x[TRAIN:], places[TRAIN:])


def test_colors_and_edges_do_not_tell_the_place(drawn: tuple[np.ndarray, ...]) -> None:
    """When each place had one palette, colors named 92% of the places, edges 59%, both 95% (chance: 8%)."""
    colors, edges, places = drawn
    assert linear_probe(colors, places) < 30
    assert linear_probe(edges, places) < 45
    assert linear_probe(np.concatenate([colors, edges], 1), places) < 50


def test_the_probe_finds_a_place_that_colors_do_tell(drawn: tuple[np.ndarray, ...]) -> None:
    colors, _, places = drawn
    palette = np.random.default_rng(0).normal(size=(len(LOCATIONS), colors.shape[1]))
    assert linear_probe(colors + palette[places], places) > 90


def test_land_has_no_shade_of_its_own() -> None:
    """The first thing on the land (water, sand, a wall) has any of the palette's colors equally often."""
    pen, rng = Pen(None, (0, 0, 1, 1), 1), Random(0)  # nothing is drawn
    firsts = []
    for _ in range(900):
        scenery = Scenery(pen, rng)
        palette = scenery.palette
        firsts.append((palette.land, palette.land_two, palette.land_three).index(scenery.land[0]))
    assert np.bincount(firsts) == pytest.approx([300] * 3, abs=75)  # five std


def test_dark_palettes_are_no_sign_of_space() -> None:
    """They are no rarity elsewhere: if few were dark, darkness would tell the only place that is always dark."""
    assert len(DARK_PALETTES) / len(PALETTES) > 0.4
