"""A report on disk: results.md, tables as CSV and LaTeX, figures as PNG, and all of it in one HTML file."""

import base64
import re
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path

from dear.bench.details import detail_chapters
from dear.bench.figures import Picture, pictures
from dear.bench.notes import notes_html
from dear.bench.results import Cell, read_cells
from dear.bench.retrieval import retrieval_chapters
from dear.bench.summary import Stat
from dear.bench.tables import AVERAGE, Block, Chapter, main_chapters
from dear.core.figure import figure_png
from dear.core.files import read_text, write_bytes, write_text
from dear.core.table import Table
from dear.core.version import __version__

TITLE = "Benchmark results"
_TEMPLATE = Path(__file__).parent / "assets" / "report.html"
_FEW = 6  # missing cells that are listed unfolded
_LONG = 48  # letters; longer cells of words may break


def write_report(folders: Sequence[Path], out: Path) -> list[Chapter]:
    """Reads the cells of all folders, writes everything to `out`, and gives back what it wrote."""
    cells = read_cells(folders)
    notes = "\n\n".join(text for folder in folders if (text := _read_notes(folder / "notes.md")))
    chapters = [*main_chapters(cells), *retrieval_chapters(folders), *detail_chapters(cells)]
    figures = {
        picture.name: (picture, figure_png(picture.figure, dpi=160, facecolor="white")) for picture in pictures(cells)
    }
    for block in (block for chapter in chapters for block in chapter.blocks):
        name = re.sub(r"[^\w.-]+", "-", block.name)  # names of ablations and splits come from files
        write_text(out / "tables" / f"{name}.csv", spread(block.table).csv())
        write_text(out / "tables" / f"{name}.tex", block.table.latex())
    for name, (_, png) in figures.items():
        write_bytes(out / "figures" / f"{name}.png", png)
    write_text(out / "results.md", markdown(cells, chapters, [p for p, _ in figures.values()], notes))
    write_text(out / "results.html", page(cells, chapters, list(figures.values()), notes))
    return chapters


def spread(table: Table) -> Table:
    """For a spreadsheet: mean and std in columns of their own, to two digits."""
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


def summary(cells: Sequence[Cell]) -> str:
    methods, datasets, seeds = ({getattr(c, name) for c in cells} for name in ("method", "dataset", "seed"))
    backbones = sorted({str(c.settings["model"]) for c in cells if "model" in c.settings})
    counts = [(len(cells), "cell"), (len(datasets), "dataset"), (len(methods), "method"), (len(seeds), "seed")]
    said = ", ".join(f"{number} {what}" + ("s" if number > 1 else "") for number, what in counts)
    return said + (f"; backbone {', '.join(backbones)}" if backbones else "") + "."


def markdown(cells: Sequence[Cell], chapters: Sequence[Chapter], figures: Sequence[Picture], notes: str) -> str:
    parts = [f"# {TITLE}", summary(cells), *([notes] if notes else [])]
    for chapter in chapters:
        parts.append(f"## {chapter.title}")
        if chapter.missing:
            parts.append("missing:\n\n" + "\n".join(f"- {item}" for item in chapter.missing))
        for block in chapter.blocks:
            parts += [f"### {block.title}", *([block.note] if block.note else []), block.table.markdown()]
        parts += [f"![{p.caption}](figures/{p.name}.png)" for p in figures if p.chapter == chapter.name]
    return "\n\n".join(parts) + "\n"


def page(
    cells: Sequence[Cell], chapters: Sequence[Chapter], figures: Sequence[tuple[Picture, bytes]], notes: str
) -> str:
    body = [f'<section class="card notes">{notes_html(notes, first_heading=3)}</section>'] if notes else []
    for chapter in chapters:
        body.append(f'<section><h2 id="{escape(chapter.name)}">{escape(chapter.title)}</h2>')
        body += [_missing(chapter.missing)] if chapter.missing else []
        shown = [_figure(picture, png) for picture, png in figures if picture.chapter == chapter.name]
        main = [_block(block, chapter.title) for block in chapter.blocks if block.main]
        folded = [_block(block, chapter.title) for block in chapter.blocks if not block.main]
        body += [*main, *shown, *folded, "</section>"]
    contents = "".join(f'<a href="#{escape(chapter.name)}">{escape(chapter.title)}</a>' for chapter in chapters)
    days = Counter(cell.finished[:10] for cell in cells)
    when = min(days) if len(days) == 1 else f"{min(days)} to {max(days)}"
    places = {
        "__TITLE__": escape(TITLE),
        "__SUMMARY__": escape(summary(cells)),
        "__CONTENTS__": contents,
        "__FOOTER__": escape(f"Cells finished {when}. Written by dear {__version__}."),
        "__BODY__": "\n".join(body),  # last: nothing in it is taken for a place
    }
    text = _TEMPLATE.read_text(encoding="utf-8")
    for place, value in places.items():
        text = text.replace(place, value)
    return text


def _block(block: Block, chapter: str) -> str:
    title, note = f"<h3>{escape(block.title)}</h3>", f'<p class="note">{escape(block.note)}</p>' if block.note else ""
    if block.main:
        title = "" if block.title == chapter else title  # said just above
        return f'<div class="card">{title}{note}{_table(block.table)}</div>'
    return f'<details class="card"><summary>{title}</summary>{note}{_table(block.table)}</details>'


def _table(table: Table) -> str:
    numeric, shown = table.numeric(), table.cells()
    head = "".join(_cell("th", escape(name), ["number"] * numeric[i]) for i, name in enumerate(table.header))
    lines = []
    repeats = len({row[0] for row in shown}) < len(shown)  # then the first column is a group's name
    for number, row in enumerate(shown):
        again = repeats and number > 0 and row[0] == shown[number - 1][0]
        cells = []
        for column, text in enumerate(row):
            kinds = ["number"] * numeric[column] + ["again"] * (again and column == 0) + ["long"] * (len(text) > _LONG)
            mean, sign, std = escape(text).partition(" ± ")
            inner = f'{mean}<span class="std">{sign}{std}</span>' if sign and numeric[column] else escape(text)
            kinds += ["spread"] * bool(sign and numeric[column])
            cells.append(_cell("td", f"<strong>{inner}</strong>" if (number, column) in table.bold else inner, kinds))
        kinds = ["first"] * (number > 0 and not again) + ["average"] * (row[0] == AVERAGE)
        lines.append(_cell("tr", "".join(cells), kinds))
    rows = "".join(lines)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _cell(tag: str, inner: str, kinds: list[str]) -> str:
    return f"<{tag}" + (f' class="{" ".join(kinds)}"' if kinds else "") + f">{inner}</{tag}>"


def _figure(picture: Picture, png: bytes) -> str:
    data, caption = base64.b64encode(png).decode("ascii"), escape(picture.caption)
    width = round(100 * picture.figure.get_figwidth())  # so that text has one size in all figures
    image = f'<img alt="{caption}" style="max-width: {width}px" src="data:image/png;base64,{data}">'
    return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"


def _missing(items: Sequence[str]) -> str:
    listed = "".join(f"<li>{escape(item)}</li>" for item in items)
    title = f"<h3>missing: {len(items)} cell{'s' if len(items) > 1 else ''}</h3>"
    unfolded = " open" if len(items) <= _FEW else ""
    return f'<details class="card missing"{unfolded}><summary>{title}</summary><ul>{listed}</ul></details>'


def _read_notes(path: Path) -> str:
    if not path.is_file():
        return ""
    return read_text(path).strip()
