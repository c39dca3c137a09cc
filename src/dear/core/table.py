"""One small table that prints as text, Markdown, CSV, LaTeX or JSON."""

import argparse
import csv
import dataclasses
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from typing import Any, Protocol, SupportsFloat

from msgspec import Struct, to_builtins

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "±": r"$\pm$", "−": "$-$", "–": "--", "→": r"$\rightarrow$",
    "[": "{[}",  # after \\, a bracket at the start of a row would be its argument
}  # fmt: skip


class Digits(float):
    """A number with a format of its own, such as ".3f"; in JSON it has all of its digits."""

    form: str

    def __new__(cls, value: float, form: str) -> "Digits":
        number = super().__new__(cls, value)
        number.form = form
        return number

    def __str__(self) -> str:
        return format(float(self), self.form)


@dataclass
class Table:
    """Rows of cells under a header. Floats have one decimal, None and nan are "-", everything else is its `str`.

    `bold`: (row, column) of cells that are bold in Markdown and LaTeX.
    """

    header: Sequence[str]
    rows: list[Sequence[object]] = field(default_factory=list)
    bold: set[tuple[int, int]] = field(default_factory=set)

    def add(self, *cells: object) -> None:
        if len(cells) != len(self.header):
            raise ValueError(f"{len(cells)} cells under {len(self.header)} headings")
        self.rows.append(tuple(None if cell != cell else cell for cell in cells))  # nan is no JSON

    def cells(self) -> list[list[str]]:
        return [[_text(cell) for cell in row] for row in self.rows]

    def numeric(self) -> list[bool]:
        """Whether each column holds only numbers (or None): such columns are aligned on the right."""
        return [all(_is_number(row[i]) for row in self.rows) for i in range(len(self.header))]

    def text(self) -> str:
        lines = [list(self.header), *self.cells()]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.header))]
        numeric = self.numeric()

        def render(line: list[str]) -> str:
            pairs = zip(line, widths, numeric, strict=True)
            return "  ".join(c.rjust(w) if n else c.ljust(w) for c, w, n in pairs).rstrip()

        return "\n".join([render(lines[0]), "  ".join("-" * w for w in widths), *map(render, lines[1:])])

    def markdown(self) -> str:
        def render(cells: Sequence[str]) -> str:
            # A bar would end the cell, "<" would begin HTML.
            return "| " + " | ".join(c.replace("|", r"\|").replace("<", "&lt;") for c in cells) + " |"

        lines = [render(self.header), "|" + "---|" * len(self.header)]
        return "\n".join(lines + [render(row) for row in self._with_bold(self.cells(), "**", "**")])

    def records(self) -> list[dict[str, Any]]:
        """One mapping from heading to value per row; numbers are not rounded."""
        return [dict(zip(self.header, map(_json_value, row), strict=True)) for row in self.rows]

    def csv(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows(self.cells())
        return out.getvalue()

    def latex(self) -> str:
        """A tabular with the rules of the package booktabs."""
        columns = "".join("r" if numeric else "l" for numeric in self.numeric())
        escaped = [[_latex(cell) for cell in row] for row in self.cells()]
        lines = [" & ".join(row) + r" \\" for row in self._with_bold(escaped, r"\textbf{", "}")]
        header = " & ".join(map(_latex, self.header)) + r" \\"
        body = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", header, r"\midrule", *lines, r"\bottomrule"]
        return "\n".join([*body, r"\end{tabular}", ""])

    def _with_bold(self, rows: list[list[str]], before: str, after: str) -> list[list[str]]:
        return [
            [before + cell + after if (r, c) in self.bold else cell for c, cell in enumerate(row)]
            for r, row in enumerate(rows)
        ]


class Showable(Protocol):
    """A table, or a result with one, that a command shows."""

    def text(self) -> str: ...

    def records(self) -> Any:
        """The content for JSON."""


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    text = "print tables as one JSON object on stdout, everything else on stderr"
    parser.add_argument("--json", dest="json_tables", action="store_true", default=argparse.SUPPRESS, help=text)


@contextmanager
def showing(as_json: bool) -> Iterator[Callable[[str, Showable], None]]:
    """Yields `show(name, table)`, which prints a table at once, or all tables as one JSON object at the end."""
    if not as_json:
        yield lambda name, table: print(table.text())
        return
    tables: dict[str, Any] = {}
    with redirect_stdout(sys.stderr):
        yield lambda name, table: tables.update({name: table.records()})
    print(json.dumps(tables, indent=1, ensure_ascii=False))


def _json_value(cell: object) -> Any:
    """A cell as a JSON value."""
    if isinstance(cell, Struct):
        return to_builtins(cell)
    if dataclasses.is_dataclass(cell) and not isinstance(cell, type):
        return dataclasses.asdict(cell)
    if cell is None or isinstance(cell, bool | int | float | str):
        return cell
    return float(cell) if isinstance(cell, SupportsFloat) else str(cell)


def _is_number(cell: object) -> bool:
    return cell is None or isinstance(cell, SupportsFloat)


def _text(cell: object) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, Digits):
        return str(cell)
    return f"{cell:.1f}" if isinstance(cell, float) else str(cell)


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)
