"""One table, four forms."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import pytest

from dear.core.table import Table


@pytest.fixture
def table() -> Table:
    table = Table(["data", "images", "accuracy"])
    table.add("pets, all", 740, 88.25)
    table.add("x", None, 100.0)
    return table


FORMS = {
    "text": """
data       images  accuracy
---------  ------  --------
pets, all     740      88.2
x               -     100.0
""",
    "markdown": """
| data | images | accuracy |
|---|---|---|
| pets, all | 740 | 88.2 |
| x | - | 100.0 |
""",
    "latex": r"""
\begin{tabular}{lrr}
\toprule
data & images & accuracy \\
\midrule
pets, all & 740 & 88.2 \\
x & - & 100.0 \\
\bottomrule
\end{tabular}
""",
}


@pytest.mark.parametrize("form", FORMS)
def test_words_are_aligned_left_and_numbers_right(table: Table, form: str) -> None:
    assert getattr(table, form)().strip("\n") == FORMS[form].strip("\n")


def test_csv_reads_back(table: Table) -> None:
    assert list(csv.reader(io.StringIO(table.csv()))) == [list(table.header), *table.cells()]


def test_records_keep_numbers_whole_and_what_is_missing() -> None:
    @dataclass
    class Parts:
        mean: float
        std: float | None

    table = Table(["name", "images", "accuracy", "spread"])
    table.add(Path("a"), 740, 88.25, Parts(1.5, None))
    table.add("x", None, 100.0, True)
    assert table.records() == [
        {"name": "a", "images": 740, "accuracy": 88.25, "spread": {"mean": 1.5, "std": None}},
        {"name": "x", "images": None, "accuracy": 100.0, "spread": True},
    ]


class Spread:
    def __float__(self) -> float:
        return 1.0

    def __str__(self) -> str:
        return "1.0 ± 0.5"


def test_a_column_is_one_of_numbers_if_all_its_cells_have_a_float() -> None:
    for cells, expected in (([1, "many"], "1"), ([Spread()], "     1.0 ± 0.5")):
        table = Table(["a wide heading"])
        for cell in cells:
            table.add(cell)
        assert table.text().splitlines()[2] == expected


def test_rows_of_another_length_are_refused(table: Table) -> None:
    with pytest.raises(ValueError, match="2 cells under 3 headings"):
        table.add("x", 1)


def test_an_empty_table_is_its_header() -> None:
    assert Table(["a", "bc"]).text() == "a  bc\n-  --"


def test_latex_escapes_what_latex_would_read_as_its_own() -> None:
    table = Table(["50%_off"])
    table.add("a & b_c {d} #1 $2 ~x^y <z> \\")
    table.add("[1, 2] 74.2 ± 0.8")
    body = table.latex().splitlines()
    assert body[2] == r"50\%\_off \\"
    escaped = r"a \& b\_c \{d\} \#1 \$2 \textasciitilde{}x\textasciicircum{}y \textless{}z\textgreater{}"
    assert body[4] == escaped + r" \textbackslash{} \\"
    assert body[5] == r"{[}1, 2] 74.2 $\pm$ 0.8 \\"  # a bare bracket would be an argument of the \\ before it


def test_bold_cells_are_stressed_in_markdown_and_latex_only(table: Table) -> None:
    plain = table.text(), table.csv()
    table.bold.add((1, 2))
    assert table.markdown().splitlines()[3] == "| x | - | **100.0** |"
    assert table.latex().splitlines()[5] == r"x & - & \textbf{100.0} \\"
    assert (table.text(), table.csv()) == plain


def test_markdown_keeps_bars_and_tags_inside_their_cell() -> None:
    table = Table(["a|b"])
    table.add("<b>x|y")
    assert table.markdown().splitlines() == [r"| a\|b |", "|---|", r"| &lt;b>x\|y |"]


def test_what_is_not_a_number_is_a_dash() -> None:
    table = Table(["data", "novel"])
    table.add("photos", float("nan"))
    assert table.cells() == [["photos", "-"]]
    assert table.rows[0][1] is None
