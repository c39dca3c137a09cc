"""dear roles and its parts from the command line; bad input is one sentence, exit code 2 and no file."""

import functools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dear.cli import main
from dear.heads import check_causal
from dear.heads.head_role import HeadRole
from dear.heads.map_table import overlap
from dear.heads.role_map import RoleMap


def test_by_phrases_to_table_map_report_and_comparison(tmp_path, capsys) -> None:
    out, report, plot = (tmp_path / name for name in ("roles.json", "roles.html", "roles.png"))
    flags = ["--using", "phrases", "--limit", "48", "--core", "3", "--quantile", "0.3", "--out", str(out)]
    assert main(["roles", *flags, "--html", str(report), "--plot", str(plot)]) == 0
    printed = capsys.readouterr().out
    assert "judged by 48 images of Attribute World; 0 could not be read" in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["roles.html", "roles.json", "roles.png"]
    role_map = RoleMap.load(out)
    assert role_map.layers == (7, 8, 9)
    assert len(role_map.core) == 3
    assert role_map.origin["quantile"] == 0.3
    assert len(role_map[9, 0].phrases) == 6
    assert report.read_text().count("data:image/jpeg") == 24 * 12

    picture, page = tmp_path / "again.svg", tmp_path / "again.html"
    assert main(["roles", "show", str(out), "--plot", str(picture), "--html", str(page)]) == 0
    assert role_map[7, 0].phrases[0].text in capsys.readouterr().out
    assert picture.exists()
    assert page.exists()
    assert main(["roles", "compare", str(out), str(out)]) == 0
    assert "100.0% have the same role (by chance" in capsys.readouterr().out


def test_by_pictures_to_map_and_check(tmp_path, capsys, monkeypatch, model_folder) -> None:
    """Photos of the user measure texture; the other attributes are measured on drawn pictures."""
    rng = np.random.default_rng(0)
    for name, size in (("coarse", 4), ("fine", 32), ("middle", 8)):
        (tmp_path / "textures" / name).mkdir(parents=True)
        for i in range(24):
            noise = Image.fromarray(rng.integers(0, 256, (size, size, 3), dtype=np.uint8))
            noise.resize((32, 32)).save(tmp_path / "textures" / name / f"{i}.png")
    monkeypatch.chdir(tmp_path)
    model = ["--model", f"local-dir:{model_folder}", "--probe", "texture=textures", "--limit", "60"]
    assert main(["roles", *model, "--first-layer", "2", "--out", "roles.json", "--html", "roles.html"]) == 0
    printed = capsys.readouterr().out
    assert "texture, color: 54 photos of textures" in printed
    assert "shape, object, location: 60 drawn pictures of Attribute World" in printed
    role_map = RoleMap.load("roles.json")
    assert role_map.concepts == ("color", "shape", "texture", "object", "location")
    assert all(len(head.shares) == 5 and 0 <= head.sure <= 1 for head in role_map.roles.values())
    assert str(tmp_path) not in Path("roles.json").read_text()
    assert '"lift": ' in Path("roles.html").read_text()

    heads = {at: HeadRole("core_attribute", role_map.core[at[1]]) for at in role_map.roles}
    replace(role_map, roles=heads).save("all_core.json")
    assert main(["roles", "check", "all_core.json", *model, "--out", "check.json", "--plot", "check.png"]) == 0
    printed = capsys.readouterr().out
    assert "texture: 18 held-out pictures of textures" in printed
    assert "better than the class feature" in printed
    assert "causal" not in json.loads(Path("check.json").read_text())  # it knows no words of Attribute World
    assert Image.open("check.png").width > 800


def test_check_of_dear_mini_is_causal_too(tmp_path, capsys, monkeypatch) -> None:
    few = functools.partial(check_causal.causal_check, pictures=40, draws=2)
    monkeypatch.setattr(check_causal, "causal_check", few)
    numbers, heat = tmp_path / "check.json", tmp_path / "check.png"
    assert main(["roles", "check", "--limit", "40", "--out", str(numbers), "--plot", str(heat)]) == 0
    checked = capsys.readouterr().out
    assert "points of zero-shot accuracy lost without the heads" in checked
    assert "two std beyond random heads" in checked
    assert {path.name for path in tmp_path.iterdir()} == {"check.json", "check.png", "check-causal.png"}
    assert set(json.loads(numbers.read_text())) == {"search", "causal"}


def test_layers(tmp_path, capsys, model_folder) -> None:
    model, out = f"local-dir:{model_folder}", tmp_path / "layers.json"
    assert main(["roles", "layers", "--model", model, "--limit", "20", "--out", str(out)]) == 0
    assert "the feature (mean cosine, centred) over 20 images" in capsys.readouterr().out
    assert json.loads(out.read_text())["first_layer"] in (1, 2, 3)
    plot = tmp_path / "layers.png"
    data = ["--data", "world:shapes", "--limit", "20", "--plot", str(plot)]
    assert main(["roles", "layers", "--model", model, *data]) == 0
    assert "zero-shot accuracy on" in capsys.readouterr().out
    assert plot.exists()


def test_show_a_preset(capsys) -> None:
    assert main(["roles", "show", "paper"]) == 0
    assert "28 core attribute, 8 other specialized, 7 generalization, 5 mixed" in capsys.readouterr().out


def test_overlap_of_the_paper_with_a_shuffle_of_it() -> None:
    paper = RoleMap.preset("paper")
    itself = overlap(paper, paper)
    assert (itself.heads, itself.same_role, itself.same_role_and_concept) == (48, 1, 1)
    assert itself.by_chance == pytest.approx((28**2 + 8**2 + 7**2 + 5**2) / 48**2)
    other = overlap(paper, paper.shuffled(0))
    assert other.same_role_and_concept < other.same_role < 0.7
    assert len(overlap(paper, paper.for_layers(12)).table.rows) == 12


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--using", "pictures", "--images", "EMPTY"], "--images is for --using phrases"),
        (["--using", "phrases", "--probe", "texture=EMPTY"], "--probe is for --using pictures"),
        (["--probe", "EMPTY"], "write ATTRIBUTE=DATA"),
        (["--probe", "smell=EMPTY"], "can't be about 'smell'"),
        (["--probe", "text=world"], "Attribute World has no text"),
        (["--probe", "texture=EMPTY", "--probe", "texture=world"], "given twice for texture"),
        (["--probe", "texture=EMPTY"], "one folder of images for each class"),
        (["--limit", "15"], "only 15 pictures for color"),
        (["--core", "7"], "no probe for human"),
        (["--images", "EMPTY/missing"], "There is no folder"),
        (["--phrases", "EMPTY/missing.txt"], "does not exist"),
        (["--plot", "map.gif"], r"ends in .png or .svg"),
        (["--limit", "1"], "--limit must be from 2 to"),
        (["--model", "ViT-B-16", "--using", "phrases"], "give a folder with --images"),
        (["--model", "ViT-Z"], "no model named ViT-Z"),
        (["show", "missing.json"], "does not exist"),
        (["show", "resnet"], "no role map named resnet"),
        (["check", "paper"], "12 heads per layer"),
        (["layers", "--limit", "1"], "--limit must be from 2 to"),
        (["layers", "--data", "EMPTY/missing"], "There is no folder or file"),
    ],
)
def test_bad_input_is_one_sentence_and_no_file(tmp_path, monkeypatch, capsys, flags, sentence) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "EMPTY").mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert main(["roles", *flags, *(["--model", "dear-mini"] if {"--probe", "--images"} & set(flags) else [])]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.startswith("dear: ")
    assert error.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before
