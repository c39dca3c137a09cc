"""Components one by one, against a loop over images."""

import pytest
import torch
from torch.nn import functional as F

from dear.bench.components import Apart


def test_equals_a_loop_over_images() -> None:
    torch.manual_seed(0)
    features = F.normalize(torch.randn(7, 3, 5), dim=-1)
    votes, labels = torch.randn(7, 3, 4), torch.randint(4, (7,))
    apart = Apart(("cls", "color", "shape"))
    apart.add(features[:4], votes[:4])
    apart.add(features[4:], votes[4:])
    found = apart.found(labels)
    for i, name in enumerate(apart.components):
        right = sum(int(votes[image, i].argmax() == labels[image]) for image in range(7))
        assert found["alone"][name] == pytest.approx(100 * right / 7)
    between = [torch.dot(features[image, 1], features[image, 2]).item() for image in range(7)]
    assert found["cosine"] == pytest.approx(sum(between) / 7, abs=1e-6)


def test_two_components_have_no_pair_besides_the_class_feature() -> None:
    apart = Apart(("cls", "rep"))
    apart.add(torch.ones(1, 2, 1), torch.ones(1, 2, 2))
    assert apart.found(torch.tensor([0])) == {"alone": {"cls": 100.0, "rep": 100.0}, "cosine": None}
