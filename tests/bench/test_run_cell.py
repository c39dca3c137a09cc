"""Components one by one, against a loop over images."""

import pytest
import torch
from torch.nn import functional as F

from dear.bench.results import ComponentScores
from dear.bench.run_cell import ComponentMeter


def test_equals_a_loop_over_images() -> None:
    torch.manual_seed(0)
    features = F.normalize(torch.randn(7, 3, 5), dim=-1)
    votes, labels = torch.randn(7, 3, 4), torch.randint(4, (7,))
    meter = ComponentMeter(("cls", "color", "shape"))
    meter.add(features[:4], votes[:4])
    meter.add(features[4:], votes[4:])
    scores = meter.scores("all", labels)
    for i, name in enumerate(meter.components):
        right = sum(int(votes[image, i].argmax() == labels[image]) for image in range(7))
        assert scores.alone[name] == pytest.approx(100 * right / 7, abs=1e-4)
    between = [torch.dot(features[image, 1], features[image, 2]).item() for image in range(7)]
    assert scores.cosine == pytest.approx(sum(between) / 7, abs=1e-4)


def test_two_components_have_no_pair_besides_the_class_feature() -> None:
    meter = ComponentMeter(("cls", "rep"))
    meter.add(torch.ones(1, 2, 1), torch.ones(1, 2, 2))
    assert meter.scores("all", torch.tensor([0])) == ComponentScores("all", {"cls": 100.0, "rep": 100.0}, None)
