"""Search by heads equals a naive loop, and the loss of layers equals naive sums."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from dear.clip import Backbone
from dear.core.errors import DearError
from dear.data.dataset import Dataset, Example
from dear.heads.check_figures import plot_check
from dear.heads.check_layers import LayerLosses, layer_losses
from dear.heads.check_search import NEAREST, check_by_search
from dear.heads.contributions import decompose
from dear.heads.head_role import HeadRole
from dear.heads.pictures import PictureList, Probe, drawn_probe
from dear.heads.role_map import RoleMap
from dear.heads.shares import mean_colors

CORE = ("color", "shape")


def role_map(backbone: Backbone, concepts: list[str | None]) -> RoleMap:
    heads = [HeadRole("core_attribute", c) if c else HeadRole("mixed") for c in concepts]
    roles = {(layer, h): heads[h] for layer in (3, 4) for h in range(4)}
    return RoleMap(backbone.identity.to_json(), (3, 4), 4, CORE, CORE, roles)


def as_photos(probe: Probe) -> Probe:
    """The same pictures with their shape, and color by pixels."""
    pictures = PictureList("photos", probe.pictures.pictures, probe.pictures.names)
    return Probe(pictures, {"shape": probe.labels["shape"]}, by_pixels=True)


def test_search_is_that_of_a_naive_loop(tiny, tmp_path) -> None:
    backbone = tiny()
    probe = as_photos(drawn_probe(CORE, 40, 32, held_out=True))
    result = check_by_search(backbone, role_map(backbone, ["color", "shape", "shape", None]), [probe], draws=3)
    images = [picture.open() for picture in probe.pictures.pictures]
    pixels = torch.stack([backbone.preprocess(image) for image in images])
    terms = decompose(backbone, pixels)
    colors = mean_colors(pixels * 0.25 + 0.5)[:, 1:].numpy()
    labels = probe.labels["shape"]

    def by_hand(features: np.ndarray) -> tuple[float, float]:
        distances, same = [], []
        for i, query in enumerate(features):
            others = [j for j in range(len(features)) if j != i]
            cosine = {j: query @ features[j] / np.linalg.norm(query) / np.linalg.norm(features[j]) for j in others}
            for j in sorted(others, key=lambda j: -cosine[j])[:NEAREST]:
                distances.append(np.linalg.norm(colors[i] - colors[j]))
                same.append(100 * (labels[i] == labels[j]))
        return float(np.mean(distances)), float(np.mean(same))

    written = terms.heads[:, 2:, 1:3].sum((1, 2)).numpy()  # the shape heads 1 and 2 of layers 3 and 4
    shape = result.groups[1]
    assert shape.heads == ((3, 1), (3, 2), (4, 1), (4, 2))
    assert list(shape.values.values()) == pytest.approx(by_hand(written - written.mean(0)), abs=1e-3)
    whole = terms.feature().numpy()
    assert list(result.whole.values()) == pytest.approx(by_hand(whole - whole.mean(0)), abs=1e-3)
    assert result.by_distance == ("color",)
    assert result.pictures == {"color": 40, "shape": 40}

    assert json.loads(json.dumps(result.to_json()))["groups"][1]["heads"] == [[3, 1], [3, 2], [4, 1], [4, 2]]
    assert len(result.table().rows) == 3
    plot_check(result, tmp_path / "check.png")
    assert Image.open(tmp_path / "check.png").width > 600


def test_a_verdict_says_what_is_found_and_what_has_no_expert(tiny) -> None:
    backbone = tiny()
    probe = drawn_probe(CORE, 40, 32)
    result = check_by_search(backbone, role_map(backbone, ["color", None, None, None]), [probe], draws=2)
    assert "There is no head for shape." in result.verdict()
    assert "ahead of the heads for any other attribute: color (1 of 2)" in result.verdict()
    assert result.by_distance == ()  # drawn colors have names
    color = result.groups[0]
    assert result.gain(color, "color", {"color": color.values["color"] - 5}) == pytest.approx(5)
    with pytest.raises(DearError, match="nothing to check"):
        check_by_search(backbone, role_map(backbone, [None] * 4), [probe])
    with pytest.raises(DearError, match="another backbone"):
        check_by_search(tiny(seed=1), role_map(backbone, ["color", None, None, None]), [probe])
    with pytest.raises(DearError, match="a search needs more"):
        check_by_search(backbone, role_map(backbone, ["color", None, None, None]), [drawn_probe(CORE, 9, 32)])


def test_layers_by_naive_sums(tiny) -> None:
    backbone = tiny()
    probe = drawn_probe(("shape",), 30, 32)
    pictures, labels = probe.pictures.pictures, probe.labels["shape"]
    pixels = torch.stack([backbone.preprocess(picture.open()) for picture in pictures])
    terms = decompose(backbone, pixels)
    whole = terms.feature()
    examples = tuple(Example(p, label) for p, label in zip(pictures, labels, strict=True))
    dataset = Dataset("shapes", tuple(str(i) for i in range(12)), "a {}.", (), (), examples)
    text = F.normalize(backbone.text.encode(dataset.prompts), dim=-1)
    by_nearness, by_accuracy = layer_losses(backbone, pictures), layer_losses(backbone, [], dataset)
    for layer in range(1, 5):
        for gone, near, right in (
            ([layer], by_nearness.alone, by_accuracy.alone),
            (list(range(1, layer + 1)), by_nearness.up_to, by_accuracy.up_to),
        ):
            heads = terms.heads.clone()
            for one in gone:
                heads[:, one - 1] = heads[:, one - 1].mean(0)
            changed = terms.embedding + heads.sum((1, 2)) + terms.mlps.sum(1)
            cosine = F.cosine_similarity(changed - changed.mean(0), whole - whole.mean(0), dim=-1).mean()
            assert near[layer - 1] == pytest.approx(100 * cosine.item(), abs=1e-3)
            hits = (changed @ text.T).argmax(1) == torch.tensor(labels)
            assert right[layer - 1] == pytest.approx(100 * hits.double().mean().item(), abs=1e-6)
    assert by_nearness.whole == pytest.approx(100, abs=1e-3)
    assert len(by_accuracy.table().rows) == 4
    with pytest.raises(DearError, match="by 1 images"):
        layer_losses(backbone, pictures[:1])


@pytest.mark.parametrize(
    ("up_to", "first"), [((99, 95, 91, 50), 4), ((80, 95, 95, 50), 1), ((99, 80, 95, 50), 2), ((99, 99, 99, 99), 4)]
)
def test_j_is_the_last_layer_before_which_all_can_go(up_to, first) -> None:
    losses = LayerLosses("x", 9, 100.0, up_to, up_to)
    assert losses.first_layer == first
    assert f"J = {first}" in losses.verdict()
