"""Roles by pictures: one pass over probes, the same whatever it is cut into; sure where pictures agree."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image

from dear.core.errors import DearError, DearWarning
from dear.heads.by_pictures import measure, roles_by_pictures
from dear.heads.contributions import HeadContributions
from dear.heads.head_role import CORE_ATTRIBUTE
from dear.heads.pictures import PictureList, Probe
from dear.heads.role_map import RoleMap
from dear.heads.rules import judge_shares, lifts, sureness
from dear.heads.shares import PICTURE_GROUPS, AttributeMoments, HeadMoments, label_numbers


@dataclass(frozen=True)
class Noise:
    seed: int
    grey: bool = False

    def open(self) -> Image.Image:
        if self.seed < 0:
            raise DearError("broken")
        pixels = np.random.default_rng(self.seed).integers(0, 256, (4, 4, 1 if self.grey else 3), dtype=np.uint8)
        return Image.fromarray(np.repeat(pixels, 3, 2) if self.grey else pixels).resize((32, 32))


def noise(seeds, grey: bool = False) -> PictureList:
    return PictureList("noise", [Noise(seed, grey) for seed in seeds], [str(seed) for seed in seeds])


def test_shares_are_those_of_contributions(tiny) -> None:
    """The pass keeps sums of coordinates; the shares are those of contributions themselves, all pictures at once."""
    backbone, labels = tiny(), [i % 3 for i in range(45)]
    pictures = noise(range(45))
    probe = Probe(pictures, {"shape": labels}, by_pixels=True)
    others = [Probe(noise(range(50, 90)), by_pixels=True), Probe(noise(range(9), grey=True), by_pixels=True)]
    measured = measure(backbone, [probe, *others])
    assert list(measured.moments) == ["color", "shape"]
    assert measured.moments["color"].count == 85  # grey pictures tell no color
    pixels = torch.stack([backbone.preprocess(picture.open()) for picture in pictures.pictures])
    written = HeadContributions(backbone).contributions(pixels)
    whole = AttributeMoments.empty(4, 1, *written.shape[1:])
    whole.add(label_numbers(torch.tensor(labels), 3), written, torch.zeros(45, dtype=torch.long))
    assert torch.allclose(measured.moments["shape"].share(), whole.share(), atol=1e-6)


def test_pictures_that_cannot_be_read_are_left_out(tiny) -> None:
    probe = Probe(noise([*range(30), -1]), {"shape": [i % 3 for i in range(31)]})
    with pytest.warns(DearWarning, match="A picture is left out: broken"):
        measured = measure(tiny(), [probe])
    assert measured.skipped == ["-1"]
    assert measured.moments["shape"].count == 30
    with pytest.raises(DearError, match="only 12 pictures for shape"):
        measure(tiny(), [Probe(noise(range(12)), {"shape": [0, 1] * 6})])


def planted(seed: int, pictures: int = 240, strength: float = 2.0, second: float = 0.0) -> HeadMoments:
    """Two attributes that vary apart; head 0 varies with color, head 1 with shape, heads 2 and 3 with nothing, or, with
    `second`, head 2 so far with color, too."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(pictures, 1, 4, 6, generator=generator)
    labels = {a: torch.randint(5, (pictures,), generator=generator) for a in ("color", "shape")}
    for head, of_pictures in enumerate(labels.values()):
        x[:, 0, head] += strength * torch.randn(5, 6, generator=generator)[of_pictures]
    x[:, 0, 2] += second * torch.randn(5, 6, generator=generator)[labels["color"]]
    measured = HeadMoments((9,))
    for attribute, of_pictures in labels.items():
        measured.moments[attribute] = AttributeMoments.empty(6, 1, 1, 4, 6)
        measured.moments[attribute].add(label_numbers(of_pictures, 5), x, torch.arange(pictures) % PICTURE_GROUPS)
    return measured


def test_planted_attributes_are_found_and_sure() -> None:
    measured = planted(0)
    roles = judge_shares(measured, ("color", "shape"))
    assert [roles[9, h].concept for h in range(2)] == ["color", "shape"]
    assert [roles[9, h].role for h in range(2)] == [CORE_ATTRIBUTE] * 2
    assert [roles[9, h].sure for h in range(2)] == [1, 1]
    assert all(roles[9, h].role != CORE_ATTRIBUTE for h in (2, 3))
    assert sum(roles[9, 0].distribution) == pytest.approx(1)
    assert roles[9, 0].shares == pytest.approx([m.share()[0, 0].item() for m in measured.moments.values()])
    assert roles[9, 0].entropy < roles[9, 2].entropy or roles[9, 2].shares == (0, 0)


@pytest.mark.parametrize("first_is_sure", [True, False])
def test_a_head_that_is_not_sure_takes_no_place_of_a_sure_one(first_is_sure: bool, monkeypatch) -> None:
    """An attribute has at most one of four heads: the best, if it is sure, otherwise the next sure one."""
    measured = planted(0, second=1.0)
    monkeypatch.setattr("dear.heads.rules.sureness", lambda _: torch.tensor([[float(first_is_sure), 1, 1, 1]]))
    roles = judge_shares(measured, ("color", "shape"))
    assert roles[9, 0].shares[0] > roles[9, 2].shares[0] > 0
    assert [roles[9, h].role == CORE_ATTRIBUTE for h in (0, 2)] == [first_is_sure, not first_is_sure]


def test_resamples_are_the_same_every_time() -> None:
    measured = planted(1, strength=0.1)
    assert torch.equal(sureness(measured), sureness(measured))
    assert sureness(measured).min() < 1


def test_lifts_compare_with_the_mean_over_heads() -> None:
    shares = torch.tensor([[[0.1, 0.3]], [[0.0, 0.0]]])
    assert torch.allclose(lifts(shares), torch.tensor([[[0.5, 1.5]], [[0.0, 0.0]]]))


def test_mean_color_decides_a_map_of_a_backbone(tiny, tmp_path) -> None:
    backbone = tiny()
    probes = [Probe(noise(range(60)), {"shape": [i % 4 for i in range(60)]}, by_pixels=True)]
    with pytest.raises(DearError, match="no probe for texture"):
        roles_by_pictures(backbone, probes)
    role_map = roles_by_pictures(backbone, probes, core=("color", "shape"), first_layer=3)
    assert role_map.layers == (3, 4)
    assert role_map.origin["probes"][0]["attributes"] == ["shape", "color"]
    role_map.save(tmp_path / "roles.json")
    assert RoleMap.load(tmp_path / "roles.json") == role_map
    # labels of noise are chance: no head is about shape by much, and many vary with color
    assert max(role.shares[1] for role in role_map.roles.values()) < 0.2
    assert max(role.shares[0] for role in role_map.roles.values()) > 0.2
