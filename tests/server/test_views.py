"""The answers of each view, without a browser."""

import base64
import io
import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import dear
from dear.core.errors import DearError
from dear.core.figure import color_of
from dear.core.sheet import thumbnail_url
from dear.data.dataset import ImageFile
from dear.heads.map_table import map_record
from dear.heads.pictures import PictureList, world_pictures
from dear.heads.role_map import RoleMap
from dear.server.api import Service, short_name
from dear.server.engines import TorchEngine
from dear.server.page.classify import attention_overlay, classify
from dear.server.page.heads import HeadPictures, main_direction
from dear.server.page.views import Page, PageRequest, pictures_of_heads


def at_once(job):
    """Runs a job at once: nobody else uses the model."""
    return job()


# --- classify --------------------------------------------------------------------------------------------------


def test_the_answer_is_that_of_predict_with_one_map_an_attribute(predictor) -> None:
    picture = Image.new("RGB", (50, 40), "red")
    view = classify(predictor, picture, at_once)
    answer = predictor.predict(picture)
    assert view["choice"] == answer.choice
    assert view["probability"] == pytest.approx(answer.probability, abs=1e-5)
    assert [vote["component"] for vote in view["votes"]] == list(predictor.model.components)
    heads = dict.fromkeys(predictor.model.components, "in all heads: it has none of its own")
    heads |= {"cls": "in the last layer", "color": "in its 3 heads", "shape": "in its 2 heads"}
    assert {one["component"]: one["heads"] for one in view["maps"]} == heads
    json.dumps(view)


def test_the_page_says_in_which_heads_a_token_without_an_attribute_reads(model_folder, role_file) -> None:
    for method, captions in (
        ("experts", {"color": "in its 1 head", "rest": "in all heads without a core attribute"}),
        ("clip-adapter", {"cls": "in the last layer"}),
    ):
        roles = {"roles": str(role_file)} if method == "experts" else {}
        model = dear.create(f"local-dir:{model_folder}", classes=["a", "b"], method=method, device="cpu", **roles)
        maps = classify(model, Image.new("RGB", (50, 40), "red"), at_once)["maps"]
        assert captions.items() <= {one["component"]: one["heads"] for one in maps}.items()
        assert not any("null" in one["heads"] or "None" in one["heads"] for one in maps)


def test_the_overlay_is_brightest_where_the_attention_is() -> None:
    attention = np.zeros((4, 4))
    attention[0, 3] = 1
    drawn = np.asarray(attention_overlay(Image.new("RGB", (32, 32), "grey"), attention)).sum(-1, dtype=int)
    row, column = np.unravel_index(drawn.argmax(), drawn.shape)
    assert row < drawn.shape[0] / 4
    assert column > 3 * drawn.shape[1] / 4
    flat = attention_overlay(Image.new("RGB", (32, 32), "grey"), np.ones((4, 4)))  # nothing stands out
    assert len(flat.getcolors()) == 1


def test_examples_are_of_the_classes_that_are_answered(run) -> None:
    few = dear.load(run, classes=["red", "blue", "heavy"], device="cpu")
    with Service(TorchEngine(few), "few") as service:
        assert {name for _, name, _ in Page(run, service).examples} == {"red", "blue"}


@pytest.mark.parametrize("size", [(400, 100), (20, 5)])
def test_a_picture_travels_in_the_size_that_is_shown(size: tuple[int, int]) -> None:
    url = thumbnail_url(Image.new("RGBA", size, "blue"), 80)
    picture = Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))
    assert picture.size == (80, 20)


# --- heads -----------------------------------------------------------------------------------------------------


def test_the_map_has_every_head_and_its_evidence(roles) -> None:
    view = map_record(roles)
    assert [(cell["layer"], cell["head"]) for cell in view["cells"]] == sorted(roles.roles)
    first = view["cells"][0]
    assert [(part["concept"], part["share"]) for part in first["distribution"]] == [("color", 0.5), ("shape", 0.5)]
    assert first["phrases"][0]["color"] == first["color"] == color_of("color")


@pytest.mark.parametrize("preset", ["paper", "dear-mini"])
def test_the_maps_that_come_with_the_package_can_be_shown(preset: str) -> None:
    view = map_record(RoleMap.preset(preset))
    assert all(cell["distribution"] for cell in view["cells"]) == (preset == "dear-mini")
    assert all(cell["sure"] is not None for cell in view["cells"]) == (preset == "dear-mini")
    assert view["origin"].startswith({"paper": "DeAR supplement", "dear-mini": "found by dear"}[preset])
    json.dumps(view)


def test_colors_differ() -> None:
    names = ["cls", "rest", None, *RoleMap.preset("paper").concepts]
    assert len({color_of(name) for name in names}) == len(names)


def extremes(finder: HeadPictures, head: tuple[int, int]) -> dict:
    """Asks until the pictures are read."""
    while "of" in (result := finder.extremes(head)):
        time.sleep(0.05)
    return result


def test_pictures_of_a_head_are_ranked_along_its_phrase(predictor, gallery) -> None:
    free = threading.Event()

    def when_free(job):
        free.wait()
        return job()

    finder = HeadPictures(predictor, pictures_of_heads(gallery, "tiny"), when_free)
    assert finder.extremes((2, 0)) == {"done": 0, "of": 8}  # the model is busy elsewhere: none can be read yet
    free.set()
    result = extremes(finder, (2, 0))
    assert result["along"] == "a red <b>sign</b>"
    assert result["count"] == 8
    assert len(result["most"]) == len(result["least"]) == 4
    assert not set(result["most"]) & set(result["least"])
    bare = finder.extremes((3, 1))
    assert bare["along"] is None
    assert len(bare["most"]) == 4
    with pytest.raises(DearError, match="no head 9 in layer 2"):
        finder.extremes((2, 9))


def test_without_pictures_it_says_what_to_do(predictor) -> None:
    assert pictures_of_heads(None, "ViT-B-16") is None
    world = pictures_of_heads(None, "dear-mini")
    assert world.source == "Attribute World"
    with pytest.raises(DearError, match="--gallery"):
        HeadPictures(predictor, None, at_once).extremes((2, 0))


def test_pictures_that_are_gone_are_left_out_and_too_few_are_told(predictor) -> None:
    gone, there = ImageFile(Path("gone.png")), world_pictures(2)
    some = PictureList("a test", [gone, *there.pictures], ["gone", *there.names])
    assert extremes(HeadPictures(predictor, some, at_once), (2, 0))["count"] == 2
    with pytest.raises(DearError, match="Too few pictures of a test"):
        extremes(HeadPictures(predictor, PictureList("a test", [gone], ["gone"]), at_once), (2, 0))


def test_the_main_direction_is_the_one_of_most_variance() -> None:
    rows = torch.zeros(5, 3, dtype=torch.float64)
    rows[:, 1] = torch.tensor([0.0, 0, 0, 0, 9])
    assert main_direction(rows + 4).tolist() == pytest.approx([0, 1, 0])


# --- search ----------------------------------------------------------------------------------------------------


def test_a_picture_of_the_gallery_finds_itself_first(run, gallery, gallery_folder, photos) -> None:
    path = str(photos / "warm" / "7.png")
    with Service.open(run, gallery_folder) as service:
        page = Page(run, service)
        warm = page.search(PageRequest({"like": path, "by": "color=0.7,shape=0.3"}))
        cold = page.search(PageRequest({"text": "a warm thing", "label": " COLD "}))
        assert page.search(PageRequest({"text": "a", "label": "it's 100%"}))["hits"] == []
        starters = page.starters(PageRequest({}))
    assert warm["hits"][0]["path"] == path
    assert warm["hits"][0]["scores"].keys() == {"color", "shape"}
    assert warm["query"].startswith("data:image/")
    assert {hit["label"] for hit in cold["hits"]} == {"cold"}
    assert cold["query"] is None
    assert sorted(hit["path"] for hit in starters) == sorted(gallery.paths())


def test_a_gallery_of_heads_is_searched_by_its_own_components(run, model_folder, role_file, photos, tmp_path) -> None:
    from dear.gallery import Gallery, HeadEncoder

    encoder = HeadEncoder.load(f"local-dir:{model_folder}", roles=str(role_file), device="cpu")
    Gallery.create(tmp_path / "gallery", encoder).add(encoder, [photos])
    path = photos / "warm" / "7.png"
    with Service.open(run, tmp_path / "gallery") as service:
        assert service.search(Image.open(path), "color", 3)[0].path == str(path)
        about = Page(run, service).about(None)
    assert [c["name"] for c in about["gallery"]["components"]] == ["cls", "color", "shape"]
    assert len(about["components"]) == 6


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("dear-mini", "dear-mini"), ("world:signs:sketch", "world:signs:sketch"), ("local-dir:/a/vit", "vit"),
        ("/data/pets", "pets"), ("hf-hub:org/name", "hf-hub:org/name"),
    ],
)  # fmt: skip
def test_paths_are_shown_by_their_last_part(name: str, short: str) -> None:
    assert short_name(name) == short
