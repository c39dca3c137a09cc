"""Outcomes: what was answered, counted image by image; and what is stored is what was measured."""

import math

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.nn import functional as F

from dear.trials.outcome import Outcome, outcome_of

CLASSES = ("cat", "dog", "cat", "none")  # two of one name; none of the last


@st.composite
def answers(draw) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [images, classes] and labels [images]."""
    pairs = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=40))
    labels, chosen = torch.tensor(pairs).T
    return 5 * F.one_hot(chosen, 4).double(), labels


@given(answers())
def test_everything_is_counted_image_by_image(given_answers) -> None:
    logits, labels = given_answers
    outcome = outcome_of(logits, labels, CLASSES, method="gda")
    names = ["cat", "dog", "cat (2)", "none"]
    true, chosen = ([names[i] for i in rows] for rows in (labels.tolist(), logits.argmax(1).tolist()))
    right = [a == b for a, b in zip(true, chosen, strict=True)]
    assert outcome.answers.tolist() == right
    assert outcome.images == len(right)
    assert outcome.accuracy == pytest.approx(100 * np.mean(right))
    by_class = {name: [r for t, r in zip(true, right, strict=True) if t == name] for name in names}
    by_class = {name: hits for name, hits in by_class.items() if hits}
    assert outcome.per_class == pytest.approx({name: 100 * np.mean(hits) for name, hits in by_class.items()})
    assert outcome.class_images == {name: len(hits) for name, hits in by_class.items()}
    assert outcome.mean_over_classes == pytest.approx(np.mean([100 * np.mean(hits) for hits in by_class.values()]))
    assert outcome.is_balanced == (len({len(hits) for hits in by_class.values()}) == 1)
    wrong = [pair for pair in zip(true, chosen, strict=True) if pair[0] != pair[1]]
    assert {(t, a): n for t, a, n in outcome.confused} == {pair: wrong.count(pair) for pair in wrong}
    counts = [n for _, _, n in outcome.confused]
    assert counts == sorted(counts, reverse=True)


@given(answers())
def test_a_stored_outcome_is_read_as_it_was(given_answers) -> None:
    outcome = outcome_of(*given_answers, CLASSES, part="novel", seconds=1.5, epochs=(3, 4), measured="held-out")
    text = msgspec.json.encode(outcome.to_json())
    assert msgspec.convert(msgspec.json.decode(text), Outcome, strict=True) == outcome


@pytest.mark.parametrize(("right", "images"), [(0, 5), (2, 2), (7, 30), (880, 1000)])
def test_the_interval_is_wilsons(right: int, images: int) -> None:
    labels = torch.zeros(images, dtype=torch.long)
    outcome = outcome_of(F.one_hot((torch.arange(images) >= right).long(), 2).double(), labels, ("a", "b"))
    interval = stats.binomtest(right, images).proportion_ci(0.95, "wilson")
    assert outcome.interval == pytest.approx((100 * interval.low, 100 * interval.high), abs=0.01)
    assert outcome.class_interval("a") == pytest.approx(outcome.interval)


@pytest.mark.parametrize("classes", [2, 5])
def test_what_could_be_guessed(classes: int) -> None:
    for right in range(31):
        labels = torch.zeros(30, dtype=torch.long)
        logits = F.one_hot((torch.arange(30) >= right).long(), classes).double()
        names = [str(i) for i in range(classes)]
        outcome = outcome_of(logits, labels, names, per_class=dict.fromkeys(names, 50.0))
        assert outcome.could_be_guessed == (stats.binom.sf(right - 1, 30, 1 / classes) >= 0.05)
    assert not outcome_of(logits[:, :1], labels, ["0"]).could_be_guessed  # with one class nothing is to be known


def test_one_bit_per_image_is_required() -> None:
    outcome = outcome_of(torch.eye(2), torch.arange(2), ("a", "b"))
    for right in ("", "c000", "c", "x0"):
        with pytest.raises(ValueError, match=r"right has|hexadecimal"):
            msgspec.structs.replace(outcome, right=right)


def test_printed_it_is_a_table_of_classes() -> None:
    outcome = outcome_of(torch.eye(3)[[0, 0, 1]], torch.tensor([0, 1, 1]), ("a", "b", "c"))
    rows = outcome.table().records()
    assert [(row["class"], row["images"]) for row in rows] == [("a", 1), ("b", 2), ("all", 3)]
    assert [row["accuracy (%)"] for row in rows] == pytest.approx([100, 50, 200 / 3])
    assert outcome.worst_first() == [("b", 50.0), ("a", 100.0)]
    assert repr(outcome) == str(outcome) == outcome.table().text()
    unknown = msgspec.structs.replace(outcome, class_images={})  # cells before December 2026
    assert [row["images"] for row in unknown.table().records()] == [None, None, 3]
    assert math.isclose(unknown.accuracy, outcome.accuracy)
