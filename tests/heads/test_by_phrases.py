"""Role maps from a folder of images: what is in it, interruptions, bad images and bad input."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from dear.core.errors import DearError, DearWarning
from dear.heads import by_phrases as module
from dear.heads.by_phrases import encode_phrases, picks_of, roles_by_phrases, thumbnails
from dear.heads.concepts import WORLD_PHRASES, load_phrases
from dear.heads.contributions import HeadContributions
from dear.heads.pictures import folder_pictures, world_pictures
from dear.heads.role_map import RoleMap
from dear.heads.textspan import RunningMoments, textspan

PHRASES = load_phrases(WORLD_PHRASES)[::5]


@pytest.fixture
def images(tmp_path) -> Path:
    """Seventy pictures in two folders: three batches."""
    folder = tmp_path / "images"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
    pixels = torch.randint(0, 256, (70, 6, 6, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for i, picture in enumerate(pixels):
        Image.fromarray(picture.numpy()).resize((40, 40)).save(folder / "ab"[i % 2] / f"{i:02}.png")
    return folder


def phrases_of(role_map: RoleMap) -> dict:
    return {head: [phrase.text for phrase in head_role.phrases] for head, head_role in role_map.roles.items()}


def test_a_role_map_holds_all_that_is_needed_to_trust_it(tiny, images, tmp_path) -> None:
    backbone = tiny()
    pictures = folder_pictures(images)
    analysis = roles_by_phrases(backbone, pictures, PHRASES, first_layer=3)
    role_map = analysis.role_map
    role_map.save(tmp_path / "roles.json")
    assert RoleMap.load(tmp_path / "roles.json") == role_map
    assert role_map.layers == (3, 4)
    assert dict(role_map.backbone) == backbone.identity.to_json()
    assert role_map.origin["images"] == {"source": "images", "used": 70, "sha256": pictures.digest}
    assert role_map.origin["phrases"]["count"] == len(PHRASES)
    low, high = role_map.origin["thresholds"].values()
    for head_role in role_map.roles.values():
        assert (head_role.role in ("core_attribute", "other_specialized")) == (head_role.entropy <= low < high)
        assert 0 < sum(phrase.variance for phrase in head_role.phrases) <= 1 + 1e-9
        assert len(head_role.phrases) == 4

    # The picks are those of TEXTSPAN on the contributions themselves.
    pixels = torch.stack([backbone.preprocess(picture.open()) for picture in pictures.pictures])
    moments = RunningMoments((3, 4), 4, 24)
    moments.update(HeadContributions(backbone, 3).contributions(pixels))
    texts = encode_phrases(backbone, PHRASES)
    for head, picked in phrases_of(role_map).items():
        assert picked == [PHRASES[i] for i in textspan(moments.of(*head), texts, 12, 4).indices]

    # Most and least activating: by what the head writes along its first phrase.
    along = HeadContributions(backbone, 3).contributions(pixels).double() @ texts.T
    for (layer, head), (most, least) in analysis.extremes.items():
        scores = along[:, layer - 3, head, PHRASES.index(role_map[layer, head].phrases[0].text)]
        order = scores.argsort(descending=True).tolist()
        assert (most, least) == (order[:6], order[::-1][:6])
    images_of = thumbnails(analysis, pictures)
    assert {len(side) for sides in images_of.values() for side in sides} == {6}


def test_a_small_head_is_not_described_by_more_phrases_than_it_has_room_for() -> None:
    assert [picks_of(head_dim) for head_dim in (2, 12, 20, 64, 80)] == [1, 4, 6, 20, 20]


def test_an_interrupted_run_goes_on_and_ends_the_same(tiny, images, tmp_path, monkeypatch, capsys) -> None:
    (images / "b" / "03.png").write_bytes(b"no picture")
    checkpoint = tmp_path / "moments.safetensors"
    pictures = folder_pictures(images)
    whole = roles_by_phrases(tiny(), pictures, PHRASES)
    monkeypatch.setattr(module, "_SAVE_EVERY", -1.0)
    read, batches = HeadContributions.codes, []

    def interrupted(self, pixels):
        if len(batches) == 2:
            raise KeyboardInterrupt
        batches.append(len(pixels))
        return read(self, pixels)

    monkeypatch.setattr(HeadContributions, "codes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        roles_by_phrases(tiny(), pictures, PHRASES, checkpoint=checkpoint)
    batches[:] = [0]  # one more batch may be read, and one is left
    resumed = roles_by_phrases(tiny(), pictures, PHRASES, checkpoint=checkpoint)
    assert batches == [0, 6]
    assert json.dumps(resumed.role_map.to_json()) == json.dumps(whole.role_map.to_json())
    assert resumed.extremes == whole.extremes
    assert "64 of 70 images" in capsys.readouterr().out

    # What was left is of no use to another backbone, to other images or other layers, or if it is broken.
    monkeypatch.setattr(HeadContributions, "codes", read)
    for backbone, some, first_layer in [
        (tiny(seed=1), pictures, None),
        (tiny(), pictures.spread(65), None),
        (tiny(), pictures, 3),
    ]:
        expected = roles_by_phrases(backbone, some, PHRASES, first_layer=first_layer).role_map
        with pytest.warns(DearWarning, match="belongs to another backbone or other images: starting again"):
            found = roles_by_phrases(backbone, some, PHRASES, first_layer=first_layer, checkpoint=checkpoint)
        assert found.role_map == expected
    checkpoint.write_bytes(b"broken")
    with pytest.warns(DearWarning, match="can't be read: starting again"):
        assert roles_by_phrases(tiny(), pictures, PHRASES, checkpoint=checkpoint).role_map == whole.role_map


def test_a_bad_image_is_skipped_and_counted(tiny, images) -> None:
    (images / "a" / "99.jpg").write_bytes(b"no picture")
    (images / "b" / "98.png").write_bytes((images / "b" / "01.png").read_bytes()[:60])
    with pytest.warns(DearWarning, match="A picture is left out: .*98.png cannot be read"):
        with_bad = roles_by_phrases(tiny(), folder_pictures(images), PHRASES).role_map
    assert with_bad.origin["skipped_images"] == ["a/99.jpg (10 bytes)", "b/98.png (60 bytes)"]
    assert with_bad.origin["images"]["used"] == 70
    for name in ("a/99.jpg", "b/98.png"):
        (images / name).unlink()
    assert phrases_of(with_bad) == phrases_of(roles_by_phrases(tiny(), folder_pictures(images), PHRASES).role_map)


def test_what_is_kept_does_not_grow_with_the_number_of_images(tiny) -> None:
    sizes = set()
    for count in (300, 3000):
        seen = module._HeadStatistics(HeadContributions(tiny()), world_pictures(count), "")
        sizes.add((seen.moments.outer.shape, seen.sample.shape))
    assert len(sizes) == 1


def test_a_limit_is_spread_over_the_folder(images) -> None:
    pictures = folder_pictures(images)
    assert [name[:4] for name in pictures.spread(4).names] == ["a/00", "a/34", "b/01", "b/35"]
    assert pictures.spread(100) == pictures
    assert pictures.spread(4).digest != pictures.digest


@pytest.mark.parametrize(
    ("phrases", "settings", "sentence"),
    [
        (PHRASES[:3], {}, "4 phrases for each head cannot be picked from 3"),
        ([*PHRASES[:-1], " ".join(["red"] * 80)], {}, "longer than the 77 tokens"),
        (PHRASES, {"first_layer": 5}, "layers 1 to 4"),
        (PHRASES, {"quantile": 0.6}, "up to 0.5"),
        (PHRASES, {"core": ("sound",)}, "sound"),
    ],
)
def test_bad_input_is_refused_before_an_image_is_opened(tiny, phrases, settings, sentence) -> None:
    class Unopened:
        def open(self):
            raise AssertionError

    pictures = module.PictureList("none", [Unopened()] * 3, ["a", "b", "c"])
    with pytest.raises(DearError, match=sentence):
        roles_by_phrases(tiny(), pictures, phrases, **settings)


def test_images_that_are_all_bad_or_missing(tiny, tmp_path) -> None:
    with pytest.raises(DearError, match="There is no folder"):
        folder_pictures(tmp_path / "missing")
    with pytest.raises(DearError, match="There is no image"):
        folder_pictures(tmp_path)
    (tmp_path / "a.png").write_bytes(b"no picture")
    with pytest.raises(DearError, match=r"judged by 0 images.*cannot be read"), pytest.warns(DearWarning):
        roles_by_phrases(tiny(), folder_pictures(tmp_path), PHRASES)
