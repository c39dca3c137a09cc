"""Everything that the documentation shows works: links, the method of the tutorial, the notebooks."""

import importlib
import json
import re
import sys
import types
from itertools import takewhile
from pathlib import Path

import pytest

from dear.cli import COMMANDS, main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


pytestmark = pytest.mark.usefixtures("few_pictures")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_pictures_are_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).is_file(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_that_are_shown_exist(page: Path) -> None:
    blocks = re.findall(r"^```\w*\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    shown = {word for block in blocks for word in re.findall(r"^dear ([a-z][a-z-]*)", block, flags=re.M)}
    assert shown <= set(COMMANDS)


def test_every_promise_of_security_names_tests_that_exist() -> None:
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    promises, rows = (
        re.findall(r"^- \*\*(.+?)\.\*\*", page, flags=re.M),
        re.findall(r"^\| (.+?) \| (`.*) \|$", page, flags=re.M),
    )
    assert promises == [name for name, _ in rows]
    for file, test in (name.split("::") for _, names in rows for name in re.findall(r"`(.+?)`", names)):
        assert f"def {test}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), test


def test_everything_in_the_api_reference_is_there() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    names = re.findall(r"^::: ([\w.]+)", page, flags=re.M)
    assert len(names) > 10
    for module, _, name in (name.rpartition(".") for name in names):
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"


@pytest.mark.parametrize(
    ("cells", "page"),
    [(cells, "results.md" if cells == "clip" else f"{cells}/results.md") for cells in ("clip", "taught", "unseen")],
)
def test_pages_of_results_show_the_cells_of_the_repository(cells: str, page: str, monkeypatch) -> None:
    """`dear report results/clip --out docs` was not forgotten; most intervals take too long to compute again."""
    from dear.bench.results import read_results
    from dear.bench.tables import ablation_tables, main_chapters

    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert (ROOT / "results" / cells / "notes.md").read_text(encoding="utf-8").strip() in text
    results = read_results([ROOT / "results" / cells])
    ablations = ablation_tables(results)
    monkeypatch.setattr("dear.trials.paired._RESAMPLES", 10)
    tables = {b.title: b.table for c in main_chapters(results) for b in c.blocks if not b.name.endswith("_overview")}
    assert tables
    for title, table in (tables | ablations).items():
        assert table.markdown() in text, title


def test_the_table_of_the_readme_is_that_of_the_cells(monkeypatch) -> None:
    from dear.bench.results import read_results
    from dear.bench.tables import main_tables

    monkeypatch.setattr("dear.trials.paired._RESAMPLES", 10)
    tables = main_tables(read_results([ROOT / "results" / "clip"]))
    cells = {row["method"]: row for row in tables["Harmonic mean on each dataset, and paired comparison"].records()}
    lines = [line.strip("| ").split(" | ") for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()]
    start = next(number for number, line in enumerate(lines) if "EuroSAT" in line and "DTD" in line)
    datasets = {"Pets": "OxfordPets", "Flowers": "OxfordFlowers"}
    header = [datasets.get(name, name) for name in lines[start] if name not in ("method", "fit")]
    methods = {"expert tokens": "experts", "head gains": "head-gains", "DeAR": "dear"}
    shown = list(takewhile(lambda line: len(line) > 1, lines[start + 2 :]))
    assert len(shown) > 5
    for row in shown:
        name = re.sub(r" \(.*|, .*", "", row[0].replace("*", ""))
        of_method = cells[methods.get(name, name.lower())]
        expected = ["-" if of_method[data] is None else f"{of_method[data]:.1f}" for data in header]
        assert [cell.strip("*") for cell in row[1 : 1 + len(header)]] == expected, name


def test_pictures_are_light() -> None:
    pictures = [*(ROOT / "docs" / "pictures").iterdir()]
    assert pictures
    assert all(picture.stat().st_size < 250_000 for picture in pictures)


def test_the_method_of_the_tutorial_trains_and_answers(tmp_path, model_folder, monkeypatch, capsys) -> None:
    from dear.methods import registry

    page = (ROOT / "docs/tutorials/add-a-method.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", page, flags=re.S)[1]
    line = re.search(r'```\n"blend": (.*?),\n```', page)[1]
    module = types.ModuleType("dear.methods.blend")
    monkeypatch.setitem(sys.modules, "dear.methods.blend", module)
    exec(compile(code, "blend.py", "exec"), module.__dict__)
    monkeypatch.setitem(registry.METHODS, "blend", eval(line, {"MethodInfo": registry.MethodInfo}))
    asked = ["train", "--method", "blend", "--model", f"local-dir:{model_folder}", "--data", "world:places"]
    small = ["--shots", "1", "--epochs", "1", "--share", "0.3", "--augment", "fixed:1", "--workers", "0"]
    assert main([*asked, *small, "--out", str(tmp_path / "run")]) == 0
    assert "dear predict" in capsys.readouterr().out  # what to do next
    assert main(["world", "--out", str(tmp_path / "world.png")]) == 0
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "world.png")]) == 0


@pytest.mark.parametrize("name", ["adapt_and_explain", "fit", "search_by_attribute"])
def test_notebooks_run(name: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    notebook = json.loads((ROOT / "examples" / f"{name}.ipynb").read_text(encoding="utf-8"))
    names: dict[str, object] = {}
    assert (ROOT / "examples" / f"{name}.ipynb").stat().st_size < 250_000  # stored by scripts/store_outputs.py
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert any(cell["outputs"] for cell in code)  # a code host shows them
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"])
            if "dear.train(" in source:
                for setting in ("shots=16", "epochs=6"):  # every step, in less time
                    assert setting in source
                    source = source.replace(setting, setting.partition("=")[0] + "=1")
            exec(compile(source, f"{name}.ipynb", "exec"), names)
