"""A report on disk: results.md, tables as CSV and LaTeX, figures as PNG, and all of it in one HTML file."""

import base64
import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from dear.bench.chapters import AVERAGE, Block, Chapter
from dear.bench.details import detail_chapters
from dear.bench.figures import ReportFigure, pictures
from dear.bench.results import CellResult, read_results
from dear.bench.series import Stat
from dear.bench.tables import main_chapters
from dear.core.figure import figure_png
from dear.core.files import read_text, write_bytes, write_text
from dear.core.pages import render_template
from dear.core.table import Table
from dear.core.version import __version__
from dear.core.words import counted

TITLE = "Benchmark results"
_REPORT_TEMPLATE = Path(__file__).parent / "assets" / "report.html.j2"
_MAX_UNFOLDED = 6  # missing cells


def write_report(folders: Sequence[Path], out: Path, first: Sequence[Chapter] = ()) -> list[Chapter]:
    """Reads the results of all folders, writes everything to `out`, and returns the chapters.

    `first`: chapters before those of the results. Without folders, there are no others.
    """
    results = read_results(folders)
    written = [read_text(path).strip() for folder in folders if (path := folder / "notes.md").is_file()]
    notes = "\n\n".join(filter(None, written))
    chapters = [*first]
    if results:
        chapters += [*main_chapters(results), *detail_chapters(results)]
    figures = [(picture, figure_png(picture.figure, dpi=160, facecolor="white")) for picture in pictures(results)]
    for block in (block for chapter in chapters for block in chapter.blocks):
        name = re.sub(r"[^\w.-]+", "-", block.name)  # names of ablations and splits come from files
        write_text(out / "tables" / f"{name}.csv", spread(block.table).csv())
        write_text(out / "tables" / f"{name}.tex", block.table.latex())
    for picture, png in figures:
        write_bytes(out / "figures" / f"{picture.name}.png", png)
    write_text(out / "results.md", markdown(results, chapters, [picture for picture, _ in figures], notes))
    write_text(out / "results.html", page(results, chapters, figures, notes))
    return chapters


def spread(table: Table) -> Table:
    """The table for a spreadsheet: mean and std in columns of their own, to two digits."""
    split = [any(isinstance(row[i], Stat) for row in table.rows) for i in range(len(table.header))]
    header = [
        name for i, title in enumerate(table.header) for name in ([title, f"{title} std"] if split[i] else [title])
    ]
    wide = Table(header)
    for row in table.rows:
        cells: list[object] = []
        for i, cell in enumerate(row):
            if isinstance(cell, Stat):
                cells += [f"{cell.mean:.2f}", None if cell.std is None else f"{cell.std:.2f}"]
            else:
                cells += [cell, None] if split[i] else [cell]
        wide.add(*cells)
    return wide


def summary(results: Sequence[CellResult]) -> str:
    cells = [result.cell for result in results]
    methods, datasets, seeds = ({getattr(c, name) for c in cells} for name in ("method", "dataset", "seed"))
    backbones = sorted({str(c.settings["model"]) for c in cells if "model" in c.settings})
    counts = [(len(cells), "cell"), (len(datasets), "dataset"), (len(methods), "method"), (len(seeds), "seed")]
    sizes = ", ".join(counted(number, unit) for number, unit in counts)
    return sizes + (f"; backbone {', '.join(backbones)}" if backbones else "") + "."


def markdown(
    results: Sequence[CellResult], chapters: Sequence[Chapter], figures: Sequence[ReportFigure], notes: str
) -> str:
    parts = [f"# {TITLE}", summary(results), *([notes] if notes else [])]
    for chapter in chapters:
        parts.append(f"## {chapter.title}")
        shown, folded = ([block for block in chapter.blocks if block.main is main] for main in (True, False))
        parts += [f"![{p.caption}](figures/{p.name}.png)" for p in figures if p.chapter == chapter.name]
        for block in shown:
            parts += [f"### {block.title}", *_note_and_table(block)]
        for block in folded:
            summary_line = f'<details markdown="1"><summary>{escape(block.title)}</summary>'
            parts += [summary_line, *_note_and_table(block), "</details>"]
        if chapter.missing:
            parts.append("missing:\n\n" + "\n".join(f"- {item}" for item in chapter.missing))
    return "\n\n".join(parts) + "\n"


def _note_and_table(block: Block) -> list[str]:
    return [*([block.note] if block.note else []), block.table.markdown()]


def page(
    results: Sequence[CellResult],
    chapters: Sequence[Chapter],
    figures: Sequence[tuple[ReportFigure, bytes]],
    notes: str,
) -> str:
    """One HTML file that needs no other; everything but the notes' own Markdown is escaped by the template."""
    days = sorted(result.finished[:10] for result in results) or [date.today().isoformat()]
    return render_template(
        _REPORT_TEMPLATE,
        title=TITLE,
        summary=summary(results),
        notes=Markup(notes_html(notes, first_heading=3)),
        chapters=chapters,
        figures=[(picture, base64.b64encode(png).decode("ascii")) for picture, png in figures],
        average=AVERAGE,
        max_unfolded=_MAX_UNFOLDED,
        days=days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}",
        version=__version__,
    )


def notes_html(text: str, first_heading: int = 2) -> str:
    """Markdown as HTML. HTML in the notes is shown, not run; images are left out, and links lead to the web or into the
    page. `first_heading`: the level that "#" becomes."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    parser.validateLink = lambda url: bool(re.match(r"https?://|mailto:|#", url))  # type: ignore[method-assign]
    parser.add_render_rule("table_open", lambda *_: '<div class="wide"><table>\n')
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    tokens = parser.parse(text)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1:]) + first_heading - 1, 6)}"
    return parser.renderer.render(tokens, parser.options, {})
