"""An answer adds up: the leads of all components are the lead of the answer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dear.model.answer import make_answer

CLASSES, COMPONENTS = ("a", "b", "c", "d"), ("cls", "color", "shape")
numbers = arrays(np.float64, (3, 4), elements=st.floats(-100, 100))
shares = arrays(np.float64, 3, elements=st.floats(0.01, 1))


@given(numbers, shares, st.integers(1, 6))
def test_leads_add_up_and_probabilities_are_softmaxes(votes, weights, topk) -> None:
    logits = weights @ votes
    answer = make_answer(logits, votes, weights.tolist(), CLASSES, COMPONENTS, topk)
    ranked = sorted(logits, reverse=True)
    assert answer.choice == CLASSES[int(np.argmax(logits))]
    assert sum(vote.lead for vote in answer.votes) == pytest.approx(ranked[0] - ranked[1], abs=1e-9)
    assert len(answer.top) == min(topk, 4)
    assert answer.probability == pytest.approx(np.exp(logits.max()) / np.exp(logits).sum(), rel=1e-9)
    for vote, row in zip(answer.votes, votes, strict=True):
        assert vote.choice == CLASSES[int(np.argmax(row))]
        assert vote.for_answer <= vote.probability


def test_one_class_has_nobody_to_be_ahead_of() -> None:
    answer = make_answer(np.array([3.0]), np.array([[3.0]]), [1.0], ("only",), ("cls",), 3)
    assert (answer.choice, answer.probability, answer.votes[0].lead) == ("only", 1.0, 0.0)
