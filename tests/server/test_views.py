"""What each view answers, without a browser."""

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
from dear.cli import main
from dear.core.errors import DearError
from dear.core.palette import color_of
from dear.data.dataset import ImageFile
from dear.heads.map_table import map_record
from dear.heads.pictures import PictureList, world_pictures
from dear.heads.role_map import RoleMap
from dear.server.api import Service, short_name
from dear.server.page.classify import attention_overlay, classify, world_examples
from dear.server.page.heads import HeadPictures, main_direction
from dear.server.page.pictures import data_url, sample_pictures
from dear.server.page.runs import read_runs
from dear.server.responses import Json


def at_once(job):
    """Where nobody else uses the model."""
    return job()


# --- classify --------------------------------------------------------------------------------------------------


def test_the_answer_is_that_of_predict_with_one_map_an_attribute(predictor) -> None:
    picture = Image.new("RGB", (50, 40), "red")
    view = classify(predictor, picture, at_once)
    answer = predictor.predict(picture)
    assert view["choice"] == answer.choice
    assert view["probability"] == pytest.approx(answer.probability, abs=1e-5)
    assert [vote["component"] for vote in view["votes"]] == list(predictor.model.components)
    none = "in all heads: it has none of its own"
    heads = {
        "cls": "in the last layer",
        "color": "in its 3 heads",
        "shape": "in its 2 heads",
        "texture": none,
        "object": none,
        "location": none,
    }
    assert {one["component"]: one["heads"] for one in view["maps"]} == heads
    json.dumps(view)


def test_the_page_says_in_which_heads_a_token_without_an_attribute_reads(run, model_folder, tmp_path) -> None:
    for method, captions in (
        ("experts", {"color": "in its 1 head", "rest": "in all heads without a core attribute"}),
        ("clip-adapter", {"cls": "in the last layer"}),
    ):
        roles = ["--roles", str(run.parent.parent / "roles.json")] if method == "experts" else []
        arguments = [
            "train", "--model", f"local-dir:{model_folder}", *roles, "--data", "world:colors", "--shots", "1",
            "--epochs", "1", "--workers", "0", "--device", "cpu", "--out", str(tmp_path / method), "--method", method,
        ]  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("dear.data.world.tasks.TEST", 1)
            assert main(arguments) == 0
        maps = classify(dear.load(tmp_path / method, device="cpu"), Image.new("RGB", (50, 40), "red"), at_once)["maps"]
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


def test_examples_are_of_the_classes_that_are_answered(predictor) -> None:
    examples = world_examples("world:colors", predictor.classes[:3])
    assert {name for _, name in examples} == set(predictor.classes[:3])


def test_a_picture_travels_in_its_size(tmp_path: Path) -> None:
    url = data_url(Image.new("RGBA", (400, 100), "blue"), 80)
    import base64

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

    finder = HeadPictures(predictor, sample_pictures(gallery, "tiny"), when_free)
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
    assert sample_pictures(None, "ViT-B-16") is None
    world = sample_pictures(None, "dear-mini")
    assert world is not None
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
    from dear.server.page.search import search, starters

    path = str(photos / "warm" / "7.png")
    with Service.open(run, gallery_folder) as service:
        warm = search(service, gallery.image(path), "color=0.7,shape=0.3")
        cold = search(service, "a warm thing", "cls", label=" COLD ")
        assert search(service, "a", "cls", label="it's 100%")["hits"] == []
    assert warm["hits"][0]["path"] == path
    assert warm["hits"][0]["scores"].keys() == {"color", "shape"}
    assert warm["query"].startswith("data:image/")
    assert {hit["label"] for hit in cold["hits"]} == {"cold"}
    assert cold["query"] is None
    assert sorted(hit["path"] for hit in starters(gallery)) == sorted(gallery.paths())


def test_a_gallery_of_heads_is_searched_by_its_own_components(run, model_folder, role_file, photos, tmp_path) -> None:
    from dear.gallery import Gallery, HeadEncoder
    from dear.server.page.views import Page

    encoder = HeadEncoder.load(f"local-dir:{model_folder}", roles=str(role_file), device="cpu")
    Gallery.create(tmp_path / "gallery", encoder).add(encoder, [photos])
    path = photos / "warm" / "7.png"
    with Service.open(run, tmp_path / "gallery") as service:
        assert service.search(Image.open(path), "color", 3)[0].path == str(path)
        about = Page(run, service).about(None)
    assert [c["name"] for c in about["gallery"]["components"]] == ["cls", "color", "shape"]
    assert len(about["components"]) == 6


# --- runs ------------------------------------------------------------------------------------------------------


def test_runs_beside_this_one_are_read_and_damaged_ones_named(run, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(run.parent, tmp_path / "runs")
    (tmp_path / "runs" / "broken").mkdir()
    for name, text in (("config.json", "{}"), ("metrics.jsonl", '{"epoch": 1, "loss": NaN, "fusion": []}')):
        (tmp_path / "runs" / "broken" / name).write_text(text)
    (tmp_path / "runs" / "base" / "adapter_config.json").unlink()  # as in a run that is not finished
    found = read_runs(tmp_path / "runs" / "colors")
    assert found["current"] == "colors"
    base, colors = found["runs"]
    assert base["results"].keys() == {"base", "novel", "hm"}
    assert base["components"] == ["cls", *(f"token {i}" for i in range(1, 6))]
    assert colors["components"] == ["cls", "color", "shape", "texture", "object", "location"]
    assert [epoch["epoch"] for epoch in colors["epochs"]] == [1, 2]
    assert len(found["problems"]) == 1
    assert "broken" in found["problems"][0]


DAMAGE = [
    "", "{", "[]", "null", "3", "NaN", '"text"', "[" * 100_000, "\x00\xff", "{}", '{"data": NaN, "epochs": 1e999}',
    '{"epoch": 1}', '{"epoch": "x", "fusion": []}', '{"epoch": 1, "fusion": [NaN]}', '{"epoch": 1, "fusion": 3}',
    '{"epoch": 1, "loss": 1e999, "fusion": [1]}', '{"epoch": 1e999, "fusion": []}', '{"epoch": 1, "loss": {}}',
    '{"epoch": 1, "fusion": [1]}\n{"epoch": 2, "fusion": [1, 2]}', '{"hm": NaN}', '{"hm": "much"}', '{"hm": null}',
    "9" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "test.json", "adapter_config.json", "cells/a.json"])
def test_no_damage_beside_a_run_hides_it(run, tmp_path: Path, name: str) -> None:
    import shutil

    for place, text in enumerate(DAMAGE):
        folder = shutil.copytree(run.parent / "base", tmp_path / "runs" / f"{place}")
        if name.startswith("cells"):
            (folder / "config.json").unlink()
            (folder / "cells").mkdir()
        (folder / name).write_text(text, encoding="latin-1")
    shutil.copytree(run, tmp_path / "runs" / run.name)
    (tmp_path / "runs" / "odd\udcff" / "cells").mkdir(parents=True)
    found = read_runs(tmp_path / "runs" / run.name)
    json.loads(Json(found).body, parse_constant=pytest.fail)
    assert run.name in [one["name"] for one in found["runs"]]
    assert all(run.name not in problem.split("/") for problem in found["problems"])
    if name in ("metrics.jsonl", "test.json"):
        assert len(found["problems"]) > len(DAMAGE) // 2


def test_a_benchmark_beside_the_run_becomes_a_table(run, tmp_path: Path) -> None:
    def evaluation(name: str, accuracy: float) -> dict:
        about = {"name": name, "inference": "plain", "images": 10, "accuracy": accuracy}
        return {**about, "interval": None, "ece": None, "per_class": {"a": accuracy}, "confused": []}

    of = {"protocol": "base-to-novel", "dataset": "world:signs", "targets": [], "method": "zero-shot", "seed": 1}
    of |= {"shots": 16, "split": "test", "variant": None, "settings": {"model": "dear-mini"}}
    cell = {"format": 1, "cell": of, "evaluations": [evaluation("base", 60.0), evaluation("novel", 30.0)]}
    cell |= {"fusion": None, "trained_parameters": None, "seconds": {"fit": 0, "evaluate": 1}, "peak_memory_mb": None}
    cell |= {"versions": {}, "machine": {}, "finished": "2026-01-01"}
    folder = tmp_path / "bench" / "cells"
    folder.mkdir(parents=True)
    (folder / "one.json").write_text(json.dumps(cell))
    (tmp_path / "empty" / "cells").mkdir(parents=True)
    found = read_runs(tmp_path / "run")
    assert found["benches"] == [
        {"title": "bench: base to novel", "rows": [["world:signs", "zero-shot", "60.0", "30.0", "40.0"]]}
    ]
    assert len(found["problems"]) == 1


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("dear-mini", "dear-mini"), ("world:signs:sketch", "world:signs:sketch"), ("local-dir:/a/vit", "vit"),
        ("/data/pets", "pets"), ("hf-hub:org/name", "hf-hub:org/name"),
    ],
)  # fmt: skip
def test_paths_are_shown_by_their_last_part(name: str, short: str) -> None:
    assert short_name(name) == short
