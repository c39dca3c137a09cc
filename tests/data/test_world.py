"""Attribute World: every value shows, the same scene is always the same picture, captions tell the truth."""

import hashlib
import itertools
import re
from collections import Counter
from functools import cache
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dear.core.errors import DearError
from dear.data.dataset import Dataset
from dear.data.world.render import render
from dear.data.world.tasks import TASKS, TEST, TRAIN, VAL, world_task
from dear.data.world.vocabulary import ATTRIBUTES, STYLES, VALUES, WHERE, Scene, Traits, is_held_out
from world_captions import ALONE, caption, name_alone, random_caption

ALL = frozenset(ATTRIBUTES)
any_traits = st.builds(Traits, **{a: st.sampled_from(values) for a, values in VALUES.items()})
some_attributes = st.frozensets(st.sampled_from(ATTRIBUTES), min_size=1)


def pixels(scene: Scene) -> np.ndarray:
    return np.asarray(scene.open(), dtype=float)


def digest(scene: Scene) -> str:
    return hashlib.sha256(render(scene).tobytes()).hexdigest()  # drawn anew: `open` keeps what it has drawn


# --- pictures ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_every_value_looks_different_with_all_else_equal(attribute: str) -> None:
    plain = Traits("blue", "square", "smooth", "house", "beach")
    pictures = [pixels(Scene(plain._replace(**{attribute: value}), seed=4)) for value in VALUES[attribute]]
    for one, other in itertools.combinations(pictures, 2):
        assert np.abs(one - other).mean() > 1  # of 255, over the whole picture: not a rounding error


@pytest.mark.parametrize("style", STYLES)
def test_pictures_are_small_rgb_and_decided_by_the_scene(style: str) -> None:
    scene = Scene(Traits("red", "star", "marbled", "cat", "reef"), 7, style)
    picture = scene.open()
    assert (picture.mode, picture.size) == ("RGB", (64, 64))
    assert digest(scene) == digest(scene)
    assert digest(scene) != digest(Scene(scene.traits, 8, style))


@pytest.mark.parametrize("texture", VALUES["texture"])
@pytest.mark.parametrize("size", [128, 224])
def test_a_large_picture_shows_what_the_small_one_shows(size: int, texture: str) -> None:
    """Reduced, it is nearer to the small picture of its scene than the one of any other scene is."""
    traits = Traits("orange", "drop", texture, "butterfly", "library")
    large = Scene(traits, 5, size=size).open()
    assert large.size == (size, size)
    reduced = np.asarray(large.resize((64, 64), Image.Resampling.BOX), dtype=float)
    others = [Scene(traits._replace(**{a: v}), 5) for a, values in VALUES.items() for v in values]
    others = [scene for scene in others if scene.traits != traits] + [Scene(traits, 6)]
    distance = np.abs(reduced - pixels(Scene(traits, 5))).mean()
    assert distance < min(np.abs(reduced - pixels(other)).mean() for other in others)


@given(any_traits)
def test_labels_are_the_numbers_of_the_values(traits: Traits) -> None:
    assert Traits(*(values[n] for values, n in zip(VALUES.values(), traits.labels, strict=True))) == traits


def test_styles_differ() -> None:
    traits = Traits("green", "heart", "bricked", "key", "city")
    assert len({digest(Scene(traits, 1, style)) for style in STYLES}) == len(STYLES)


# --- captions ------------------------------------------------------------------------------------------------


def values_said(text: str) -> dict[str, set[str]]:
    """Attribute -> its values among the words of a text."""
    words = set(text.split())
    return {a: words & set(values) for a, values in VALUES.items() if words & set(values)}


def test_no_word_names_two_things() -> None:
    words = [value for values in VALUES.values() for value in values]
    assert max(Counter(words).values()) == 1
    assert tuple(VALUES) == ATTRIBUTES == Traits._fields
    assert all(value in WHERE[value].split() for value in VALUES["location"])


@given(any_traits, some_attributes)
def test_a_caption_says_the_mentioned_attributes_and_no_other(traits: Traits, mentioned: frozenset[str]) -> None:
    assert values_said(caption(traits, mentioned)) == {a: {getattr(traits, a)} for a in mentioned}


@given(any_traits, st.integers(0, 2**32))
def test_a_random_caption_says_what_it_claims(traits: Traits, seed: int) -> None:
    text, mentioned = random_caption(traits, Random(seed))
    assert mentioned
    assert values_said(text) == {a: {getattr(traits, a)} for a in mentioned}
    assert random_caption(traits, Random(seed)) == (text, mentioned)


def wrong_articles(text: str) -> list[str]:
    return re.findall(r"\ba [aeiou]\w*|\ban [^aeiou]\w*", text)


@given(any_traits, some_attributes, st.sampled_from([t for texts in ALONE.values() for t in texts]))
def test_articles_fit_the_word_behind_them(traits: Traits, mentioned: frozenset[str], template: str) -> None:
    attribute = next(a for a, templates in ALONE.items() if template in templates)
    for text in (caption(traits, mentioned), name_alone(attribute, getattr(traits, attribute), template)):
        assert not wrong_articles(text)


@pytest.mark.parametrize(
    ("traits", "mentioned", "text"),
    [
        (Traits("red", "hexagon", "striped", "cat", "beach"), ALL, "a cat on a red striped hexagon at the beach"),
        (Traits("orange", "oval", "wavy", "apple", "space"), ALL, "an apple on an orange wavy oval in space"),
        (Traits("red", "oval", "wavy", "apple", "space"), {"shape"}, "an oval"),
        (Traits("red", "oval", "wavy", "apple", "space"), {"color", "location"}, "a red sign in space"),
        (Traits("red", "oval", "wavy", "apple", "space"), {"location"}, "a scene in space"),
    ],
)
def test_captions_read_like_this(traits: Traits, mentioned: set[str], text: str) -> None:
    assert caption(traits, mentioned) == text


# --- what is held out ----------------------------------------------------------------------------------------


def test_an_eighth_is_held_out_whatever_the_value() -> None:
    held_out = np.zeros([len(values) for values in VALUES.values()])
    for place, traits in zip(np.ndindex(*held_out.shape), itertools.product(*VALUES.values()), strict=True):
        held_out[place] = is_held_out(Traits(*traits))
    assert held_out.mean() == pytest.approx(1 / 8, abs=0.002)
    for axis in range(len(VALUES)):
        others = tuple(a for a in range(len(VALUES)) if a != axis)
        assert held_out.mean(axis=others) == pytest.approx(1 / 8, abs=0.01)


# --- tasks ---------------------------------------------------------------------------------------------------


@cache
def task(name: str) -> Dataset:
    return world_task(name)


@pytest.mark.parametrize("name", TASKS)
def test_classes_are_balanced_and_true(name: str) -> None:
    dataset = task(name)
    classes = len(set(dataset.classes))
    assert classes == len(dataset.classes)
    for examples, count in ((dataset.train, TRAIN), (dataset.val, VAL), (dataset.test, TEST)):
        assert Counter(e.label for e in examples) == dict.fromkeys(range(classes), count)
        for example in examples:
            words = caption(example.picture.traits, ALL).split()
            assert set(dataset.classes[example.label].split()) <= set(words)


@pytest.mark.parametrize("name", TASKS)
def test_pictures_are_held_out_and_in_one_split_only(name: str) -> None:
    dataset = task(name)
    scenes = [e.picture for e in (*dataset.train, *dataset.val, *dataset.test)]
    assert len(set(scenes)) == len(scenes)
    assert all(is_held_out(scene.traits) for scene in scenes)


def test_the_same_task_is_the_same_data_and_another_style_is_other_data() -> None:
    assert world_task("colors") == task("colors")
    sketched = world_task("colors", "sketch")
    assert sketched.name == "world:colors:sketch"
    assert sketched.classes == task("colors").classes
    assert {e.picture.style for e in sketched.test} == {"sketch"}


def test_unknown_tasks_and_styles_are_refused_with_what_there_is() -> None:
    with pytest.raises(DearError, match=f"no task 'fruits': choose from {', '.join(TASKS)}"):
        world_task("fruits")
    with pytest.raises(DearError, match=f"no style 'oil': choose from {', '.join(STYLES)}"):
        world_task("colors", "oil")


def test_a_picture_is_drawn_once_and_each_caller_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(Traits("red", "star", "dotted", "cat", "beach"), seed=987654321)
    first = scene.open()
    monkeypatch.setattr("dear.data.world.render.render", lambda scene: pytest.fail("drawn again"))
    expected = first.tobytes()
    first.paste((0, 0, 0), (0, 0, 64, 64))
    assert scene.open().tobytes() == expected
