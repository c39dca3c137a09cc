"""One small table that prints as text, Markdown or CSV."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Table:
    """Rows of cells under a header. Cells are shown with `str`; floats with one decimal; None as missing."""

    header: Sequence[str]
    rows: list[Sequence[object]] = field(default_factory=list)

    def add(self, *cells: object) -> None:
        if len(cells) != len(self.header):
            raise ValueError(f"{len(cells)} cells under {len(self.header)} headings")
        self.rows.append(cells)

    def cells(self) -> list[list[str]]:
        return [[_show(cell) for cell in row] for row in self.rows]

    def text(self) -> str:
        lines = [list(self.header), *self.cells()]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.header))]
        numeric = [all(_is_number(row[i]) for row in self.rows) for i in range(len(self.header))]

        def render(line: list[str]) -> str:
            pairs = zip(line, widths, numeric, strict=True)
            return "  ".join(c.rjust(w) if n else c.ljust(w) for c, w, n in pairs).rstrip()

        return "\n".join([render(lines[0]), "  ".join("-" * w for w in widths), *map(render, lines[1:])])

    def markdown(self) -> str:
        lines = ["| " + " | ".join(self.header) + " |", "|" + "---|" * len(self.header)]
        return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in self.cells()])

    def csv(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows(self.cells())
        return out.getvalue()


def _is_number(cell: object) -> bool:
    return cell is None or isinstance(cell, (int, float))


def _show(cell: object) -> str:
    if cell is None:
        return "-"
    return f"{cell:.1f}" if isinstance(cell, float) else str(cell)
