"""dear roles, show and check, from the command line; bad input is one sentence, exit code 2 and no file."""

import functools

import pytest
from PIL import Image

from dear.cli import main
from dear.roles import causal
from dear.roles.rolemap import RoleMap
from dear.roles.show import overlap


def test_from_pictures_to_table_map_report_and_check(tmp_path, capsys, monkeypatch) -> None:
    out, report, plot = (tmp_path / name for name in ("roles.json", "roles.html", "roles.png"))
    flags = ["--limit", "48", "--core", "3", "--quantile", "0.3", "--out", str(out)]
    assert main(["roles", *flags, "--report", str(report), "--plot", str(plot)]) == 0
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
    assert main(["roles", "show", str(out), "--against", str(out), "--plot", str(picture), "--html", str(page)]) == 0
    shown = capsys.readouterr().out
    assert "100.0% have the same role (by chance" in shown
    assert role_map[7, 0].phrases[0].text in shown
    assert picture.exists()
    assert page.exists()

    few = functools.partial(causal.causal_check, pictures=40, draws=2)
    monkeypatch.setattr(causal, "causal_check", few)
    numbers, heat = tmp_path / "check.json", tmp_path / "check.png"
    assert main(["roles", "check", str(out), "--out", str(numbers), "--plot", str(heat)]) == 0
    checked = capsys.readouterr().out
    assert "without heads of" in checked
    assert "two std beyond random heads" in checked
    assert Image.open(heat).width > 800
    assert RoleMap.load(out) == role_map
    assert numbers.exists()


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
        (["--images", "EMPTY"], "There is no image in"),
        (["--images", "EMPTY/missing"], "There is no folder"),
        (["--phrases", "EMPTY/missing.txt"], "does not exist"),
        (["--phrases", "none.txt"], "holds no phrases"),
        (["--phrases", "few.txt"], "cannot be picked from 2"),
        (["--phrases", "long.txt"], "longer than the 20 tokens"),
        (["--first-layer", "10"], "layers 1 to 9"),
        (["--quantile", "0.7"], "to 0.5"),
        (["--plot", "map.gif"], r"ends in .png or .svg"),
        (["--limit", "1"], "--limit must be from 2 to"),
        (["--model", "ViT-B-16", "--pretrained", "openai"], "give a folder with --images"),
        (["--model", "ViT-Z"], "give a folder with --images"),
        (["show", "missing.json"], "does not exist"),
        (["show", "resnet"], "no role map named resnet"),
        (["check", "paper"], "12 heads a layer"),
    ],
)
def test_bad_input_is_one_sentence_and_no_file(tmp_path, monkeypatch, capsys, flags, sentence) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "none.txt").write_text("# nothing here\n\n")
    (tmp_path / "few.txt").write_text("something red\na cat\n")
    (tmp_path / "long.txt").write_text("\n".join(["a red sign " * 9, *(f"a sign number {i}" for i in range(30))]))
    before = sorted(tmp_path.rglob("*"))
    assert main(["roles", *flags]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.startswith("dear: ")
    assert error.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before
