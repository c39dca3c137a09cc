"""A report from made-up results: its tables, its page, its notes, and what is missing."""

import csv
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from dear.bench.page import notes_html
from dear.bench.tables import ablation_tables, main_results, main_tables
from dear.cli import main
from made_up import grid, parsed, result, write


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the grid, with notes, as the command writes it."""
    folder = write(tmp_path_factory.mktemp("bench"), grid())
    (folder / "notes.md").write_text("# Why\n\nSee [the paper](https://arxiv.org/abs/2603.01111).\n", encoding="utf-8")
    assert main(["report", str(folder)]) == 0
    return folder / "report"


def table(report: Path, name: str) -> list[dict[str, str]]:
    with (report / "tables" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_base_to_novel(report: Path) -> None:
    rows = {(row["dataset"], row["method"]): row for row in table(report, "base-to-novel")}
    dear = rows["world:signs", "dear"]
    assert (dear["base"], dear["base std"], dear["novel"], dear["seeds"]) == ("81.50", "0.71", "68.50", "2")
    assert dear["HM"] == f"{(2 * 81 * 69 / 150 + 2 * 82 * 68 / 150) / 2:.2f}"
    assert dear["images"] == "200"
    probe = rows["world:signs", "linear-probe"]
    assert (probe["base"], probe["novel"], probe["HM"]) == ("75.00", "-", "-")
    assert rows["Average", "dear"]["base"] == f"{(81.5 + float(rows['eurosat', 'dear']['base'])) / 2:.2f}"
    assert ("Average", "linear-probe") not in rows  # it was not run on eurosat
    text = (report / "results.md").read_text(encoding="utf-8")
    assert "over all 2 datasets and the seeds they share; none for linear-probe, which did not run on all" in text


def test_the_papers_numbers_stand_beside_datasets_it_has(report: Path) -> None:
    rows = table(report, "base-to-novel_paper")
    assert {row["dataset"] for row in rows} == {"EuroSAT"}
    assert "only with the same backbone" in (report / "results.md").read_text()


def test_the_papers_numbers_are_about_test_images(tmp_path: Path) -> None:
    held_out = result("base-to-novel", "eurosat", "dear", 1, {"base": 80, "novel": 70}, split="held-out")
    folder = write(tmp_path / "bench", [held_out])
    assert main(["report", str(folder)]) == 0
    assert "The paper's numbers" not in (folder / "report" / "results.md").read_text(encoding="utf-8")


def test_test_images_come_before_held_out_ones() -> None:
    of_splits = [
        result("base-to-novel", data, "dear", 1, {"base": 80, "novel": 70}, split=split)
        for data, split in (("a", "held-out"), ("b", "test"))
    ]
    assert list(main_results(parsed(*of_splits), "base-to-novel")) == ["test", "held-out"]


def test_few_shot_and_domain(report: Path) -> None:
    assert [row["16 shots"] for row in table(report, "few-shot")] == ["66.00", "66.00"]
    rows = {row["method"]: row["average of targets"] for row in table(report, "domain")}
    assert rows == {"dear (decoupled)": "54.00", "dear (fusion)": "55.00"}


def test_an_ablation_against_the_unchanged_cells(report: Path) -> None:
    rows = {row["masks"]: row for row in table(report, "ablation_masks_base-to-novel_test_16")}
    assert set(rows) == {"DeAR (default)", "all mixed"}
    assert (rows["all mixed"]["pairs"], rows["DeAR (default)"]["HM − default"]) == ("2", "-")
    gaps = [2 * 70 * (70 - s) / (140 - s) - 2 * (80 + s) * (70 - s) / 150 for s in (1, 2)]
    assert re.fullmatch(rf"\{sum(gaps) / 2:+.1f} \([+-].* to [+-].*\)", rows["all mixed"]["HM − default"])


def test_cost_and_settings(report: Path) -> None:
    cost = {(row["protocol"], row["method"]): row for row in table(report, "cost")}
    assert cost["Base to novel", "dear"]["trained parameters"] == "1,234"
    assert cost["Base to novel", "dear"]["fit (s)"] == "10.00"
    assert table(report, "settings_shared") == [{"setting": "model", "value": "dear-mini"}]


def test_each_feature_alone(report: Path) -> None:
    rows = [row for row in table(report, "components_base-to-novel") if row["dataset"] == "world:signs"]
    assert [(row["what"], row["cls"], row["color"], row["cosine"]) for row in rows] == [
        ("alone, base", "80.50", "40.75", "0.15"),
        ("alone, novel", "67.50", "34.25", "0.15"),
        ("fusion weight", "0.90", "0.10", "-"),
    ]


def test_details_are_folded_after_the_figures(report: Path) -> None:
    text = (report / "results.md").read_text(encoding="utf-8")
    assert "### Cost" not in text
    folded = r'<details markdown="1"><summary>Cost</summary>\n\nPer cell[^<]*\n\n\| protocol [^<]*\n\n</details>\n'
    assert re.search(folded, text)
    assert text.index("figures/base_novel.png") < text.index("<summary>The paper&#39;s numbers</summary>")


def test_missing_cells_are_named(report: Path, capsys) -> None:
    text = (report / "results.md").read_text(encoding="utf-8")
    assert "missing:\n\n- linear-probe, 16 shots: eurosat (seeds 1, 2)\n" in text
    assert "<li>linear-probe, 16 shots: eurosat (seeds 1, 2)</li>" in (report / "results.html").read_text("utf-8")


def test_latex_and_figures_are_whole(report: Path) -> None:
    figures = sorted(path.stem for path in (report / "figures").iterdir())
    assert figures == ["ablations", "base_novel", "few_shot", "fusion_weights"]
    for path in (report / "figures").iterdir():
        with Image.open(path) as image:
            assert min(image.size) > 200


def test_a_method_far_below_the_others_is_named_not_drawn() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from dear.bench.figures import pictures

    scores = {"zero-shot": 70, "coop": 72, "prograd": 30, "maple-atprompt": 20, "vpt-shallow": 25, "provp": 28}
    both = [
        result("base-to-novel", dataset, method, 1, {"base": score + 5, "novel": score})
        for dataset in ("DTD", "EuroSAT")
        for method, score in scores.items()
        if (dataset, method) != ("EuroSAT", "coop")
    ]
    figure = pictures(parsed(*both))[0].figure
    drawn = {axis.get_title(): axis.get_legend_handles_labels()[1] for axis in figure.axes}
    assert drawn == {"DTD": ["zero-shot", "coop"], "EuroSAT": ["zero-shot"], "Average": ["zero-shot"]}
    FigureCanvasAgg(figure).draw()
    for axis in figure.axes:
        below = axis.xaxis.label.get_text().replace("\N{NO-BREAK SPACE}", " ")
        assert "prograd 32.3" in below
        assert "provp 30.3" in below
        assert "coop" not in below
        box = axis.xaxis.label.get_window_extent()
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1  # nothing is cut off at the sides
        assert figure.bbox.y0 <= box.y0


class Page(HTMLParser):
    """Collects what a page refers to, and its bold cells; its tags must be balanced."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str | None] = set()
        self.open: list[str] = []
        self.bold: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]
        self.ids |= {value for name, value in attrs if name == "id"}
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "strong":
            self.bold.append(data)


def test_the_page_stands_alone(report: Path) -> None:
    text = (report / "results.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert not page.open
    others = [link for link in page.links if not link.startswith(("data:image/png;base64,", "#"))]
    assert others == ["https://arxiv.org/abs/2603.01111"]  # a link of the notes, to be clicked on
    assert {link[1:] for link in page.links if link.startswith("#")} <= page.ids
    assert not re.search(r"<script|@import|url\(|<link", text)
    assert not re.search(r"\{[{%#]", text.partition("<body>")[2])  # nothing of the template is left


def test_the_page_stresses_the_best(report: Path) -> None:
    text = (report / "results.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert page.bold[3:6] == ["81.5", "68.5", "74.4"]  # dear on the first dataset; never one of the paper's numbers
    assert "92.23" not in page.bold


def test_notes_come_first(report: Path) -> None:
    for name, heading in (("results.md", "# Why"), ("results.html", "<h3>Why</h3>")):
        text = (report / name).read_text(encoding="utf-8")
        assert 0 < text.index(heading) < text.index("linear-probe")


def test_the_terminal_shows_the_main_tables_and_where_files_are(tmp_path: Path, capsys) -> None:
    folder = write(tmp_path / "a", grid()[:4])
    other = write(tmp_path / "b", grid()[4:8])
    assert main(["report", str(folder), str(other), "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert re.search(r"eurosat +dear +81\.5 ± 0\.7", out)
    assert str(tmp_path / "out" / "results.html") in out
    assert not (folder / "report").exists()


def test_methods_that_see_unlabelled_images_of_all_classes_stand_apart() -> None:
    scores = {"base": 90.0, "novel": 80.0}
    tables = main_tables(
        parsed(*(result("base-to-novel", "data/eurosat", m, 1, scores) for m in ("promptkd", "zero-shot")))
    )
    assert list(tables) == ["Base to novel", "Base to novel, with unlabelled images of all classes"]
    transductive, plain = (t.text() for t in (tables[name] for name in sorted(tables, key=len, reverse=True)))
    assert "promptkd" in transductive
    assert "zero-shot" not in transductive
    assert "promptkd" not in plain


def test_tables_without_files() -> None:
    assert list(main_tables(parsed(*grid()))) == [
        "Harmonic mean on each dataset, and paired comparison", "Base to novel", "Few-shot",
        "Paired comparison with the best", "Domain generalization: from world:signs",
        "Paired comparison: from world:signs",
    ]  # fmt: skip
    titles = ["Inference (base to novel, 16 shots)", "Masks (base to novel, 16 shots)"]
    assert list(ablation_tables(parsed(*grid()))) == titles


def test_notes_are_markdown() -> None:
    text = (
        "## A *b*\n\none `x*y*` <b>\ntwo **c**\n\n- i\n- j\n  k\n1. n\n\n| h |\n|---|\n| a\\|b |\n\n```\n# <raw>\n```\n"
    )
    html = notes_html(text)
    assert html.splitlines()[:3] == [
        "<h3>A <em>b</em></h3>",
        "<p>one <code>x*y*</code> &lt;b&gt;",
        "two <strong>c</strong></p>",
    ]
    assert "<li>j\nk</li>" in html
    assert "<th>h</th>" in html
    assert "<td>a|b</td>" in html
    assert "<pre><code># &lt;raw&gt;\n</code></pre>" in html
    assert "href" not in notes_html("[x](javascript:alert(1)) [y](other.html) [z](data:text/html,1)")
    assert 'href="#a"' in notes_html("[x](#a)")


@pytest.mark.parametrize("hostile", ["<script>alert(1)</script>", "a <img src=x onerror=alert(1)> b", "<!-- x -->"])
def test_html_in_notes_is_shown_not_run(hostile: str) -> None:
    html = notes_html(f"{hostile}\n\n# {hostile}\n\n| {hostile} |\n|---|\n| `{hostile}` |\n")
    tags = re.findall(r"</?([a-z0-9]+)", html)
    assert set(tags) == {"p", "h2", "div", "table", "thead", "tbody", "tr", "th", "td", "code"}
    assert html.count(hostile.replace("<", "&lt;").replace(">", "&gt;")) == 4


def test_notes_load_no_images() -> None:
    assert "<img" not in notes_html("![x](https://example.org/x.png)")
