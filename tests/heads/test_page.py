"""The picture and the HTML page of a role map: complete, escaped, and without any request to the network."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image

from dear.core.errors import DearError
from dear.heads.figures import draw_role_map, plot_role_map
from dear.heads.head_role import Phrase
from dear.heads.map_table import color_strength, role_table, table_legend
from dear.heads.page import write_page
from dear.heads.role_map import RoleMap
from dear.heads.rules import judge_heads

PAPER = RoleMap.preset("paper")
EVIL = '</script><img src="http://example.com/x"> & a quote'
CHROMIUM = shutil.which("chromium")


@pytest.fixture
def role_map() -> RoleMap:
    """Head h has h + 1 concepts among its phrases, so entropy rises with h."""
    phrases = {
        (layer, head): [Phrase(f"{layer}.{head} phrase {i}", 0.3 / (i + 1), PAPER.concepts[i]) for i in range(head + 1)]
        for layer in (1, 2)
        for head in range(3)
    }
    phrases[2, 1][0] = Phrase(EVIL, 0.3, "location")
    roles = judge_heads(phrases, PAPER.concepts, PAPER.core)
    return RoleMap({"model": "tiny"}, (1, 2), 3, PAPER.concepts, PAPER.core, roles)


@pytest.fixture
def report(role_map, tmp_path):
    images = {(2, 1): ([Image.new("RGB", (300, 200), "red")] * 2, [Image.new("L", (40, 40), 90)])}
    write_page(role_map, tmp_path / "report.html", images)
    return tmp_path / "report.html"


def test_the_report_asks_for_nothing_from_outside(report):
    page = report.read_text(encoding="utf-8")
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?!data:)\w""", page.replace('src=\\"http://example.com', ""))
    assert "<link" not in page
    assert page.count("</script>") == 1  # a phrase cannot end the script
    assert page.count("data:image/jpeg;base64,") == 3


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize(("layer", "head"), [(2, 1), (1, 2)])
def test_a_click_on_a_head_shows_its_evidence_in_a_real_browser(report, tmp_path, role_map, layer, head):
    click = f"<script>document.querySelector('[data-head=\"{layer}.{head}\"]').click()</script>"
    clicked = tmp_path / "clicked.html"
    page = report.read_text(encoding="utf-8")
    clicked.write_text(page.replace("</body>", click + "</body>"), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
             "--disable-background-networking", "--disable-component-update"]  # fmt: skip
    command = [CHROMIUM, *flags, f"--user-data-dir={tmp_path / 'u'}", "--dump-dom", clicked.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
    detail = re.search(r'<section id="detail".*?</section>', dom, re.DOTALL).group()
    assert f"Layer {layer}, head {head}" in detail
    for phrase in role_map[layer, head].phrases:
        assert phrase.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") in detail
        assert f"{100 * phrase.variance:.1f}%" in detail
    assert f"Concept Entropy {role_map[layer, head].entropy:.2f} nats" in detail
    assert detail.count("<img") == (3 if (layer, head) == (2, 1) else 0)
    pressed = re.findall(r'<button[^>]*aria-pressed="true"', dom)
    assert len(pressed) == 1
    assert f'data-head="{layer}.{head}"' in pressed[0]


def test_a_map_without_evidence_has_a_report_and_a_picture(tmp_path):
    write_page(PAPER, tmp_path / "paper.html")
    plot_role_map(PAPER, tmp_path / "paper.png")
    assert Image.open(tmp_path / "paper.png").width > 1000


def test_the_picture_names_each_head_without_colour(role_map, tmp_path):
    texts = [text.get_text() for text in draw_role_map(role_map).axes[0].texts]
    marks = {"core_attribute": "★", "other_specialized": "■", "generalization": "○", "mixed": "◐"}
    for head in role_map.roles.values():
        assert marks[head.role] in texts
        assert head.concept in texts
        assert f"{head.entropy:.2f}" in texts
    plot_role_map(role_map, tmp_path / "roles.svg")
    assert ElementTree.parse(tmp_path / "roles.svg").getroot().tag.endswith("svg")


def test_paler_with_entropy(role_map):
    strengths = [color_strength(role_map[1, head], role_map) for head in range(3)]
    assert strengths == sorted(strengths, reverse=True)
    assert strengths[0] == 1
    assert strengths[2] == pytest.approx(0.15)


def test_a_picture_of_another_kind_is_refused_and_leaves_no_file(tmp_path):
    with pytest.raises(DearError, match=r"ends in \.png or \.svg"):
        plot_role_map(PAPER, tmp_path / "roles.gif")
    assert list(tmp_path.iterdir()) == []


def test_a_measured_map_shows_shares_and_how_sure_they_are(tmp_path):
    measured = RoleMap.preset("openai-vit-b-16")
    write_page(measured, tmp_path / "measured.html")
    page = (tmp_path / "measured.html").read_text(encoding="utf-8")
    data = json.loads(page.split("const data = ", 1)[1].split(";\n", 1)[0])
    color = measured.concepts.index("color")
    head = next(cell for cell in data["cells"] if (cell["layer"], cell["head"]) == (12, 7))
    assert (head["concept"], head["sure"]) == ("color", 1)
    of = {part["concept"]: part for part in head["distribution"]}
    shares = torch.tensor([role.shares for role in measured.roles.values()]).mean(0)
    for part, mean in zip((of[concept] for concept in measured.concepts), shares.tolist(), strict=True):
        assert part["lift"] == pytest.approx(part["share"] / mean, rel=1e-4)
    assert of["color"]["lift"] > 5
    assert of["object"]["lift"] < 1
    assert head["number"] == f"{of['color']['lift']:.1f}x"
    assert head["number"] in [text.get_text() for text in draw_role_map(measured).axes[0].texts]
    # specialised heads are strong, the surer the stronger
    assert color_strength(measured[12, 7], measured) > 0.9
    mixed = next(head for head in measured.roles.values() if head.role == "mixed")
    assert color_strength(mixed, measured) <= 0.3
    row = next(row for row in role_table(measured).rows if row[:2] == (12, 7))
    assert row[5] == "100%"
    assert row[6 + color] == head["number"]
    assert "ranks highest among all heads" in table_legend(measured)
    assert table_legend(PAPER) == ""


def test_texts_of_a_map_are_escaped_outside_of_the_script_too(role_map, tmp_path):
    hostile = replace(role_map, backbone={"model": EVIL}, origin={"note": EVIL, "source": EVIL})
    write_page(hostile, tmp_path / "hostile.html")
    page = (tmp_path / "hostile.html").read_text(encoding="utf-8")
    assert page.count("</script>") == 1
    assert "<img" not in page
    assert page.count("&lt;/script&gt;") == 6  # title, heading, note, and three fields
